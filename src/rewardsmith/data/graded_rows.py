"""One row of a data file as a `Graded`.

{"prompt": "7+5?", "response": "12", "grade": 1.0, "right": true, "sound": true}
{"prompt": "7+5?", "response": "12", "points": 7, "out_of": 10}
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rewardsmith.data.columns import Columns
from rewardsmith.data.fields import ABSENT, Row, RowError, blaming, find, flag_of, has, no_column, number_of, text_of
from rewardsmith.data.rows import Layout
from rewardsmith.types import Graded


@dataclass(frozen=True)
class GradedRows:
    """Reads answers with grades.

    Attributes:
        layout: where a row has its prompt, response, id, source and answer.
        columns: where it has the rest.
        out_of: points that there are in all, in rows that do not say.
    """

    layout: Layout
    columns: Columns
    out_of: float | None = None

    def require(self, columns: Collection[str]) -> None:
        """Raise a `RowError` when a table with these columns cannot hold grades."""
        self.layout.require(columns, demonstrations=False)
        if not has(columns, self.layout.response):
            raise self._no_response(columns)
        if not any(self.columns.has(columns, key) for key in ("grade", "points")):
            raise self._no_grade(columns)

    def read(self, row: Row, file: str, number: int) -> Graded:
        """Return the graded answer of a row; `file` and `number` name a row that has no id of its own."""
        response = find(row, self.layout.response)
        if response is ABSENT:
            raise self._no_response(row)
        messages, asked_at = self.layout.asked(row)
        grade, used = self._grade(row)
        known: dict[str, bool | None] = {}
        for key in ("right", "sound"):
            name, value = self.columns.find(row, key)
            known[key] = None if value is ABSENT else flag_of(name, value)
            used.append(name)
        used += [asked_at, self.layout.response]
        prompt = self.layout.prompt_with(row, messages, used, file, number)
        with blaming(self.layout.response):
            return Graded(prompt, text_of(self.layout.response, response), grade, known["right"], known["sound"])

    def _grade(self, row: Row) -> tuple[float, list[str]]:
        """Return the grade from 0 to 1, and the columns that say so."""
        name, value = self.columns.find(row, "grade")
        if value is not ABSENT and not self._has_points(row):
            grade = float(value) if isinstance(value, bool) else number_of(name, value)
            if not 0 <= grade <= 1:
                raise RowError(
                    f'{name} is {grade:g}: from 0 to 1. For points, set columns.points = "{name}" and out_of'
                )
            return grade, [name]
        name, value = self.columns.find(row, "points")
        if value is ABSENT:
            raise self._no_grade(row)
        points = number_of(name, value)
        total_at, value = self.columns.find(row, "out_of")
        total = self.out_of if value is ABSENT else number_of(total_at, value)
        if total is None:
            raise RowError(f"there is no {total_at} beside {name}: out_of says how many points there are in all")
        if not 0 <= points <= total or total <= 0:
            raise RowError(f"{name} is {points:g} out of {total:g}: from 0 to the points that there are in all")
        return points / total, [name, total_at]

    def _has_points(self, row: Row) -> bool:
        """Whether the user has said where points are, and the row has them: a column `grade` says nothing then."""
        named = self.columns.named
        return "points" in named and "grade" not in named and self.columns.find(row, "points")[1] is not ABSENT

    def _no_response(self, columns: Collection[str]) -> RowError:
        what = "response_column says where a row has the answer that was graded"
        return no_column(self.layout.response, columns, what)

    def _no_grade(self, columns: Collection[str]) -> RowError:
        return self.columns.missing(columns, "grade", "a grade from 0 to 1", "points")
