"""From the text of a judge to a number between two bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rewardsmith.errors import UserError
from rewardsmith.text.grades import read_grade
from rewardsmith.text.ratings import read_field, read_number
from rewardsmith.text.reading import Unreadable
from rewardsmith.text.verdicts import read_boolean

Read = Literal["score", "number", "boolean", "json"]


@dataclass(frozen=True)
class Scale:
    """How a number is found, and what it is worth.

    Attributes:
        read: `score` after a marker, `number` as the last line, `boolean` as yes or no, `json` as a field of an object.
        marker: of `score`.
        key: of `json`.
        lowest: no number is below.
        highest: no number is above.
        mapped: whether lowest becomes 0 and highest 1.
    """

    read: Read
    marker: str
    key: str
    lowest: float
    highest: float
    mapped: bool

    def __post_init__(self) -> None:
        """Refuse bounds that are none."""
        if not self.highest > self.lowest:
            raise UserError(f"highest = {self.highest:g} must be above lowest = {self.lowest:g}")
        if self.read == "score" and self.lowest < 0:
            raise UserError('read = "score" knows no negative numbers: take read = "number" or "json"')

    def value(self, text: str) -> float:
        """Return the value of an answer; yes is 1 and no is 0.

        Raises:
            Unreadable: it has none, or one outside the bounds.
        """
        if self.read == "boolean":
            return float(read_boolean(text))
        number = self._number(text)
        if not self.lowest <= number <= self.highest:
            bounds = f"from {self.lowest:g} to {self.highest:g}"
            raise Unreadable("outside the bounds", f"{number:g} is not {bounds}", invalid=True)
        return (number - self.lowest) / (self.highest - self.lowest) if self.mapped else number

    def _number(self, text: str) -> float:
        if self.read == "number":
            return read_number(text)
        if self.read == "json":
            return read_field(text, self.key)
        grade = read_grade(text, self.highest, marker=self.marker)
        if grade.out_of == self.highest:
            return grade.points
        if self.lowest != 0:  # 4/5 on a scale from 1 to 10 could be many things
            raise Unreadable("another scale", f"out of {grade.out_of:g}, not {self.highest:g}", invalid=True)
        return grade.share * self.highest


__all__ = ["Read", "Scale"]
