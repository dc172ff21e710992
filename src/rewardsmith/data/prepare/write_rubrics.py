"""A model writes a rubric for every problem; the `rubric` reward reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from rewardsmith.config import Refers
from rewardsmith.data.prepare.model_calls import CallItem, ModelCallJob
from rewardsmith.data.prepare.prepare_job import collect, write_prepared
from rewardsmith.data.prepare.row_files import Duplicates, RowFiles
from rewardsmith.data.prepare.rubric_rows import RubricProblem, read_problem
from rewardsmith.data.prepare.splits import digest_of
from rewardsmith.data.rows import ANSWER, BadRows, Row, RowError, no_column
from rewardsmith.errors import UserError
from rewardsmith.jobs import JobContext, Result
from rewardsmith.llm import Asker, Conversation
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.quoting import harmless, quote, shortened
from rewardsmith.text.rubrics import PARSER, LeakDetector, WrittenRubric, parse_rubric, rubric_places
from rewardsmith.text.templates import Template, load_template
from rewardsmith.types import Message

TOTAL = 10
"""Points of a rubric."""

MAX_SOLUTION, MAX_REPLY = 20_000, 20_000
"""Characters of a reference solution, and of an unusable reply, that the model is shown."""


class RubricJob(ModelCallJob):
    """A model writes a rubric for every problem; the rubrics are checked, and the `rubric` reward reads them.

    Each rubric has 10 points in all, checks for each way in which a right answer can be reached unsoundly, and the
    skeleton of any proof; it names neither the answer nor the words of the reference. One that lacks something is
    requested again with the reason. The output has the rows of the input with `extra_info.criteria`, in the same order.

    Replies are kept as they come: after Ctrl-C or a crash the same command continues.

    `rewardsmith prepare rubric problems.jsonl rubrics.jsonl --models models.toml --writer strong`

    Show the first requests and replies:

    `rewardsmith prepare rubric problems.jsonl try.jsonl --models models.toml --writer strong --show-prompts 3`
    """

    command = "prepare rubric"
    unit = "rubrics"

    writer: Annotated[str, Refers("models", offer="chat"), Field(description="the model that writes")]
    solution_column: str | None = Field(
        default=None, description="a reference solution; not set: solution, or extra_info.solution"
    )
    hide_reference: bool = Field(default=False, description="do not show the model the right answer and the solution")
    replace: bool = Field(default=False, description="write new criteria for rows that have some")
    template: str = Field(default="write_rubric", description="the prompt: a built-in one, or the path of a file")

    async def run(self, context: JobContext) -> Result:
        """Request the rubrics that are missing, and write the rows that have one."""
        files, bad, counts = RowFiles(self.input, self.limit), BadRows(skip=self.skip_bad), Counter[str]()
        template = load_writing_template(self.template)
        made_by = {**template.facts(), "parser": PARSER}
        items = await collect(self._items(files, template, bad, counts))
        bad.settle(counts["rows"])
        for column, setting, what in (
            (self.answer_column, "answer_column", "a right answer"),
            (self.solution_column, "solution_column", "a reference solution"),
        ):
            if column not in (None, ANSWER) and not counts[f"with {what}"]:
                raise UserError(f"no row has {what}: {no_column(column, files.columns, setting)}")
        with self.replies(context, files, [self.out], {**made_by, "hide_reference": self.hide_reference}) as kept:

            async def request(asker: Asker, problem: RubricProblem) -> dict[str, Any]:
                parsed = await request_rubric(asker, template, problem, hide_reference=self.hide_reference)
                tokens = {"prompt_tokens": parsed.prompt_tokens, "tokens": parsed.tokens}
                facts = {"model": kept.identity, **made_by, "seed": self.seed, "tries": parsed.attempts, **tokens}
                criteria = [item.model_dump(include={"name", "points", "text"}) for item in parsed.value.criteria]
                return {"criteria": criteria, "made_by": rubric_facts(parsed.value, facts)}

            await self.call_model(context, self.writer, items, kept, request)
            failed = len(kept.failures) / len(items)
            if failed == 1:
                return Result(notes=["nothing is written: no problem has a rubric", *kept.lines()], failed=1.0)

            def rows() -> Iterator[tuple[int, Row]]:
                for item in items:
                    if item.key in kept:
                        reply = kept[item.key]
                        counts[f"rubrics after {reply['made_by']['tries']} tries"] += 1
                        yield 0, with_criteria(item.value.row, reply["criteria"], reply["made_by"])

            facts = kept.facts()
            result = await write_prepared(
                self, context, [self.out.expanduser()], rows(), inputs=files.facts, counts=counts, bad=bad, facts=facts
            )
        return replace(result, notes=[*result.notes, *kept.lines()], failed=failed)

    def _items(
        self, files: RowFiles, template: Template, bad: BadRows, counts: Counter[str]
    ) -> Iterator[CallItem[RubricProblem]]:
        duplicates = Duplicates()
        for read in files:
            counts["rows"] += 1
            try:
                problem = read_problem(read, self.layout, self.solution_column, replace=self.replace)
                prompt = writing_prompt(template, problem, hide_reference=self.hide_reference)
                key = digest_of(prompt, problem.question, problem.answers, problem.solution)
                duplicates.refuse(read.where, problem=key, id=problem.prompt.id)
            except RowError as error:
                bad.note(read.where, error)
                continue
            counts["with a right answer"] += bool(problem.answers)
            counts["with a reference solution"] += bool(problem.solution)
            yield CallItem(key, read.where, problem)


def load_writing_template(name: str) -> Template:
    """Return the template for writing a rubric: `write_rubric`, or the path of one's own."""
    return load_template(name, known=("question", "reference", *rubric_places(TOTAL)), needed=("question",))


