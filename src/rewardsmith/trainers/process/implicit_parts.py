"""The implicit rewards of a stage that trains: where they may stand and what they learn from. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rewardsmith.config import Chosen, Settings
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.compose import Sum, computed_parts
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.rewards.tree import has_part, walk

if TYPE_CHECKING:
    from rewardsmith.engines.protocol import Engine, ModelOutline


# ---- the table of a reward ------------------------------------------------------------------------------------------


def _terms(reward: Chosen) -> Mapping[str, Chosen]:
    """Return the parts of a sum; any other reward has none that could be a stream of their own."""
    return reward.settings.parts if reward.target is Sum else {}  # type: ignore[attr-defined]  # those of a sum


def _slots(reward: Chosen) -> dict[str, Any]:
    """Return the `PartSettings` of each part of a sum."""
    return {name: part.slot for name, part in _terms(reward).items()}


def _implicit(reward: Chosen) -> dict[str, Any]:
    """Return the settings of the implicit rewards among the parts of a sum, computed or not."""
    return {name: part.settings for name, part in _terms(reward).items() if part.target is Implicit}


def _computed(reward: Chosen) -> dict[str, Any]:
    """Return the settings of the implicit rewards among the parts of a sum that are computed."""
    computed = computed_parts(_slots(reward))
    return {name: settings for name, settings in _implicit(reward).items() if name in computed}


def learning_models(reward: Chosen) -> list[str]:
    """Return the names of the models that learn to give the implicit rewards of a recipe."""
    return [settings.model for settings in _computed(reward).values() if settings.update != "none"]


def process_parts(stage: Chosen) -> dict[str, Chosen]:
    """Return the implicit rewards of a stage that its trainer scores, by name; other stages call them as any reward."""
    reward: Any = getattr(stage.settings, "reward", None)
    if not getattr(stage.settings, "trains_rewards", False):
        return {}
    return {name: _terms(reward)[name] for name in _computed(reward)}


def claim_implicit_parts(root: Component) -> dict[str, Implicit]:
    """Mark the implicit rewards of a tree as scored by the trainer, and return those that are computed, by name.

    The recipe was checked: they are parts of a sum that is the whole reward.

    Raises:
        UserError: the outcome of one of them is no part of the reward.
    """
    assert isinstance(root.reward, Sum) or not any(isinstance(inner.reward, Implicit) for _, inner in walk(root))
    parts = root.reward.components if isinstance(root.reward, Sum) else {}
    implicit = {name: part.reward for name, part in parts.items() if isinstance(part.reward, Implicit)}
    for name, reward in implicit.items():
        parts[name].scored_by_trainer = reward.online = True
        reward.outcome = reward.outcome or next(other for other in parts if other not in implicit)
        if not has_part(root, reward.outcome):
            known = [path for path, _ in walk(root) if path and path.partition(".")[0] not in implicit]
            raise UserError(
                f'{name}.outcome = "{reward.outcome}" is no part of the reward to learn from.'
                f"{nearest(reward.outcome, known)} Known: {listing(known)}"
            )
    computed = root.reward.computed if isinstance(root.reward, Sum) else ()
    return {name: reward for name, reward in implicit.items() if name in computed}


# ---- what is wrong with a recipe ------------------------------------------------------------------------------------


def implicit_problems(reward: Chosen, *, policy: str, selected: str) -> Iterator[str]:
    """Yield what is wrong with the implicit rewards of a stage that trains.

    Args:
        reward: of the stage.
        policy: the model that writes the answers.
        selected: the part of the reward by which groups are selected.
    """
    slots, implicit, computed = _slots(reward), _implicit(reward), computed_parts(_slots(reward))
    others = [name for name in slots if name not in implicit]
    if sum(chosen.target is Implicit for chosen in _every_choice(reward)) > len(implicit):
        yield (
            "an implicit reward must be a part of a sum that is the whole reward: there its rewards per token are a"
            " stream of their own, and the outcome that it learns from is another part"
        )
    if selected.partition(".")[0] in implicit:
        yield (
            f'select.part = "{selected}" is an implicit reward, which is scored after groups are selected. Select by'
            f" another part. Known: {listing(others)}"
        )
    for name, slot in slots.items():
        if slot.when.partition(".")[0] in implicit:
            yield (
                f'reward.parts.{name}.when = "{slot.when}" is an implicit reward, which is scored after groups are'
                " selected. Name another part, or remove it"
            )
    for name, settings in implicit.items():
        where = f"reward.parts.{name}"
        yield from _wrong_names(where, settings, policy, others)
        if name not in computed:
            continue
        if slots[name].failure.instead is not None:
            yield f"{where}.failure.instead has no effect: the trainer scores an implicit reward. Remove it"
        if slots[name].when:
            yield f'{where}.when = "{slots[name].when}": an implicit reward scores all rollouts of a step. Remove it'
        outcome = settings.outcome.partition(".")[0] or (others[0] if len(others) == 1 else "")
        if outcome in others and outcome not in computed:
            yield f"reward.parts.{outcome} is not computed, and {name} learns from it: set its watch = true"
        if settings.update == "none" and settings.reference == "start" and settings.reference_model is None:
            yield (
                f'{where} has update = "none" and reference = "start": a model that does not learn equals its'
                " reference, and all its rewards would be 0. Set reference_model to what it was trained from, or"
                ' update = "after"'
            )
    yield from _shared_models(_computed(reward))


def _wrong_names(where: str, settings: Any, policy: str, others: list[str]) -> Iterator[str]:
    if settings.model == policy:
        yield f'{where}.model = "{policy}" is the policy itself: give it its own model, with copy_of = "{policy}"'
    if not settings.outcome and len(others) != 1:
        known = f": name one. Known: {listing(others)}" if others else ", and there is none: add one"
        yield f"{where}.outcome is not set: it is the other part of the sum, from which the model learns{known}"
    if settings.outcome and settings.outcome.partition(".")[0] not in others:
        yield (
            f'{where}.outcome = "{settings.outcome}" is no part of the reward to learn from.'
            f"{nearest(settings.outcome, others)} Known: {listing(others)}"
        )


def _shared_models(parts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the models that learn for one implicit reward and are used by another one."""
    learners: set[str] = set()
    for name, settings in parts.items():
        if settings.update != "none" and settings.model in learners:
            yield f"reward.parts.{name}: models.{settings.model} learns for another part already: give it its own model"
        learners |= {settings.model} if settings.update != "none" else set()
    for name, settings in parts.items():
        if settings.reference_model in learners - {settings.model}:
            yield (
                f"reward.parts.{name}.reference_model is models.{settings.reference_model}, which learns in this stage:"
                f' name a fixed model, such as one with copy_of = "{settings.reference_model}"'
            )


