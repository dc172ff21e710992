"""From the text of a judge to a number between two bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rewardsmith.errors import UserError
from rewardsmith.rewards.judges.unused import require_unset
from rewardsmith.text import grades, verdicts
from rewardsmith.text.grades import parse_field, parse_grade, parse_rating
from rewardsmith.text.judge_prompts import format_number
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.verdicts import parse_boolean

Read = Literal["score", "number", "boolean", "json"]


LARGEST = 999_999
"""The largest number that is read after a marker."""


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
            raise UserError(
                f"highest = {format_number(self.highest)} must be above lowest = {format_number(self.lowest)}"
            )
        if self.read == "score" and self.lowest < 0:
            raise UserError('read = "score" knows no negative numbers: take read = "number" or "json"')
        if self.read == "score" and self.highest > LARGEST:
            raise UserError(
                f'read = "score" reads numbers up to {LARGEST:,}: highest = {format_number(self.highest)} is more'
            )

    @property
    def parser(self) -> str:
        """The version of what reads an answer."""
        return {"score": grades.PARSER, "boolean": verdicts.PARSER}.get(self.read, grades.NUMBER_PARSER)

    def value(self, text: str) -> float:
        """Return the value of an answer; yes is 1 and no is 0.

        Raises:
            Unparsable: it has none, or one outside the bounds.
        """
        if self.read == "boolean":
            return float(parse_boolean(text))
        number = self._number(text)
        if not self.lowest <= number <= self.highest:
            bounds = f"from {self.lowest:g} to {self.highest:g}"
            raise Unparsable("outside the bounds", f"{number:g} is not {bounds}", invalid=True)
        return (number - self.lowest) / (self.highest - self.lowest) if self.mapped else number

    def _number(self, text: str) -> float:
        if self.read == "number":
            return parse_rating(text)
        if self.read == "json":
            return parse_field(text, self.key)
        grade = parse_grade(text, self.highest, marker=self.marker)
        if grade.out_of == self.highest:
            return grade.points
        if self.lowest != 0:  # 4/5 on a scale from 1 to 10 could be many things
            raise Unparsable("another scale", f"out of {grade.out_of:g}, not {self.highest:g}", invalid=True)
        return grade.share * self.highest


@dataclass(frozen=True)
class Reading:
    """How a recipe says that an answer is read; None is not set.

    Attributes:
        read: and the others, as in `Scale`.
    """

    read: Read | None
    marker: str | None
    key: str | None
    lowest: float | None
    highest: float | None
    mapped: bool | None

    @property
    def least(self) -> float:
        """The worst number."""
        return 0.0 if self.lowest is None else self.lowest

    @property
    def most(self) -> float:
        """The best number."""
        return 10.0 if self.highest is None else self.highest

    def require_used(self, *, postprocess: bool, bounds_shown: bool, built_in: bool) -> None:
        """Raise a `UserError` if something is set that does nothing, or that contradicts the prompt.

        Args:
            postprocess: whether a function of the user's reads the answer instead.
            bounds_shown: whether the prompt shows the bounds.
            built_in: whether the prompt is the built-in one, which asks for `Score: X`.
        """
        read = self.read or "score"
        bounds = {} if bounds_shown else {"lowest": self.lowest, "highest": self.highest}
        if postprocess:
            require_unset("postprocess", read=self.read, marker=self.marker, key=self.key, scale=self.mapped, **bounds)
            return
        if read == "boolean":
            require_unset('read = "boolean"', scale=self.mapped, **bounds)
        if read != "score":
            require_unset(f'read = "{read}"', marker=self.marker)
        if read != "json":
            require_unset(f'read = "{read}"', key=self.key)
        marker = (self.marker or "Score").strip()
        if built_in and (read != "score" or marker.lower() != "score"):
            odd = f'read = "{read}"' if read != "score" else f'marker = "{marker}"'
            raise UserError(f"the built-in template asks for a line `Score: X`: {odd} needs a template of your own")

    def scale(self) -> Scale:
        """Return the scale, with what is not set filled in."""
        mapped = self.mapped is not False
        return Scale(self.read or "score", self.marker or "Score", self.key or "score", self.least, self.most, mapped)


__all__ = ["Read", "Reading", "Scale", "format_number"]