def writing_prompt(template: Template, problem: RubricProblem, *, hide_reference: bool = False) -> tuple[Message, ...]:
    """Return the prompt for the rubric of a problem."""
    places = rubric_places(TOTAL) | {
        "question": quote(problem.question),
        "reference": "" if hide_reference else _reference(problem),
    }
    return template.render({place: places[place] for place in template.places})


async def request_rubric(
    asker: Asker, template: Template, problem: RubricProblem, *, hide_reference: bool = False
) -> Any:
    """Return a `Parsed[WrittenRubric]` that has all that it must have; `ModelCallError` if there is none."""
    first = writing_prompt(template, problem, hide_reference=hide_reference)
    tied = LeakDetector(problem.question, problem.answers, problem.solution)
    return await asker.request(
        first,
        lambda text: parse_rubric(text, TOTAL, tied),
        revise=lambda text, error: revised_prompt(first, text, error),
    )


def revised_prompt(first: Conversation, reply: str, error: Unparsable) -> Conversation:
    """Return a prompt that shows a model its last reply and what is wrong with it.

    A truncated reply ("") is not shown; then the reason is at the end of the user's message, so that roles alternate.
    """
    if not reply.strip():
        *others, last = first
        note = f"{last.content}\n\n(An earlier answer could not be used: {error}. Be brief.)"
        return (*others, Message(last.role, note))
    wrong = (
        f"This cannot be used: {harmless(str(error))}.\n\nFix it, and write the whole answer again in the same form."
    )
    return (*first, Message("assistant", harmless(shortened(reply, MAX_REPLY))), Message("user", wrong))


def _reference(problem: RubricProblem) -> str:
    """Return the section with what is known of the right answer; "" where nothing is."""
    parts = []
    if problem.answers:
        parts += ["The right answer:", quote("\nor: ".join(problem.answers), MAX_SOLUTION)]
    if problem.solution.strip():
        parts += ["One solution among others:", quote(problem.solution, MAX_SOLUTION)]
    note = "This is for you alone. The rubric must not name it, and must not prefer its approach."
    return "\n".join(["", "## Reference", "", note, "", *parts, ""]) if parts else ""


def rubric_facts(rubric: WrittenRubric, made_by: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row keeps of its rubric besides the criteria: who wrote it, and what each item is for."""
    return {
        **made_by,
        "parts": [item.part for item in rubric.criteria],
        "checks": [item.checks for item in rubric.criteria],
        "not_applicable": [{"failure": name, "why": why} for name, why in rubric.not_applicable.items()],
    }


def with_criteria(row: Row, criteria: list[Any], made_by: Mapping[str, Any]) -> Row:
    """Return a row with `extra_info.criteria`, where the `rubric` reward finds them, and how they came about."""
    rest = {name: value for name, value in row.items() if name != "criteria"}  # this would be found first
    extra = {**(row.get("extra_info") or {}), "criteria": criteria, "criteria_made_by": dict(made_by)}
    return {**rest, "extra_info": extra}


__all__ = ["RubricJob", "load_writing_template", "request_rubric", "revised_prompt", "writing_prompt"]
