"""Problems and their solutions, from rows in verl's schema.

    {"prompt": "Find all real x with …", "reward_model": {"ground_truth": "42"}, "extra_info": {"solution": "…"}}
    {"prompt": "…", "extra_info": {"criteria": […]}, "responses": ["Let x …", "By symmetry …"]}

Rows are untrusted: whatever is wrong with one is a `RowError` that names the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rewardsmith.data.prepare.row_files import ReadRow, responses_of
from rewardsmith.data.rows import ABSENT, Layout, Row, RowError, describe, find, flag_of, no_column, without
from rewardsmith.text.judge_prompts import question_of
from rewardsmith.text.rubrics import InvalidCriteria, list_criteria, parse_criteria, total_points
from rewardsmith.types import Prompt

SOLUTIONS = ("solution", "extra_info.solution")
"""Where a reference solution is looked for unless a column is named."""

FINAL = "####"
"""What stands before the final answer in a reference that ends with it."""


@dataclass(frozen=True)
class RubricProblem:
    """A problem that needs a rubric: its row, the question, right answers and a reference solution, "" for none."""

    prompt: Prompt
    row: Row
    question: str
    answers: tuple[str, ...]
    solution: str


@dataclass(frozen=True)
class SolutionToGrade:
    """A solution with its rubric, as JSON and as a judge reads it (`shown`), and its `number` in the row.

    `right` (the final answer) and `sound` (every step) are None where the row does not have them.
    """

    prompt: Prompt
    criteria: Any
    shown: str
    total: float
    response: str
    number: int
    right: bool | None = None
    sound: bool | None = None


def read_problem(read: ReadRow, layout: Layout, solution_column: str | None, *, replace: bool) -> RubricProblem:
    """Return the problem of a row; `replace` allows rows that have criteria already."""
    row = _row(read)
    prompt = layout.prompt_of(row, read.file, read.number)
    extra = row.get("extra_info")
    if extra is not None and not isinstance(extra, Mapping):
        raise RowError(f"extra_info is {describe(extra)}: it must be a table, where the criteria go")
    if not replace and (row.get("criteria") or (extra or {}).get("criteria")):
        raise RowError("the row has criteria already: set replace to have new ones written, or leave it out")
    question = question_of(prompt)
    if not question.strip():
        raise RowError(f"{layout.prompt} is blank: there is no problem to write a rubric for")
    solution = ""
    for column in SOLUTIONS if solution_column is None else (solution_column,):
        value = find(row, column)
        if solution_column is not None and value is ABSENT and column not in row and "." not in column:
            raise no_column(column, row, "solution_column says where a row has its reference solution")
        if solution_column is not None and value is not ABSENT and not isinstance(value, str):
            raise RowError(f"{column} is {describe(value)}: a reference solution is text")
        solution = solution or (value if isinstance(value, str) else "")
    return RubricProblem(prompt, row, question, final_answers(prompt), solution)


def read_solutions(
    read: ReadRow, layout: Layout, response_column: str | None, criteria_column: str, total: float
) -> list[SolutionToGrade]:
    """Return the solutions of a row, blank ones included; `total` is for criteria that are text."""
    row = _row(read)
    column, texts, is_list = responses_of(row, response_column)
    flags = {name: _flags(row, name, len(texts), is_list) for name in ("right", "sound")}
    prompt = layout.prompt_of(without(row, [column, *flags]), read.file, read.number)
    criteria, shown, points = _criteria(row, criteria_column, total)
    return [
        SolutionToGrade(prompt, criteria, shown, points, text, i, flags["right"][i], flags["sound"][i])
        for i, text in enumerate(texts)
    ]


def _row(read: ReadRow) -> Row:
    if isinstance(read.row, RowError):
        raise read.row
    return read.row


def _criteria(row: Row, column: str, total: float) -> tuple[Any, str, float]:
    """Return the criteria as JSON, as a judge reads them, and their points in all."""
    value = find(row, f"extra_info.{column}") if row.get(column) is None else row[column]
    try:
        found = parse_criteria(None if value is ABSENT else value, column, "the row")
    except InvalidCriteria as error:
        raise RowError(f"{error}. `rewardsmith prepare rubric` writes them") from None
    if isinstance(found, str):
        return found, found, total
    if any(criterion.points < 0 for criterion in found):
        raise RowError(f"{column} has negative points: a whole rubric is graded from 0 to its points")
    given = [entry.get("name") if isinstance(entry, Mapping) else None for entry in value]
    names = [name if isinstance(name, str) and name else one.name for name, one in zip(given, found, strict=True)]
    tables = [{"name": name, "points": one.points, "text": one.text} for name, one in zip(names, found, strict=True)]
    return tables, list_criteria(found), total_points(found)


def _flags(row: Row, name: str, count: int, is_list: bool) -> list[bool | None]:
    """Return a flag for each solution of a row: a list for a list, one value for one."""
    value = row.get(name)
    if value is None:
        return [None] * count
    if not is_list:
        return [flag_of(name, value)]
    if not isinstance(value, list) or len(value) != count:
        raise RowError(f"{name} is {describe(value)}: for {count} solutions it must be a list of as many")
    return [None if one is None else flag_of(f"{name}[{i}]", one) for i, one in enumerate(value)]


def right_answers(prompt: Prompt) -> tuple[str, ...]:
    """Return the right answers of a prompt as text, as rules read them: one, or each of a list; not tables."""
    given = prompt.answer if isinstance(prompt.answer, list | tuple) else (prompt.answer,)
    return tuple(str(one).strip() for one in given if one is not None and not isinstance(one, Mapping | list | tuple))


def final_answers(prompt: Prompt) -> tuple[str, ...]:
    """Return the right answers alone: of a reference that ends with `#### 72`, as those of GSM8K do, the 72."""
    found = (text.rpartition(FINAL)[2].strip() for text in right_answers(prompt))
    return tuple(text for text in dict.fromkeys(found) if text)


__all__ = ["RubricProblem", "SolutionToGrade", "final_answers", "read_problem", "read_solutions", "right_answers"]
