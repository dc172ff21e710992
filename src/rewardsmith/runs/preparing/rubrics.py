"""`rewardsmith prepare rubric`, from its options to what it prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rewardsmith.data.preparing import BadRows, Skipped, file_facts, rows_to, write_provenance
from rewardsmith.data.rows import ANSWER, RowError, printable
from rewardsmith.data.rubrics.files import RowFiles
from rewardsmith.data.rubrics.problems import Problem, ProblemRows, no_such_column
from rewardsmith.data.rubrics.rows import Uniform, example_rubric, rubric_facts, with_criteria
from rewardsmith.data.rubrics.tables import schema_of
from rewardsmith.data.rubrics.writing import RubricWriter, load_writing_template
from rewardsmith.llm import ChatModel
from rewardsmith.runs.preparing.asking import Job
from rewardsmith.runs.preparing.kept import KeptAnswers
from rewardsmith.runs.preparing.models import Named
from rewardsmith.runs.preparing.session import (
    Answered,
    How,
    answer_all,
    failure_lines,
    print_result,
    require_output,
    usage_lines,
)
from rewardsmith.text.rubrics import PARSER
from rewardsmith.text.templates import Template


@dataclass(frozen=True)
class Writing:
    """What rubrics are written of, and how.

    Attributes:
        rows: reads the problems.
        template: name or path of the prompt.
        reference: whether the model is shown what is known of the right answer.
    """

    rows: ProblemRows
    template: str = "write_rubric"
    reference: bool = True


def write_rubrics(path: str, out: Path, named: Named, writing: Writing, how: How) -> bool:
    """Have a rubric written for every problem, and print how that went; return whether enough were.

    Args:
        path: of the problems.
        out: where the rows go with their criteria.
        named: the model that writes.
        writing: what is asked.
        how: how the rows are gone through.

    Raises:
        UserError: for whatever a user can mend.
        Interrupted: after Ctrl-C.
    """
    files = RowFiles(path, how.limit)
    require_output(out, files.files)
    template = load_writing_template(writing.template)
    facts = {**template.facts(), "parser": PARSER}
    problems = _Problems(files, writing.rows, _writer(None, template, writing, how))
    skipped = problems.check(BadRows(skip=how.skip_bad))
    schema = problems.schema(facts) if out.suffix.lower() == ".parquet" else None  # before anything is paid for
    made = {"command": "rubric", "model": named.facts(), "asking": how.decides(), "reference": writing.reference}
    kept = KeptAnswers(out, made | facts, [out], fresh=how.fresh)

    def work(model: ChatModel, identity: str) -> Callable[[Problem], Awaitable[Any]]:
        writer = _writer(model, template, writing, how)

        async def write(problem: Problem) -> dict[str, Any]:
            said = await writer.write(problem)
            made_by = {"model": identity, **facts, "seed": how.asking.seed, "tries": said.tries}
            tokens = {"prompt_tokens": said.prompt_tokens, "tokens": said.tokens}
            return {"criteria": said.value.criteria(), "facts": rubric_facts(said.value, made_by | tokens)}

        return write

    with kept.open():
        answered = answer_all(named, work, problems.jobs, kept, how, verb="write", what="rubrics")
        written, tries, tokens = _write(out, problems, kept, schema)
    summary: dict[str, Any] = {
        "rows": skipped.of,
        "answers": problems.answers,
        "solutions": problems.solutions,
        "written": written,
        "bad": skipped.as_json(),
        "failed": len(answered.failed),
        "failures": answered.as_json(),
        "resumed": answered.resumed,
        "tries": {str(count): rubrics for count, rubrics in sorted(tries.items())},
        "tokens": dict(tokens),
        "models": {name: asdict(used) for name, used in answered.used.items()},
    }
    if written:
        rows = writing.rows
        columns = {"prompt": rows.layout.prompt, "answer": rows.layout.answer, "solution": rows.solution}
        settings = {"asking": asdict(how.asking), "limit": how.limit, "replace": rows.replace, "columns": columns}
        inputs = [file_facts(file, files.counts[file]) for file in files.files]
        write_provenance(out, {**kept.maker, "command": "prepare rubric", **settings, "inputs": inputs, **summary})
    lines = [*_known(problems, writing), *_lines(out, skipped, answered, written, tries, tokens)]
    print_result(summary, lines, as_json=how.json)
    return answered.enough(how.fail_above)


def _writer(model: Any, template: Template, writing: Writing, how: How) -> RubricWriter:
    return RubricWriter(model, template, how.asking, reference=writing.reference)


class _Problems:
    """The problems of files, again and again: those that can be used, each once."""

    def __init__(self, files: RowFiles, rows: ProblemRows, writer: RubricWriter) -> None:
        self._files = files
        self._rows = rows
        self._writer = writer
        self.uniform = Uniform()
        self.answers = self.solutions = self.count = 0

    def check(self, bad: BadRows) -> Skipped:
        """Look at every row before anything is asked; return which are left out."""
        total = 0
        for where, found in self._read():
            total += 1
            if isinstance(found, RowError):
                bad.note(where, found)
            else:
                self.uniform.learn(found.item.row)
                self.count += 1
                self.answers += found.item.prompt.answer is not None
                self.solutions += bool(found.item.solution.strip())
        skipped = bad.settle(total)
        columns, layout = self._files.columns, self._rows.layout
        if layout.answer != ANSWER and not self.answers:
            raise no_such_column("--answer-column", layout.answer, columns, "the right answer")
        if self._rows.solution is not None and not self.solutions:
            raise no_such_column("--solution-column", self._rows.solution, columns, "a reference solution")
        return skipped

    def schema(self, facts: Mapping[str, Any]) -> Any:
        """Return the `pyarrow.Schema` of the rows with their criteria; `facts` are of the template and parser."""
        return schema_of(self.uniform(example_rubric(job.item.row, facts)) for job in self.jobs())

    def jobs(self) -> Iterator[Job[Problem]]:
        """Yield the good ones."""
        return (found for _, found in self._read() if not isinstance(found, RowError))

    def _read(self) -> Iterator[tuple[str, Job[Problem] | RowError]]:
        keys: dict[str, str] = {}
        ids: dict[str, str] = {}
        for where, file, number, row in self._files:
            try:
                if isinstance(row, RowError):
                    raise row
                problem = self._rows.read(row, file, number)
                key = self._writer.key(problem)
                _require_first(keys, key, where, "this is the same problem as in")
                _require_first(ids, problem.prompt.id, where, f'the id "{problem.prompt.id[:100]}" is also that of')
            except RowError as error:
                yield where, error
            else:
                yield where, Job(key, where, problem)


def _require_first(seen: dict[str, str], name: str, where: str, what: str) -> None:
    other = seen.setdefault(name, where)
    if other is not where:
        raise RowError(f"{what} {other}: leave one of them out")


def _write(out: Path, problems: _Problems, kept: KeptAnswers, schema: Any) -> tuple[int, Counter[int], Counter[str]]:
    """Write the rows that have criteria, in the order of the input; return how many, and what they took."""
    tries: Counter[int] = Counter()
    tokens: Counter[str] = Counter()
    if not any(job.key in kept for job in problems.jobs()):
        return 0, tries, tokens
    with rows_to(out, overwrite=True, schema=schema) as write:
        for job in problems.jobs():
            if job.key in kept:
                answer = kept[job.key]
                facts = answer["facts"]
                tries[facts["tries"]] += 1
                tokens.update({name: facts[name] for name in ("prompt_tokens", "tokens")})
                write(problems.uniform(with_criteria(job.item.row, answer["criteria"], facts)))
    return tries.total(), tries, tokens


def _known(problems: _Problems, writing: Writing) -> Iterator[str]:
    """Yield how much the model was told of the problems."""
    hidden = "" if writing.reference else "; the model is not shown them"
    has = f"{problems.answers:,} have a right answer, {problems.solutions:,} a reference solution"
    yield f"{problems.count:,} problems: {has}{hidden}"


def _lines(
    out: Path, skipped: Skipped, answered: Answered, written: int, tries: Counter[int], tokens: Counter[str]
) -> Iterator[str]:
    yield from [str(skipped)] if skipped.rows else []
    yield from failure_lines(answered, "no rubric that can be used")
    if not written:
        yield "nothing is written: no problem has a rubric"
    else:
        yield from _written(out, answered, tries, tokens)
    yield from usage_lines(answered)


def _written(out: Path, answered: Answered, tries: Counter[int], tokens: Counter[str]) -> Iterator[str]:
    written = tries.total()
    before = f", {answered.resumed:,} of them from an earlier start" if answered.resumed else ""
    yield f"{written:,} rubrics{before}; written to {printable(str(out), 200)}"
    yield "tries: " + ", ".join(f"{count} for {rubrics:,}" for count, rubrics in sorted(tries.items()))
    if tokens.total():
        took = f"{tokens['prompt_tokens']:,} read, {tokens['tokens']:,} written; {tokens.total() / written:,.0f} each"
        yield f"tokens of these rubrics: {took}"


__all__ = ["Writing", "write_rubrics"]
