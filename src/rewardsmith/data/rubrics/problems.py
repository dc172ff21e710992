"""Problems and their solutions, from rows in verl's schema.

    {"prompt": "Find all real x with …", "reward_model": {"ground_truth": "42"}, "extra_info": {"solution": "…"}}
    {"prompt": "…", "extra_info": {"criteria": […]}, "responses": ["Let x …", "By symmetry …"]}

Rows are untrusted: whatever is wrong with one is a `RowError` that names the field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardsmith.data.rows import ABSENT, Layout, Row, RowError, describe, find, flag_of, no_column
from rewardsmith.errors import UserError
from rewardsmith.text.judge_prompts import question_of
from rewardsmith.text.rubrics import Criterion, InvalidCriteria, list_criteria, parse_criteria, total_points
from rewardsmith.types import Message, Prompt

SOLUTIONS = ("solution", "extra_info.solution")
"""Where a reference solution is looked for, unless a column is named."""

RESPONSES = ("responses", "response")
"""Where solutions to grade are looked for, unless a column is named."""

FINAL = "####"
"""What stands before the final answer in a reference that ends with it."""


@dataclass(frozen=True)
class Problem:
    """A problem for which a rubric is to be written.

    Attributes:
        prompt: of its row.
        row: all of it, as it was read.
        question: what is asked.
        answers: right answers; empty where the row has none.
        solution: a reference solution, "" where the row has none.
    """

    prompt: Prompt
    row: Row
    question: str
    answers: tuple[str, ...]
    solution: str


@dataclass(frozen=True)
class ProblemRows:
    """Reads problems.

    Attributes:
        layout: where a row has its prompt, answer, id and source.
        solution: column with the reference solution; None looks into `SOLUTIONS`.
        replace: whether a row may have criteria already.
    """

    layout: Layout
    solution: str | None = None
    replace: bool = False

    def read(self, row: Row, file: str, number: int) -> Problem:
        """Return the problem of a row; `file` and `number` name a row that has no id of its own."""
        prompt = _prompt_of(self.layout, row, file, number)
        extra = row.get("extra_info")
        if extra is not None and not isinstance(extra, Mapping):
            raise RowError(f"extra_info is {describe(extra)}: it must be a table, for the criteria to go there")
        if not self.replace and (row.get("criteria") or (extra or {}).get("criteria")):
            raise RowError("the row has criteria already: add --replace to have new ones written, or leave it out")
        question = question_of(prompt)
        if not question.strip():
            raise RowError(f"{self.layout.prompt} is blank: there is no problem to write a rubric for")
        return Problem(prompt, row, question, answers_of(prompt), self._solution(row))

    def _solution(self, row: Row) -> str:
        for column in SOLUTIONS if self.solution is None else (self.solution,):
            value = find(row, column)
            if isinstance(value, str):
                return value
            if value is not ABSENT and self.solution is not None:
                raise RowError(f"{column} is {describe(value)}: a reference solution is text")
        if self.solution is not None and self.solution not in row and "." not in self.solution:
            raise no_column(self.solution, row, "--solution-column says where a row has its reference solution")
        return ""


def _prompt_of(layout: Layout, row: Row, file: str, number: int) -> Prompt:
    """Return the prompt of a row; what is wrong is told with the options of a command, not the settings of a recipe."""
    try:
        return layout.prompt_of(row, file, number)
    except RowError as error:
        text = str(error).replace("prompt_column says", "--prompt-column says")
        raise RowError(text.replace('id_column = "" numbers the rows instead', "leave it out, or null")) from None


def no_such_column(option: str, column: str, columns: Collection[str], what: str) -> UserError:
    """Return the error for a column that a user named and no row has.

    Args:
        option: that named it.
        column: its name.
        columns: those that there are.
        what: is in it, such as `the right answer`.
    """
    return UserError(f"no row has {what}: {no_column(column, columns, f'{option} says where a row has it')}")


def truths_of(prompt: Prompt) -> tuple[str, ...]:
    """Return the right answers of a prompt as text, as rules read them: one, or each of a list; not tables."""
    given = prompt.answer if isinstance(prompt.answer, list | tuple) else (prompt.answer,)
    return tuple(str(one).strip() for one in given if one is not None and not isinstance(one, Mapping | list | tuple))


def answers_of(prompt: Prompt) -> tuple[str, ...]:
    """Return the right answers alone: of a reference that ends with `#### 72`, as those of GSM8K do, the 72."""
    found = (text.rpartition(FINAL)[2].strip() for text in truths_of(prompt))
    return tuple(text for text in dict.fromkeys(found) if text)


@dataclass(frozen=True)
class Solution:
    """A solution that is to be graded.

    Attributes:
        prompt: the problem.
        criteria: its rubric, as JSON.
        shown: the same as a judge reads it.
        total: points in all.
        response: the solution.
        number: which of the row's it is, from 0.
        right: whether its final answer is right, where the row says so.
        sound: whether every step holds, where the row says so.
    """

    prompt: Prompt
    criteria: Any
    shown: str
    total: float
    response: str
    number: int
    right: bool | None = None
    sound: bool | None = None

    @property
    def question(self) -> str:
        """What is asked."""
        return question_of(self.prompt)


@dataclass(frozen=True)
class SolutionRows:
    """Reads solutions.

    Attributes:
        layout: where a row has its prompt, answer, id and source.
        responses: column with a list of solutions or with one; None looks into `RESPONSES`.
        field: where a row, or its `extra_info`, has the criteria.
        total: points in all, where the criteria are text.
    """

    layout: Layout
    responses: str | None = None
    field: str = "criteria"
    total: float = 10.0

    def read(self, row: Row, file: str, number: int) -> list[Solution]:
        """Return the solutions of a row, those that are blank included."""
        column, texts = self._texts(row)
        flags = {name: _flags(row, name, len(texts), isinstance(row[column], list)) for name in ("right", "sound")}
        rest = {name: value for name, value in row.items() if name not in (column, *flags)}
        prompt = _prompt_of(self.layout, rest, file, number)
        criteria, shown, total = self._criteria(row)
        return [
            Solution(prompt, criteria, shown, total, text, i, flags["right"][i], flags["sound"][i])
            for i, text in enumerate(texts)
        ]

    def _texts(self, row: Row) -> tuple[str, list[str]]:
        names = RESPONSES if self.responses is None else (self.responses,)
        column = next((name for name in names if row.get(name) is not None), None)
        if column is None:
            also = " and no response" if self.responses is None else ""
            raise no_column(names[0], row, "--response-column says where a row has its solutions", also=also)
        value = row[column]
        texts = value if isinstance(value, list) else [value]
        if not texts:
            raise RowError(f"{column} is an empty list: a row needs at least one solution")
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                where = f"{column}[{i}]" if isinstance(value, list) else column
                raise RowError(f"{where} is {describe(text)}: a solution is text")
        return column, texts

    def _criteria(self, row: Row) -> tuple[Any, str, float]:
        """Return the criteria as JSON, as a judge reads them, and their points in all."""
        nested = find(row, f"extra_info.{self.field}")
        value = nested if row.get(self.field) is None else row[self.field]
        try:
            found = parse_criteria(None if value is ABSENT else value, self.field, "the row")
        except InvalidCriteria as error:
            raise RowError(f"{error}. `rewardsmith prepare rubric` writes them") from None
        if isinstance(found, str):
            return found, found, self.total
        if any(criterion.points < 0 for criterion in found):
            raise RowError(f"{self.field} has negative points: a whole rubric is graded from 0 to its points")
        names = [entry.get("name") if isinstance(entry, Mapping) else None for entry in value]
        return _tables(found, names), list_criteria(found), total_points(found)


def _tables(criteria: Sequence[Criterion], names: Sequence[object]) -> list[dict[str, Any]]:
    return [
        {"name": name if isinstance(name, str) and name else one.name, "points": one.points, "text": one.text}
        for one, name in zip(criteria, names, strict=True)
    ]


def _flags(row: Row, name: str, count: int, listed: bool) -> list[bool | None]:
    """Return what a row says of each of its solutions: a list beside a list, one value beside one."""
    value = row.get(name)
    if value is None:
        return [None] * count
    if not listed:
        return [flag_of(name, value)]
    if not isinstance(value, list) or len(value) != count:
        raise RowError(f"{name} is {describe(value)}: beside {count} solutions it must be a list of as many")
    return [None if one is None else flag_of(f"{name}[{i}]", one) for i, one in enumerate(value)]


def digest_of(*parts: object) -> str:
    """Return what a question is known by: 32 hexadecimal digits that depend on all parts: JSON values or messages."""

    def plain(part: object) -> object:
        if isinstance(part, Message):
            return [part.role, part.content]
        return [plain(one) for one in part] if isinstance(part, list | tuple) else part

    text = json.dumps(plain(parts), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


__all__ = [
    "Problem",
    "ProblemRows",
    "Solution",
    "SolutionRows",
    "answers_of",
    "digest_of",
    "no_such_column",
    "truths_of",
]
