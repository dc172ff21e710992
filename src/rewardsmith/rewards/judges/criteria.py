"""What an answer is graded by: text, or a list of criteria with points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from rewardsmith.components import Settings
from rewardsmith.errors import UserError
from rewardsmith.rewards.protocol import CannotScore
from rewardsmith.rewards.rules.truth import extra
from rewardsmith.text.grading import plain
from rewardsmith.types import Prompt

MOST = 200
"""Criteria of one prompt; in the mode of one call each they are so many calls for every rollout."""

MOST_POINTS = 10_000
"""In all, and for one: a judge writes the number out."""

DECIMALS = 6
"""Of points: those that a judge is shown are those that are counted."""


class CriterionSettings(Settings):
    """One criterion of a recipe."""

    text: str = Field(min_length=1, description="what an answer must do")
    points: float = Field(default=1.0, description="what it is worth; below 0 for a fault, where it is met or not met")
    name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="of its part in scores and metrics; not set: c1, c2 and so on",
    )


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


def from_recipe(given: Sequence[CriterionSettings]) -> tuple[Criterion, ...]:
    """Return the criteria of a recipe, each with a name."""
    made = tuple(_rounded(one.text, one.points, one.name or f"c{i}") for i, one in enumerate(given, 1))
    names = [criterion.name for criterion in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"criteria has two called {twice!r}: parts of a score have different names")
    wrong = what_is_wrong(made)
    if wrong:
        raise UserError(f"criteria {wrong}")
    return made


def of_prompt(prompt: Prompt, field: str) -> str | tuple[Criterion, ...]:
    """Return the criteria that came with a prompt, as text or as a list.

    An entry of a list is text, worth one point, or a table with `text` (or `criterion`) and `points` (or `weight`).

    Raises:
        CannotScore: it has none, or they cannot be read.
    """
    found = extra(prompt, field)
    if isinstance(found, str) and found.strip():
        return found.strip()
    if not isinstance(found, list | tuple) or not found:
        what = "no" if found is None or not found else "an unreadable"
        raise CannotScore("invalid", f"the prompt {prompt.id!r} has {what} {field!r}: text, or a list of criteria")
    made = tuple(_entry(prompt, field, i, entry) for i, entry in enumerate(found, 1))
    wrong = what_is_wrong(made)
    if wrong:
        raise CannotScore("invalid", f"{field!r} of the prompt {prompt.id!r} {wrong}")
    return made


def _entry(prompt: Prompt, field: str, number: int, entry: object) -> Criterion:
    table = entry if isinstance(entry, Mapping) else {"text": entry}
    text = table.get("text", table.get("criterion"))
    points = table.get("points", table.get("weight", 1.0))
    if not isinstance(text, str) or not text.strip():
        raise CannotScore("invalid", f"entry {number} of {field!r} of the prompt {prompt.id!r} has no text")
    if isinstance(points, bool) or not isinstance(points, int | float) or not math.isfinite(points):
        raise CannotScore("invalid", f"entry {number} of {field!r} of the prompt {prompt.id!r} has no number of points")
    return _rounded(text.strip(), float(points), f"c{number}")


def _rounded(text: str, points: float, name: str) -> Criterion:
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


__all__ = ["Criterion", "CriterionSettings", "from_recipe", "listed", "of_prompt", "total_of", "what_is_wrong"]
