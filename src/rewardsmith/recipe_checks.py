"""The rewards of a recipe, built once; and warnings about settings that seldom go together."""

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


class RewardTrees:
    """The rewards of a recipe, each built once.

    Raises:
        RecipeError: with a problem for each reward that cannot be built, and for each unknown name of a part.
    """

    def __init__(self, recipe: Recipe, source: str = "recipe") -> None:
        self._trees: dict[int, Component] = {}
        problems = [problem for i, stage in enumerate(recipe.stages) for problem in self._build(f"stages.{i}", stage)]
        if problems:
            raise RecipeError(source, problems)

    def __call__(self, chosen: Chosen) -> Component:
        """Return the tree of a reward table of the recipe."""
        return self._trees[id(chosen)]

    def _build(self, path: str, stage: Chosen) -> Iterator[Problem]:
        settings: Any = stage.settings
        whole: Component | None = None
        for where, place in ((path, settings), (f"{path}.validation", getattr(settings, "validation", None))):
            built: dict[str, Component] = {}
            for setting in ("reward", "reasoning_check"):
                chosen: Chosen | None = getattr(place, setting, None)
                if chosen is not None:
                    try:
                        built[setting] = self._trees[id(chosen)] = Component.root(chosen)
                    except UserError as error:
                        yield Problem(f"{where}.{setting}", str(error))
            scores = built.get("reward", whole)
            if "reasoning_check" in built and scores is not None:
                try:
                    require_free(scores)
                except UserError as error:
                    yield Problem(f"{where}.reasoning_check", str(error))
            whole = whole or built.get("reward")
        part = getattr(getattr(settings, "select", None), "part", "")
        if part and whole is not None and not has_part(whole, part):
            known = [name for name, _ in walk(whole) if name]
            message = f"is no part of the reward.{nearest(part, known)} Known: {listing(known)}"
            yield Problem(f"{path}.select.part", message, shown(part))


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
