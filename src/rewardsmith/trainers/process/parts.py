"""The implicit rewards of a stage that trains: where they may stand, and what they learn from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rewardsmith.config import Chosen
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.base import parts_of
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.compose import Sum, computed_parts
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.rewards.tree import components_of, has_part, walk


def chosen_parts(reward: Chosen) -> dict[str, Chosen]:
    """Return the implicit rewards among the parts of a sum that are computed, as a recipe describes them."""
    computed = computed_parts(_sides(reward))
    return {name: part for name, part in implicit_parts(reward).items() if name in computed}


def learning_models(reward: Chosen) -> list[str]:
    """Return the names of the models that learn to give the implicit rewards of a recipe."""
    parts: list[Any] = [part.settings for part in chosen_parts(reward).values()]
    return [of.model for of in parts if of.update != "none"]


def implicit_parts(reward: Chosen) -> dict[str, Chosen]:
    """Return the implicit rewards among the parts of a sum, computed or not."""
    return {name: part for name, part in terms_of(reward).items() if part.target is Implicit}


def _sides(reward: Chosen) -> dict[str, Any]:
    """Return what stands beside each part of a sum: `PartSettings`."""
    return {name: part.slot for name, part in terms_of(reward).items()}


def terms_of(reward: Chosen) -> Mapping[str, Chosen]:
    """Return the parts of a sum; any other reward has none that could be a stream of its own."""
    return reward.settings.parts if reward.target is Sum else {}  # type: ignore[attr-defined]  # those of a sum


def process_parts(stage: Chosen) -> dict[str, Chosen]:
    """Return the implicit rewards of a stage that its trainer scores, by name; other stages ask them as any reward."""
    settings: Any = stage.settings
    return chosen_parts(settings.reward) if getattr(settings, "trains_rewards", False) else {}


def take_over(root: Component) -> dict[str, Implicit]:
    """Mark the implicit rewards of a tree as scored by the trainer, and return those that it scores by name.

    Nobody else asks them now. One of weight 0 that is not watched is asked by nobody at all.

    Raises:
        UserError: one of them stands where its rewards could not become a stream of their own, or has no outcome to
            learn from.
    """
    found = {path: component for path, component in walk(root) if isinstance(component.reward, Implicit)}
    top = components_of(root.reward)
    for path, component in found.items():
        if path not in top or not parts_of(root):
            raise UserError(
                f'the implicit reward "{path or "reward"}" must be a part of a sum that is the whole reward: there'
                " its rewards per token are a stream of their own, and the outcome that it learns from is another part"
            )
        component.scored_by_trainer = True
        component.reward.online = True  # type: ignore[attr-defined]  # it is an Implicit
    rewards = {path: component.reward for path, component in found.items()}
    for path, reward in rewards.items():
        assert isinstance(reward, Implicit)
        reward.outcome = reward.outcome or _only_other(path, root, found)
        if reward.outcome.partition(".")[0] in found or not has_part(root, reward.outcome):
            known = [name for name, _ in walk(root) if name and name.partition(".")[0] not in found]
            raise UserError(
                f'{path}.outcome = "{reward.outcome}" is no part of the reward to learn from.'
                f"{nearest(reward.outcome, known)} Known: {listing(known)}"
            )
    asked = root.reward.computed if isinstance(root.reward, Sum) else frozenset(rewards)
    return {path: reward for path, reward in rewards.items() if isinstance(reward, Implicit) and path in asked}


def _only_other(path: str, root: Component, found: Mapping[str, Component]) -> str:
    others = [name for name in components_of(root.reward) if name not in found]
    if len(others) != 1:
        known = f" Known: {listing(others)}" if others else ""
        raise UserError(
            f"{path}.outcome is not set, and the sum has {len(others)} other parts: say which one is the outcome that"
            f" the implicit reward learns from.{known}"
        )
    return others[0]


def wrong_parts(reward: Chosen) -> Iterator[str]:
    """Yield what is wrong between the implicit rewards of a recipe and the other parts of the sum."""
    parts, implicit, sides = chosen_parts(reward), implicit_parts(reward), _sides(reward)
    computed = computed_parts(sides)
    others = [name for name in sides if name not in implicit]
    yield from _shared(parts)
    for name, side in sides.items():
        if side.when.partition(".")[0] in implicit:
            yield (
                f'reward.parts.{name}.when = "{side.when}" is not known in time: an implicit reward is scored once the'
                " groups of a step are selected. Name another part, or leave it out"
            )
    for name, part in parts.items():
        of: Any = part.settings
        if sides[name].when:
            yield (
                f'reward.parts.{name}.when = "{sides[name].when}": an implicit reward scores all rollouts of a step.'
                " Leave it out"
            )
        outcome = of.outcome.partition(".")[0] or (others[0] if len(others) == 1 else "")
        if outcome in others and outcome not in computed:
            yield (
                f"reward.parts.{outcome} has weight 0 and is not computed: set its watch = true, for {name} learns"
                " from it"
            )
        if of.update == "none" and of.reference == "start" and of.reference_model is None:
            yield (
                f'reward.parts.{name} has update = "none" and reference = "start": a model that does not learn stays'
                " what it is measured against, and all its rewards would be 0. Set reference_model to what it began as,"
                ' or update = "after"'
            )


def _shared(parts: Mapping[str, Chosen]) -> Iterator[str]:
    """Yield the models that learn for one implicit reward and are used by another one."""
    learners: set[str] = set()
    for name, part in parts.items():
        of: Any = part.settings
        if of.update != "none" and of.model in learners:
            yield (
                f"reward.parts.{name}: models.{of.model} learns for another part already: give each a model of its own"
            )
        learners |= {of.model} if of.update != "none" else set()
    for name, part in parts.items():
        of = part.settings
        if of.reference_model in learners - {of.model}:
            yield (
                f"reward.parts.{name}.reference_model is models.{of.reference_model}, which learns in this stage: a"
                " reference stays as it is. Name a model of its own, such as one with copy_of ="
                f' "{of.reference_model}"'
            )


def wrong_training(reward: Chosen, *, steps: int, rollouts_per_prompt: int) -> Iterator[str]:
    """Yield what would keep the implicit rewards of a recipe from ever moving the policy.

    Args:
        reward: of the stage.
        steps: of the stage.
        rollouts_per_prompt: the size of a group.
    """
    sides = _sides(reward)
    for name, part in chosen_parts(reward).items():
        of: Any = part.settings
        if of.trust.by != "nothing" and rollouts_per_prompt < 2 and sides[name].weight:
            yield (
                f'reward.parts.{name}.trust.by = "{of.trust.by}" measures how the answers to a prompt are ordered, and'
                f" there is one: set rollouts_per_prompt to at least 2, or reward.parts.{name}.trust.by ="
                ' "nothing"'
            )
        if of.update != "none" and of.learn.warmup >= steps:
            yield (
                f"reward.parts.{name}.learn.warmup = {of.learn.warmup} is not less than steps = {steps}: the policy"
                ' would never learn. Lower it, or train the model alone in a stage with type = "process_model"'
            )


def wrong_credit(reward: Chosen, advantage: str, *, compares: bool, combine: str, values: str) -> Iterator[str]:
    """Yield what is wrong between the implicit rewards of a recipe and how credit is given.

    Args:
        reward: of the stage.
        advantage: name of the estimator.
        compares: whether it compares rollouts with their siblings.
        combine: whether parts are summed before the estimate or after.
        values: where its values come from; see `values_from`.
    """
    implicit = implicit_parts(reward)
    weighed = {name: side for name, side in _sides(reward).items() if side.weight}
    parts = [name for name in weighed if name in implicit]
    if values == "process":
        if not parts:
            yield f'the advantage "{advantage}" needs a part of the reward with type = "implicit" and a weight'
        elif len(parts) == len(weighed):
            yield f'the advantage "{advantage}" needs a part of the reward beside the implicit one, with a weight'
        for name in parts:
            yield from _changed(name, implicit[name].settings, advantage)
    for name in parts:
        if combine == "before" and len({side.discount for side in weighed.values()}) > 1:
            yield 'the parts of the reward have different discounts: set advantage.combine = "after"'
        if compares and combine == "before":
            yield (
                f'reward.parts.{name} is a stream of its own, and the advantage "{advantage}" compares answers: set'
                ' advantage.combine = "after"'
            )


def _changed(name: str, of: Any, advantage: str) -> Iterator[str]:
    """Yield the settings of an implicit reward by which the sum of its token rewards is no logit."""
    for setting, plain in (("normalise", "none"), ("smooth", 0.0), ("granularity", "token")):
        value = getattr(of, setting)
        if value != plain:
            yield (
                f"reward.parts.{name}.{setting} = {json.dumps(value)} changes the rewards, and the baseline of the"
                f' advantage "{advantage}" is the sum of the plain ones, a logit: set it to {json.dumps(plain)}'
            )
