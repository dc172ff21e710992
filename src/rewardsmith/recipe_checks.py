"""What is wrong with a recipe that its tables alone do not show: rewards are made once, and asked what they have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rewardsmith.config import Chosen
from rewardsmith.errors import Problem, RecipeError, UserError, listing, nearest
from rewardsmith.masking import shown
from rewardsmith.recipe import Recipe
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.tree import has_part, walk
from rewardsmith.trainers.evaluate.evaluate_policy import require_free

_BY_SEQUENCE = "sequence-mean-token-mean"


def check_rewards(recipe: Recipe, source: str = "recipe") -> None:
    """Make every reward once: what is wrong between the settings of one, or with what names its parts, is found here.

    Raises:
        RecipeError: with a problem for each reward that cannot be made, and for each name of a part that is none.
    """
    problems = [problem for i, stage in enumerate(recipe.stages) for problem in _wrong(f"stages.{i}", stage)]
    if problems:
        raise RecipeError(source, problems)


def warnings(recipe: Recipe) -> Iterator[str]:
    """Yield what can be run, but is seldom meant."""
    for i, stage in enumerate(recipe.stages):
        loss, reduction = getattr(stage.settings, "loss", None), getattr(stage.settings, "reduction", None)
        if loss is None or reduction is None or ":" in reduction.name:
            continue
        if loss.name in ("gspo", "gmpo") and reduction.name != _BY_SEQUENCE:
            yield (
                f'stages.{i}.reduction = "{reduction.name}" weighs long answers more than short ones, but the loss'
                f' "{loss.name}" is one of whole answers: its paper averages over them. Set reduction ='
                f' "{_BY_SEQUENCE}"'
            )


def _wrong(path: str, stage: Chosen) -> Iterator[Problem]:
    settings: Any = stage.settings
    whole: Component | None = None
    for where, place in ((path, settings), (f"{path}.validation", getattr(settings, "validation", None))):
        made: dict[str, Component] = {}
        for setting in ("reward", "reasoning_check"):
            chosen: Chosen | None = getattr(place, setting, None)
            if chosen is not None:
                try:
                    made[setting] = Component.root(chosen)
                except UserError as error:
                    yield Problem(f"{where}.{setting}", str(error))
        scores = made.get("reward", whole)
        if "reasoning_check" in made and scores is not None:
            try:
                require_free(scores)
            except UserError as error:
                yield Problem(f"{where}.reasoning_check", str(error))
        whole = whole or made.get("reward")
    part = getattr(getattr(settings, "select", None), "part", "")
    if part and whole is not None and not has_part(whole, part):
        known = [name for name, _ in walk(whole) if name]
        yield Problem(
            f"{path}.select.part",
            f"is no part of the reward.{nearest(part, known)} Known: {listing(known)}",
            shown(part),
        )
