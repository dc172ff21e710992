"""The implicit rewards of a stage that trains: where they may stand, and what they learn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rewardsmith.components import Chosen
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.compose import Sum
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.rewards.protocol import parts_of
from rewardsmith.rewards.tree import components_of, has_part, walk


def chosen_parts(reward: Chosen) -> dict[str, Chosen]:
    """Return the implicit rewards among the parts of a sum, as a recipe describes them."""
    return {name: part for name, part in _terms(reward).items() if part.target is Implicit}


def _terms(reward: Chosen) -> Mapping[str, Chosen]:
    """Return the parts of a sum; any other reward has none that could be a stream of its own."""
    return reward.settings.parts if reward.target is Sum else {}  # type: ignore[attr-defined]  # those of a sum


def process_parts(stage: Chosen) -> dict[str, Chosen]:
    """Return the implicit rewards of a stage that its trainer scores, by name; other stages ask them as any reward."""
    settings: Any = stage.settings
    return chosen_parts(settings.reward) if getattr(settings, "trains_rewards", False) else {}


def take_over(root: Component) -> dict[str, Implicit]:
    """Return the implicit rewards of a tree by name, marked as scored by the trainer: nobody else asks them now.

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
        component.late = True
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
    return {path: reward for path, reward in rewards.items() if isinstance(reward, Implicit)}


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
    parts, every = chosen_parts(reward), _terms(reward)
    sides: dict[str, Any] = {name: part.beside for name, part in every.items()}
    conditions = {side.when.partition(".")[0] for side in sides.values()}
    computed = {name for name, side in sides.items() if side.weight or side.watch or name in conditions}
    others = [name for name in every if name not in parts]
    for name, part in parts.items():
        if sides[name].when:
            yield f'reward.parts.{name}.when = "{sides[name].when}": an implicit reward scores all rollouts of a step'
        told: str = part.settings.outcome  # type: ignore[attr-defined]  # it is an Implicit
        outcome = told.partition(".")[0] or (others[0] if len(others) == 1 else "")
        if outcome in others and outcome not in computed:
            yield (
                f"reward.parts.{outcome} has weight 0 and is not computed: set its watch = true, for {name} learns"
                " from it"
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
    yield from wrong_parts(reward)
    parts = chosen_parts(reward)
    sides: dict[str, Any] = {name: part.beside for name, part in _terms(reward).items()}
    if values == "process":
        if not any(sides[name].weight for name in parts):
            yield f'the advantage "{advantage}" needs a part of the reward with type = "implicit" and a weight'
        elif not any(side.weight for name, side in sides.items() if name not in parts):
            yield f'the advantage "{advantage}" needs a part of the reward beside the implicit one, with a weight'
    for name in parts:
        if combine == "before" and len({side.discount for side in sides.values()}) > 1:
            yield 'the parts of the reward have different discounts: set advantage.combine = "after"'
        if compares and combine == "before" and sides[name].weight:
            yield (
                f'reward.parts.{name} is a stream of its own, and the advantage "{advantage}" compares answers: set'
                ' advantage.combine = "after"'
            )
