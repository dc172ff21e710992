"""A model writes a rubric for every problem; the `rubric` reward reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from rewardsmith.config import Refers
from rewardsmith.data.prepare.model_calls import CallItem, ModelCallJob
from rewardsmith.data.prepare.prepare_job import Preparation, ReadRow, digest_of
from rewardsmith.data.rows import ABSENT, Row, RowError, describe, find
from rewardsmith.jobs import JobContext, Result
from rewardsmith.llm import Asker, Conversation
from rewardsmith.text.judge_prompts import question_of
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.quoting import harmless, quote, shortened
from rewardsmith.text.rubrics import PARSER, LeakDetector, parse_rubric, rubric_places
from rewardsmith.text.templates import Template, load_template
from rewardsmith.types import Message, Prompt

TOTAL = 10
"""Points of a rubric."""

SOLUTIONS = ("solution", "extra_info.solution")
"""Where a reference solution is looked for unless a column is named."""

FINAL = "####"
"""What stands before the final answer in a reference that ends with it."""

MAX_SOLUTION, MAX_REPLY = 20_000, 20_000
"""Characters of a reference solution, and of an unusable reply, that the model is shown."""


@dataclass(frozen=True)
class RubricProblem:
    """A problem that needs a rubric: its row, the question, right answers and a reference solution, "" for none."""

    row: Row
    question: str
    answers: tuple[str, ...]
    solution: str


class RubricJob(ModelCallJob):
    """A model writes a rubric for every problem; the rubrics are checked, and the `rubric` reward reads them.

    Each rubric has 10 points in all, checks for each way in which a right answer can be reached unsoundly, and the
    skeleton of any proof; it names neither the answer nor the words of the reference. One that lacks something is
    requested again with the reason. The output has the rows of the input with `extra_info.criteria`, in the same order.

    A file of `generate` will do as well: its answers stay in the rows, which `prepare graded` then reads.

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
        prepared = Preparation(self, limit=self.limit)
        counts = prepared.counts
        template = load_writing_template(self.template)

        def parse(read: ReadRow) -> Iterator[CallItem[RubricProblem]]:
            prompt = self.layout.prompt_of(read.row, read.file, read.number)
            problem = self._problem(read.row, prompt)
            request = writing_prompt(template, problem, hide_reference=self.hide_reference)
            key = digest_of(request, problem.question, problem.answers, problem.solution)
            prepared.require_new(read.where, problem=key, id=prompt.id)
            counts["with a right answer"] += bool(problem.answers)
            counts["with a reference solution"] += bool(problem.solution)
            yield CallItem(key, read.where, problem)

        items = await prepared.read(parse)
        prepared.require_columns(answer_column=self.answer_column, solution_column=self.solution_column)

        async def request(asker: Asker, problem: RubricProblem) -> dict[str, Any]:
            parsed = await request_rubric(asker, template, problem, hide_reference=self.hide_reference)
            rubric = parsed.value
            made_by = {
                "tries": parsed.attempts,
                "prompt_tokens": parsed.prompt_tokens,
                "tokens": parsed.tokens,
                "parts": [item.part for item in rubric.criteria],
                "checks": [list(item.checks) for item in rubric.criteria],
                "not_applicable": [{"failure": name, "why": why} for name, why in rubric.not_applicable.items()],
            }
            criteria = [item.model_dump(include={"name", "points", "text"}) for item in rubric.criteria]
            return {"criteria": criteria, "made_by": made_by}

        async def rows(reply: Callable[[str], Any]) -> Iterable[tuple[int, Row]]:
            replies = ((item.value.row, reply(item.key)) for item in items)
            return ((0, with_criteria(row, **found)) for row, found in replies if found)

        return await self.write_replies(
            context,
            prepared,
            self.writer,
            items,
            request,
            rows,
            outs=self.outs,
            made_by={**template.facts(), "parser": PARSER},
            settings={"hide_reference": self.hide_reference},
        )

    def _problem(self, row: Row, prompt: Prompt) -> RubricProblem:
        extra = row.get("extra_info")
        if extra is not None and not isinstance(extra, Mapping):
            raise RowError(f"extra_info is {describe(extra)}: it must be a table, where the criteria go")
        if not self.replace and (row.get("criteria") or (extra or {}).get("criteria")):
            raise RowError("the row has criteria already: set replace to have new ones written, or leave it out")
        question = question_of(prompt)
        if not question.strip():
            raise RowError(f"{self.prompt_column} is blank: there is no problem to write a rubric for")
        columns = SOLUTIONS if self.solution_column is None else (self.solution_column,)
        column, solution = next(
            ((column, value) for column in columns if (value := find(row, column)) is not ABSENT), ("", "")
        )
        if not isinstance(solution, str):
            raise RowError(f"{column} is {describe(solution)}: a reference solution is text")
        answers = (text.rpartition(FINAL)[2].strip() for text in right_answers(prompt))
        return RubricProblem(row, question, tuple(dict.fromkeys(filter(None, answers))), solution)


def right_answers(prompt: Prompt) -> tuple[str, ...]:
    """Return the right answers of a prompt as text, as rules read them: one, or each of a list; not tables."""
    given = prompt.answer if isinstance(prompt.answer, list | tuple) else (prompt.answer,)
    return tuple(str(one).strip() for one in given if one is not None and not isinstance(one, Mapping | list | tuple))


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


def with_criteria(row: Row, criteria: list[Any], made_by: Mapping[str, Any]) -> Row:
    """Return a row with `extra_info.criteria`, where the `rubric` reward finds them, and how they came about."""
    rest = {name: value for name, value in row.items() if name != "criteria"}  # this would be found first
    extra = {**(row.get("extra_info") or {}), "criteria": criteria, "criteria_made_by": dict(made_by)}
    return {**rest, "extra_info": extra}
