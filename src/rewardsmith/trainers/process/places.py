"""What is wrong with the place of an implicit reward in a recipe, found before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rewardsmith.config import Chosen, Settings
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.trainers.process.parts import implicit_parts, terms_of


def wrong_places(reward: Chosen, *, policy: str, selected: str) -> Iterator[str]:
    """Yield what is wrong with where the implicit rewards of a stage that trains stand, and with what they name.

    Args:
        reward: of the stage.
        policy: the model that writes the answers.
        selected: the part of the reward by which groups are selected.
    """
    implicit = implicit_parts(reward)
    others = [name for name in terms_of(reward) if name not in implicit]
    if sum(one.target is Implicit for one in _chosen(reward)) > len(implicit):
        yield (
            "an implicit reward must be a part of a sum that is the whole reward: there its rewards per token are a"
            " stream of their own, and the outcome that it learns from is another part"
        )
    for name, part in implicit.items():
        yield from _wrong_names(f"reward.parts.{name}", part.settings, policy, others)
    if selected.partition(".")[0] in implicit:
        yield (
            f'select.part = "{selected}" is not known when groups are selected: an implicit reward comes after that.'
            f" Select by another part. Known: {listing(others)}"
        )


def require_other_reference(reward: Chosen, policy: str) -> None:
    """Raise a `UserError` if an implicit reward is to be trained against the policy under the name of a model.

    Outside of training that is what stands for the policy which wrote the answers, so the recipe itself may say it.
    """
    for name, part in implicit_parts(reward).items():
        if part.settings.reference_model == policy:  # type: ignore[attr-defined]
            raise UserError(
                f'parts.{name}.reference_model = "{policy}" is the model that writes: set reference = "policy" instead'
            )


def _wrong_names(where: str, of: Any, policy: str, others: list[str]) -> Iterator[str]:
    if of.model == policy:
        yield f'{where}.model = "{policy}" is the policy itself: give it a model of its own, with copy_of = "{policy}"'
    if not of.outcome and len(others) != 1:
        known = f": say which one. Known: {listing(others)}" if others else ", and there is none: add one"
        yield f"{where}.outcome is not set: it is the other part of the sum, from whose values the model learns{known}"
    if of.outcome and of.outcome.partition(".")[0] not in others:
        yield (
            f'{where}.outcome = "{of.outcome}" is no part of the reward to learn from.{nearest(of.outcome, others)}'
            f" Known: {listing(others)}"
        )


def _chosen(table: object) -> Iterator[Chosen]:
    """Yield every choice of a table and of the tables within it."""
    if isinstance(table, Chosen):
        yield table
        yield from _chosen(table.settings)
        yield from _chosen(table.slot)
    elif isinstance(table, Settings):
        for name in type(table).model_fields:
            yield from _chosen(getattr(table, name))
    elif isinstance(table, Mapping):
        for inner in table.values():
            yield from _chosen(inner)
