"""The implicit rewards of a stage that trains: where they may stand, and what they learn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rewardsmith.components import Chosen
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.rewards.tree import components_of, has_part, walk


def chosen_parts(reward: Chosen) -> dict[str, Chosen]:
    """Return the implicit rewards among the parts of a sum, as a recipe describes them."""
    parts: Mapping[str, Chosen] = getattr(reward.settings, "parts", {})
    return {name: part for name, part in parts.items() if part.target is Implicit}


def take_over(root: Component) -> dict[str, Implicit]:
    """Return the implicit rewards of a tree by name, marked as scored by the trainer: nobody else asks them now.

    Raises:
        UserError: one of them stands where its rewards could not become a stream of their own, or has no outcome to
            learn from.
    """
    found = {path: component for path, component in walk(root) if isinstance(component.reward, Implicit)}
    top = components_of(root.reward)
    for path, component in found.items():
        if path not in top or not hasattr(root.reward, "streams"):
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


def wrong_credit(reward: Chosen, advantage: str, *, compares: bool, combine: str, values: str) -> Iterator[str]:
    """Yield what is wrong between the implicit rewards of a recipe and how credit is given.

    Args:
        reward: of the stage.
        advantage: name of the estimator.
        compares: whether it compares rollouts with their siblings.
        combine: whether parts are summed before the estimate or after.
        values: where its values come from; see `values_from`.
    """
    parts = chosen_parts(reward)
    every: Mapping[str, Any] = getattr(reward.settings, "parts", {})
    if values == "process" and not parts:
        yield f'the advantage "{advantage}" needs a part of the reward with type = "implicit"'
    for name, part in parts.items():
        beside: Any = part.beside
        if beside.when:
            yield f'reward.parts.{name}.when = "{beside.when}": an implicit reward scores all rollouts of a step'
        if combine == "before" and len({other.beside.discount for other in every.values()}) > 1:
            yield 'the parts of the reward have different discounts: set advantage.combine = "after"'
        if compares and combine == "before" and beside.weight:
            yield (
                f'reward.parts.{name} is a stream of its own, and the advantage "{advantage}" compares answers: set'
                ' advantage.combine = "after"'
            )
