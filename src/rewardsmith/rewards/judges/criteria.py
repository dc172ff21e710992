"""What an answer is graded by: text, or a list of criteria with points."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rewardsmith.config import Settings
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.truth import extra
from rewardsmith.text.rubrics import (
    DECIMALS,
    MAX_POINTS,
    Criterion,
    InvalidCriteria,
    criteria_problem,
    list_criteria,
    parse_criteria,
    rounded,
    total_points,
)
from rewardsmith.types import Prompt


class CriterionSettings(Settings):
    """One criterion of a recipe."""

    text: str = Field(min_length=1, description="what an answer must do")
    points: float = Field(default=1.0, description="what it is worth; below 0 for a fault, where it is met or not met")
    name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="of its part in scores and metrics; not set: c1, c2 and so on",
    )


def from_recipe(given: Sequence[CriterionSettings]) -> tuple[Criterion, ...]:
    """Return the criteria of a recipe, each with a name."""
    made = tuple(rounded(one.text, one.points, one.name or f"c{i}") for i, one in enumerate(given, 1))
    names = [criterion.name for criterion in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"criteria has two called {twice!r}: parts of a score have different names")
    wrong = criteria_problem(made)
    if wrong:
        raise UserError(f"criteria {wrong}")
    return made


def of_prompt(prompt: Prompt, field: str) -> str | tuple[Criterion, ...]:
    """Return the criteria that came with a prompt, as text or as a list; see `parse_criteria`.

    Raises:
        CannotScore: it has none, or they cannot be read.
    """
    try:
        return parse_criteria(extra(prompt, field), field, f"the prompt {prompt.id!r}")
    except InvalidCriteria as error:
        raise CannotScore("invalid", str(error)) from None


__all__ = [
    "DECIMALS",
    "MAX_POINTS",
    "Criterion",
    "CriterionSettings",
    "from_recipe",
    "list_criteria",
    "of_prompt",
    "total_points",
    "criteria_problem",
]