def policy_problems(stage: Any, *, advantage: str, compares: bool, combine: str, values: str) -> Iterator[str]:
    """Yield what would keep the implicit rewards of a policy stage from training the policy as its settings say.

    Args:
        stage: its settings.
        advantage: name of the estimator.
        compares: whether it compares rollouts with their siblings.
        combine: whether parts are summed before the estimate or after.
        values: where its values come from; see `values_from`.
    """
    implicit, slots = _implicit(stage.reward), _slots(stage.reward)
    weighted = {name: slot for name, slot in slots.items() if slot.weight}
    parts = [name for name in weighted if name in implicit]
    if values == "process":
        if not parts:
            yield f'the advantage "{advantage}" needs a part of the reward with type = "implicit" and a weight'
        elif len(parts) == len(weighted):
            yield f'the advantage "{advantage}" needs a second part of the reward, with a weight, that is not implicit'
        for name, setting, needed in (
            (name, *pair)
            for name in parts
            for pair in (("normalise", "none"), ("smooth", 0.0), ("granularity", "token"))
        ):
            value = getattr(implicit[name], setting)
            if value != needed:
                yield (
                    f"reward.parts.{name}.{setting} = {json.dumps(value)} changes the rewards, and the baseline of the"
                    f' advantage "{advantage}" is the sum of the original ones, a logit: set it to {json.dumps(needed)}'
                )
    for name in parts:
        if combine == "before" and len({slot.discount for slot in weighted.values()}) > 1:
            yield 'the parts of the reward have different discounts: set advantage.combine = "after"'
        if compares and combine == "before":
            yield (
                f'reward.parts.{name} is a stream of its own, and the advantage "{advantage}" compares answers: set'
                ' advantage.combine = "after"'
            )
    for name, settings in _computed(stage.reward).items():
        if settings.trust.by != "nothing" and stage.rollouts_per_prompt < 2 and slots[name].weight:
            yield (
                f'reward.parts.{name}.trust.by = "{settings.trust.by}" compares the answers to a prompt, and there is'
                f' one: set rollouts_per_prompt to at least 2, or reward.parts.{name}.trust.by = "nothing"'
            )
        if settings.update != "none" and settings.learn.warmup >= stage.steps:
            yield (
                f"reward.parts.{name}.learn.warmup = {settings.learn.warmup} is not less than steps = {stage.steps}:"
                ' the policy would never learn. Lower it, or train the model in a stage with type = "process_model"'
            )


def require_other_reference(reward: Chosen, policy: str) -> None:
    """Raise a `UserError` if an implicit reward is to be trained against the policy under the name of a model.

    Outside of training that model stands for the policy which wrote the answers, so a recipe may name it.
    """
    for name, settings in _implicit(reward).items():
        if settings.reference_model == policy:
            raise UserError(
                f'reward.parts.{name}.reference_model = "{policy}" is the policy: set reference = "policy" instead'
            )


def require_same_tokens(policy: Engine | ModelOutline, other: Engine | ModelOutline, what: str) -> None:
    """Raise a `UserError` unless every token of the policy has the same id in the model that reads its answers."""
    ours, theirs = policy.vocabulary, other.vocabulary
    different = sorted((number, token) for token, number in ours.items() if theirs.get(token) != number)
    if different:
        number, token = different[0]
        raise UserError(
            f"{what} reads tokens as {policy.name} writes them, but models.{other.name} has another tokenizer:"
            f" {len(different)} of {len(ours)} tokens differ, the first is {token!r} ({number} there,"
            f" {theirs.get(token, 'none')} here). Use a model of the same family"
        )


def _every_choice(table: object) -> Iterator[Chosen]:
    """Yield every choice of a table and of the tables within it."""
    if isinstance(table, Chosen):
        yield table
        yield from _every_choice(table.settings)
        yield from _every_choice(table.slot)
    elif isinstance(table, Settings):
        for name in type(table).model_fields:
            yield from _every_choice(getattr(table, name))
    elif isinstance(table, Mapping):
        for inner in table.values():
            yield from _every_choice(inner)
