"""The implicit rewards of a stage that trains: where they may stand and what they learn from. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rewardsmith.config import Chosen
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.compose import Sum, computed_parts
from rewardsmith.rewards.failures import choices_in
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.rewards.tree import has_part, walk

if TYPE_CHECKING:
    from rewardsmith.engines.protocol import Engine, ModelOutline, Sampling


# ---- the table of a reward ------------------------------------------------------------------------------------------


def _parts(reward: Chosen) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the places of all parts of a sum, and the settings of the implicit ones; other rewards have none."""
    terms: Mapping[str, Chosen] = reward.settings.parts if reward.target is Sum else {}  # type: ignore[attr-defined]
    implicit = {name: part.settings for name, part in terms.items() if part.target is Implicit}
    return {name: part.slot for name, part in terms.items()}, implicit


def _computed(reward: Chosen) -> dict[str, Any]:
    """Return the settings of the implicit rewards among the parts of a sum that are computed."""
    slots, implicit = _parts(reward)
    computed = computed_parts(slots)
    return {name: settings for name, settings in implicit.items() if name in computed}


def learning_models(reward: Chosen) -> list[str]:
    """Return the names of the models that learn to give the implicit rewards of a recipe."""
    return [settings.model for settings in _computed(reward).values() if settings.update != "none"]


def process_parts(stage: Chosen) -> dict[str, Chosen]:
    """Return the implicit rewards of a stage that its trainer scores, by name; other stages call them as any reward."""
    reward: Any = getattr(stage.settings, "reward", None)
    if not getattr(stage.settings, "trains_rewards", False):
        return {}
    return {name: reward.settings.parts[name] for name in _computed(reward)}


def claim_implicit_parts(root: Component) -> dict[str, Implicit]:
    """Mark the implicit rewards of a tree as scored by the trainer, and return those that are computed, by name.

    The recipe was checked: they are parts of a sum that is the whole reward.

    Raises:
        UserError: the outcome of one of them is no part of the reward.
    """
    if not isinstance(root.reward, Sum):
        return {}
    parts, computed = root.reward.components, root.reward.computed
    implicit = {name: part.reward for name, part in parts.items() if isinstance(part.reward, Implicit)}
    for name, reward in implicit.items():
        parts[name].scored_by_trainer = reward.online = True
        reward.outcome = reward.outcome or next(other for other in parts if other not in implicit)
        if not has_part(root, reward.outcome):
            known = [path for path, _ in walk(root) if path and path.partition(".")[0] not in implicit]
            raise UserError(_unknown_outcome(name, reward.outcome, known))
    return {name: reward for name, reward in implicit.items() if name in computed}


def _unknown_outcome(name: str, outcome: str, known: list[str]) -> str:
    hint = f"{nearest(outcome, known)} Known: {listing(known)}"
    return f'reward.parts.{name}.outcome = "{outcome}" is no part of the reward to learn from.{hint}'


# ---- what is wrong with a recipe ------------------------------------------------------------------------------------


def implicit_problems(reward: Chosen, *, policy: str, selected: str) -> Iterator[str]:
    """Yield what is wrong with the implicit rewards of a stage that trains.

    `policy` is the model that writes the answers, `selected` the part of the reward by which groups are selected.
    """
    slots, implicit = _parts(reward)
    computed = computed_parts(slots)
    others = [name for name in slots if name not in implicit]
    if sum(chosen.target is Implicit for chosen in choices_in(reward)) > len(implicit):
        yield (
            "an implicit reward must be a part of a sum that is the whole reward: there its rewards per token are a"
            " stream of their own, and the outcome that it learns from is another part"
        )
    early = {"select.part": selected} | {f"reward.parts.{name}.when": slot.when for name, slot in slots.items()}
    for setting, part in early.items():
        if part.partition(".")[0] in implicit:
            yield (
                f'{setting} = "{part}" is an implicit reward, which is scored after groups are selected. Name another'
                f" part. Known: {listing(others)}"
            )
    for name, settings in implicit.items():
        where = f"reward.parts.{name}"
        if settings.model == policy:
            yield f'{where}.model = "{policy}" is the policy itself: give it its own model, with copy_of = "{policy}"'
        if not settings.outcome and len(others) != 1:
            yield f"{where}.outcome is not set: name the other part from which it learns. Known: {listing(others)}"
        outcome = settings.outcome.partition(".")[0] or others[0]
        if outcome not in others:
            yield _unknown_outcome(name, settings.outcome, others)
        if name not in computed:
            continue
        if slots[name].when:
            yield f'{where}.when = "{slots[name].when}": an implicit reward scores all rollouts of a step. Remove it'
        if outcome not in computed:
            yield f"reward.parts.{outcome} is not computed, and {name} learns from it: set its watch = true"
        if settings.update == "none" and settings.reference == "start" and settings.reference_model is None:
            yield (
                f'{where} has update = "none" and reference = "start": a model that does not learn equals its'
                " reference, and all its rewards would be 0. Set reference_model to what it was trained from, or"
                ' update = "after"'
            )
        learners = {s.model for other, s in _computed(reward).items() if other != name and s.update != "none"}
        for model in learners & {settings.model, settings.reference_model}:
            yield f'{where}: models.{model} learns for another part: use one of its own, with copy_of = "{model}"'


def policy_problems(stage: Any, *, advantage: str, compares: bool, combine: str, values: str) -> Iterator[str]:
    """Yield what would keep the implicit rewards of a policy stage from training the policy as its settings say.

    Args:
        stage: its settings.
        advantage: name of the estimator.
        compares: whether it compares rollouts with their siblings.
        combine: whether parts are summed before the estimate or after.
        values: where its values come from; see `values_from`.
    """
    slots, implicit = _parts(stage.reward)
    weighted = {name: slot for name, slot in slots.items() if slot.weight}
    parts = [name for name in weighted if name in implicit]
    if values == "process" and not 0 < len(parts) < len(weighted):
        yield (
            f'the advantage "{advantage}" needs a part of the reward with type = "implicit" and a weight, and a second'
            " one with a weight that is not implicit"
        )
    for name in parts:
        where, settings = f"reward.parts.{name}", implicit[name]
        if values == "process" and (settings.normalise, settings.smooth, settings.granularity) != ("none", 0, "token"):
            yield (
                f'the baseline of the advantage "{advantage}" is the sum of the unchanged rewards, a logit: set'
                f' {where}.normalise = "none", smooth = 0.0 and granularity = "token"'
            )
        if combine == "before" and len({slot.discount for slot in weighted.values()}) > 1:
            yield 'the parts of the reward have different discounts: set advantage.combine = "after"'
        if compares and combine == "before":
            yield (
                f'{where} is a stream of its own, and the advantage "{advantage}" compares answers: set'
                ' advantage.combine = "after"'
            )
        if settings.trust.by != "nothing" and stage.rollouts_per_prompt < 2:
            yield (
                f'{where}.trust.by = "{settings.trust.by}" compares the answers to a prompt, and there is one: set'
                f' rollouts_per_prompt to at least 2, or {where}.trust.by = "nothing"'
            )


def sampler_is_reference(settings: Any, sampling: Sampling, *, ahead: bool) -> bool:
    """Whether the sampler's log-probabilities are those of an implicit reward's reference, as far as settings tell.

    The reference is the policy at temperature 1. With `ahead`, an earlier policy has written the answers.
    """
    asked = settings.reference == "policy" and not settings.exact_reference
    return asked and sampling.temperature == 1 and not sampling.cuts and not ahead


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
