"""`rewardsmith prepare graded`, from its options to what it prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from rewardsmith.data.preparing import BadRows, all_rows_to, file_facts, write_provenance
from rewardsmith.data.preparing.splitting import limit_of_share, source_key
from rewardsmith.data.rubrics.bands import Balance, band_name, band_of
from rewardsmith.data.rubrics.files import RowFiles
from rewardsmith.data.rubrics.grading import Grades, Teacher
from rewardsmith.data.rubrics.problems import SolutionRows
from rewardsmith.data.rubrics.rows import FORMS, Form, GradedSolution
from rewardsmith.data.rubrics.tables import schema_of
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatModel
from rewardsmith.rewards.judges.shown import LONGEST
from rewardsmith.runs.preparing.asking import Job
from rewardsmith.runs.preparing.kept import KeptAnswers
from rewardsmith.runs.preparing.models import Named
from rewardsmith.runs.preparing.printing import Told, graded_lines
from rewardsmith.runs.preparing.rightness import make_rule, rights
from rewardsmith.runs.preparing.session import How, answer_all, print_result, require_output
from rewardsmith.runs.preparing.solutions import Item, Solutions
from rewardsmith.runs.progress import Progress
from rewardsmith.text.grades import PARSER
from rewardsmith.text.judge_prompts import Quoting, load_grading_template
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.templates import Template

TRAIN, HELD_OUT = "train", "held-out"


@dataclass(frozen=True, kw_only=True)
class Grading:
    """What is graded, how, and what becomes of it.

    Attributes:
        rows: reads the solutions.
        template: name or path of the grading prompt.
        quoting: how foreign text stands in it.
        longest: characters of a solution that are shown.
        votes: grades for each solution.
        forms: what is written.
        balance: the bands, and how they are balanced; `balanced` says whether they are.
        balanced: whether the rows that train are balanced.
        held_out: share of the problems whose solutions are written apart.
        held_out_to: where they go; None names the file after the output.
        rule: says whether a final answer is right; None takes what the rows say.
        seed: of balancing.
    """

    rows: SolutionRows
    template: str = "rubric"
    quoting: Quoting = "fence"
    longest: int = LONGEST
    votes: int = 1
    forms: tuple[Form, ...] = ("sft",)
    balance: Balance = field(default_factory=Balance)
    balanced: bool = False
    held_out: float = 0.0
    held_out_to: Path | None = None
    rule: str | None = None
    seed: int = 0

    def teacher(self, model: Any, template: Template, how: How) -> Teacher:
        """Return who grades."""
        return Teacher(model, template, how.asking, votes=self.votes, quoting=self.quoting, longest=self.longest)

    def outputs(self, out: Path) -> dict[tuple[Form, str], Path]:
        """Return the file of each form and part."""
        apart = self.held_out_to or out.with_name(f"{out.stem}.{HELD_OUT}{out.suffix}")
        bases = {TRAIN: out} | ({HELD_OUT: apart} if self.held_out else {})
        several = len(self.forms) > 1
        return {
            (form, part): base.with_name(f"{base.stem}.{form}{base.suffix}") if several else base
            for part, base in bases.items()
            for form in self.forms
        }


def grade_solutions(path: str, out: Path, named: Named, grading: Grading, how: How) -> bool:
    """Have every solution graded, write them in the forms that are wanted, and print how that went.

    Args:
        path: of the solutions.
        out: where the rows go; with several forms each has its own file, named after this one.
        named: the model that grades.
        grading: what is asked and what becomes of it.
        how: how the rows are gone through.

    Returns:
        Whether enough solutions have a grade.

    Raises:
        UserError: for whatever a user can mend.
        Interrupted: after Ctrl-C.
    """
    files = RowFiles(path, how.limit)
    outputs = grading.outputs(out)
    for output in outputs.values():
        require_output(output, files.files)
    if len(set(outputs.values())) < len(outputs):
        raise UserError(f'the held-out part would be written to "{out}" too: give --held-out-out another name')
    template = load_grading_template(grading.template)
    rule = None if grading.rule is None else make_rule(grading.rule, Progress(Console(stderr=True)).say)
    teacher = grading.teacher(None, template, how)
    apart = limit_of_share(grading.held_out)
    solutions = Solutions(
        files,
        grading.rows,
        teacher.key,
        lambda question: source_key(question) < apart,
    )
    skipped = solutions.check(BadRows(skip=how.skip_bad))
    _require_parts(grading, {_part(job.item.held_out) for job in solutions.jobs()}, "problem belongs to")
    facts = {**template.facts(), "parser": PARSER}
    schemas = _schemas(outputs, solutions, teacher, facts)  # before anything is paid for
    maker = {"command": "graded", "model": named.facts(), "asking": how.decides(), "votes": grading.votes, **facts}
    kept = KeptAnswers(out, maker, list(outputs.values()), fresh=how.fresh)
    with kept.open():
        work = _work(grading, template, how, facts)
        answered = answer_all(named, work, solutions.jobs, kept, how, verb="grade", what="grades")
        right = {} if rule is None else rights(rule, _problems(solutions, kept))
        made = _Made(solutions, kept, grading, template, how, right)
        counts = made.write(outputs, schemas) if made.shares else Counter()
    told = Told(skipped, solutions, answered, made.bands(), counts, made.no_analysis, made.rightness)
    if counts:
        inputs = [file_facts(file, files.counts[file]) for file in files.files]
        settings = {"asking": asdict(how.asking), "limit": how.limit, **_settings(grading)}
        for (form, part), output in outputs.items():
            about = {"form": form, "part": part, "inputs": inputs, **told.as_json()}
            write_provenance(output, {**kept.maker, "command": "prepare graded", **settings, **about})
    print_result(told.as_json(), list(graded_lines(told, balanced=grading.balanced)), as_json=how.json)
    return answered.enough(how.fail_above)


def _part(held_out: bool) -> str:
    return HELD_OUT if held_out else TRAIN


def _require_parts(grading: Grading, found: Set[str], what: str) -> None:
    """Raise a `UserError` if a part that is wanted would be empty."""
    for part in (TRAIN, *([HELD_OUT] if grading.held_out else [])):
        if part not in found:
            raise UserError(
                f"no {what} the {part} part with --held-out {grading.held_out:g}: give another share, or more problems"
            )


def _settings(grading: Grading) -> dict[str, Any]:
    """Return the settings for the provenance, as JSON."""
    rows = grading.rows
    return {
        "columns": {"prompt": rows.layout.prompt, "answer": rows.layout.answer, "responses": rows.responses}
        | {"criteria": rows.field},
        "quoting": grading.quoting,
        "longest": grading.longest,
        "balance": asdict(grading.balance) if grading.balanced else None,
        "held_out": grading.held_out,
        "rule": grading.rule,
        "seed": grading.seed,
    }


def _work(
    grading: Grading, template: Template, how: How, facts: Mapping[str, Any]
) -> Callable[[ChatModel, str], Callable[[Item], Awaitable[Any]]]:
    def work(model: ChatModel, identity: str) -> Callable[[Item], Awaitable[Any]]:
        teacher = grading.teacher(model, template, how)

        async def grade(item: Item) -> dict[str, Any]:
            grades = await teacher.grade(item.solution)
            return {"grades": asdict(grades), "by": {"model": identity, **facts, "seed": how.asking.seed}}

        return grade

    return work


def _problems(solutions: Solutions, kept: KeptAnswers) -> Iterator[tuple[Any, list[tuple[str, str]]]]:
    for jobs in solutions.by_row():
        graded = [(job.item.id, job.item.solution.response) for job in jobs if job.key in kept]
        if graded:
            yield jobs[0].item.solution.prompt, graded


def _schemas(
    outputs: Mapping[tuple[Form, str], Path],
    solutions: Solutions,
    teacher: Teacher,
    facts: Mapping[str, Any],
) -> dict[Form, Any]:
    """Return the `pyarrow.Schema` of each form that goes to Parquet, as if every solution had a grade already."""
    grades = Grades((0.5,), ("An analysis.",))

    def examples(form: Form) -> Iterator[dict[str, Any]]:
        for job in solutions.jobs():
            known = replace(job.item.solution, right=True, sound=True)
            by = {"model": "", **facts, "seed": 0}
            made = GradedSolution("", known, teacher.prompt(known), grades, True, by, job.item.where, band="")
            yield FORMS[form](made)

    packed = {form for (form, _), output in outputs.items() if output.suffix.lower() == ".parquet"}
    return {form: schema_of(examples(form)) for form in packed}


class _Made:
    """The rows that come of the grades. Which ones are written is known before the first is."""

    def __init__(
        self,
        solutions: Solutions,
        kept: KeptAnswers,
        grading: Grading,
        template: Template,
        how: How,
        right: Mapping[str, bool | None],
    ) -> None:
        self._solutions = solutions
        self._kept = kept
        self._grading = grading
        self._right = right
        self._prompt = grading.teacher(None, template, how).prompt
        self.no_analysis = 0
        self.rightness: Counter[bool | None] = Counter()
        self.shares: dict[str, dict[str, float]] = {}
        for graded, held_out in self._graded():
            self.shares.setdefault(_part(held_out), {})[graded.id] = graded.share
            self.rightness[graded.right] += 1
        if self.shares:
            _require_parts(grading, set(self.shares), "solution has a grade in")

    @cached_property
    def _copies(self) -> dict[str, int]:
        """How often each solution of the training part is written for training."""
        shares = self.shares[TRAIN]
        return self._grading.balance.copies(shares) if self._grading.balanced else dict.fromkeys(shares, 1)

    def bands(self) -> list[tuple[str, int, int]]:
        """Return each band with its solutions before and after balancing, of the training part."""
        count = self._grading.balance.bands
        before: Counter[int] = Counter()
        after: Counter[int] = Counter()
        for name, share in self.shares.get(TRAIN, {}).items():
            band = band_of(share, count)
            before[band] += 1
            after[band] += self._copies[name]
        return [(band_name(band, count), before[band], after[band]) for band in range(count)]

    def write(self, outputs: Mapping[tuple[Form, str], Path], schemas: Mapping[Form, Any]) -> Counter[str]:
        """Write all files, or none; return how many rows each has.

        Args:
            outputs: the file of each form and part.
            schemas: of each form that has a Parquet file.
        """
        counts: Counter[str] = Counter()
        tables = [schemas.get(form) for form, _ in outputs]  # each form has columns of its own
        with all_rows_to(list(outputs.values()), overwrite=True, schema=tables) as writers:
            by_output = dict(zip(outputs, writers, strict=True))
            for graded, held_out in self._graded():
                for (form, part), write in by_output.items():
                    if part == _part(held_out):
                        for row in self._rows(graded, form, held_out):
                            write(row)
                            counts[str(outputs[form, part])] += 1
            empty = [output for output in outputs.values() if not counts[str(output)]]
            if empty:
                raise UserError(f'there is no row for "{empty[0]}": no solution has a grade with an analysis')
        return counts

    def _rows(self, graded: GradedSolution, form: Form, held_out: bool) -> Iterator[dict[str, Any]]:
        """Yield the copies of a solution; what measures a judge is neither repeated nor left out."""
        copies = 1 if held_out or form == "eval" else self._copies[graded.id]
        try:
            yield from (FORMS[form](replace(graded, copy=copy)) for copy in range(copies))
        except Unparsable:
            self.no_analysis += 1

    def _graded(self) -> Iterator[tuple[GradedSolution, bool]]:
        for job in self._solutions.jobs():
            if job.key in self._kept:
                yield self._made(job, self._kept[job.key]), job.item.held_out

    def _made(self, job: Job[Item], answer: Mapping[str, Any]) -> GradedSolution:
        item, told = job.item, answer["grades"]
        grades = Grades(**{**told, "shares": tuple(told["shares"]), "texts": tuple(told["texts"])})
        count = self._grading.balance.bands
        ruled = self._right.get(item.id)
        return GradedSolution(
            id=item.id,
            solution=item.solution,
            prompt=self._prompt(item.solution),
            grades=grades,
            right=item.solution.right if ruled is None else ruled,
            made_by=answer["by"],
            where=item.where,
            band=band_name(band_of(grades.share, count), count),
        )


__all__ = ["Grading", "grade_solutions"]
