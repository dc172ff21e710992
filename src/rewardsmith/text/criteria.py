"""Criteria with points: what a rubric is made of, for who writes one and for who grades by it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rewardsmith.text.grading import plain

MOST = 200
"""Criteria of one prompt; in the mode of one call each they are so many calls for every rollout."""

MOST_POINTS = 10_000
"""In all, and for one: a judge writes the number out."""

DECIMALS = 6
"""Of points: those that a judge is shown are those that are counted."""


@dataclass(frozen=True)
class Criterion:
    """Something that an answer does or does not do.

    Attributes:
        text: what.
        points: what it is worth; negative for a fault.
        name: of its part in a score.
    """

    text: str
    points: float
    name: str


class NotCriteria(ValueError):  # noqa: N818 it says what is, not what went wrong in the program
    """A value is no rubric; the message is a sentence that names it."""


def read_criteria(value: object, field: str, owner: str) -> str | tuple[Criterion, ...]:
    """Return criteria that came with a prompt, as text or as a list.

    An entry of a list is text, worth one point, or a table with `text` (or `criterion`) and `points` (or `weight`).

    Args:
        value: JSON.
        field: what it is called, such as `criteria`.
        owner: whose it is, such as `the prompt 'p1'`, for messages.

    Raises:
        NotCriteria: there are none, or they cannot be read.
    """
    if isinstance(value, str) and value.strip():
        return value.strip()
    if not isinstance(value, list | tuple) or not value:
        how = "no" if not value else "an unreadable"
        raise NotCriteria(f"{owner} has {how} {field!r}: text, or a list of criteria")
    what = f"{field!r} of {owner}"
    made = tuple(_entry(entry, number, what) for number, entry in enumerate(value, 1))
    wrong = what_is_wrong(made)
    if wrong:
        raise NotCriteria(f"{what} {wrong}")
    return made


def _entry(entry: object, number: int, what: str) -> Criterion:
    table = entry if isinstance(entry, Mapping) else {"text": entry}
    text = table.get("text", table.get("criterion"))
    points = table.get("points", table.get("weight", 1.0))
    if not isinstance(text, str) or not text.strip():
        raise NotCriteria(f"entry {number} of {what} has no text")
    if isinstance(points, bool) or not isinstance(points, int | float) or not _finite(points):
        raise NotCriteria(f"entry {number} of {what} has no number of points")
    return rounded(text.strip(), float(points), f"c{number}")


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer that no float can hold
        return False


def rounded(text: str, points: float, name: str) -> Criterion:
    """Return a criterion whose points have as many decimals as are shown."""
    return Criterion(text, round(points, DECIMALS), name)


def what_is_wrong(criteria: Sequence[Criterion]) -> str:
    """Return why these cannot be summed to a share; "" if they can."""
    if len(criteria) > MOST:
        return f"has {len(criteria)} entries: at most {MOST}"
    if any(criterion.points == 0 for criterion in criteria):
        return "has an entry of 0 points"
    if sum(abs(criterion.points) for criterion in criteria) > MOST_POINTS:
        return f"has more than {MOST_POINTS:,} points in all"
    return "" if any(criterion.points > 0 for criterion in criteria) else "has nothing that earns points"


def total_of(criteria: Sequence[Criterion]) -> float:
    """Return the points that can be had."""
    return round(sum(criterion.points for criterion in criteria if criterion.points > 0), DECIMALS)


def listed(criteria: Sequence[Criterion]) -> str:
    """Return the criteria as a judge reads them: a numbered list with points."""
    return "\n".join(f"{i}. (points: {plain(c.points)}) {c.text}" for i, c in enumerate(criteria, 1))


__all__ = [
    "DECIMALS",
    "MOST_POINTS",
    "Criterion",
    "NotCriteria",
    "listed",
    "read_criteria",
    "rounded",
    "total_of",
    "what_is_wrong",
]
