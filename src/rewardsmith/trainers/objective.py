"""What a policy step minimises over any split of the batch, and the functions that a recipe names for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rewardsmith.algorithms.advantages import RewardTensors
from rewardsmith.algorithms.policy_losses import kl_loss, positive_sft_loss, reduce, value_loss
from rewardsmith.config import Chosen
from rewardsmith.engines.protocol import Meter, Outputs
from rewardsmith.errors import UserError, where_raised
from rewardsmith.trainers.stages import PolicyStage

# ---- functions of a recipe: ours are called as they are, what a user's own returns is checked ------------------------
# A tensor of another shape would broadcast to numbers that nobody meant.


def advantage_estimator(chosen: Chosen) -> Callable[..., Tensor]:
    """Return an advantage estimator with its settings bound; see `algorithms.advantages`."""

    def check(advantages_BT: Any, inputs: RewardTensors) -> Tensor:
        _require_tensor(advantages_BT, inputs.mask_BT)
        return torch.where(inputs.mask_BT, advantages_BT, 0).to(inputs.rewards_BT.dtype).detach()

    return _bound("advantage", chosen, "advantages, a float tensor [B, T]", check)


def policy_loss(chosen: Chosen) -> Callable[..., tuple[Tensor, Mapping[str, Tensor]]]:
    """Return a policy loss with its settings bound; see `algorithms.policy_losses`."""

    def check(result: Any, logprobs_BT: Tensor, _old: Tensor, _advantages: Tensor, mask_BT: Tensor) -> Any:
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
            raise _WrongResultError(_kind(result))
        _require_tensor(result[0], mask_BT, given=logprobs_BT)
        for name, values in result[1].items():
            if not isinstance(values, Tensor) or values.shape != mask_BT.shape:
                raise _WrongResultError(f"a statistic {name!r} that is {_kind(values)}")
        return result

    form = "(losses, statistics): a float tensor [B, T], and a dict of such tensors"
    return _bound("policy loss", chosen, form, check)


def reduction(chosen: Chosen) -> Callable[[Tensor, torch.dtype], Tensor]:
    """Return a reduction with its settings bound: from a mask to weights; see `algorithms.policy_losses`."""

    def check(weights_BT: Any, mask_BT: Tensor, _dtype: torch.dtype) -> Tensor:
        _require_tensor(weights_BT, mask_BT)
        return torch.where(mask_BT, weights_BT, 0)

    return _bound("reduction", chosen, "weights, a float tensor [B, T]", check)


def preference_loss(chosen: Chosen) -> Callable[..., Tensor]:
    """Return the loss of a reward model with its settings bound; see `algorithms.preferences`."""

    def check(losses_G: Any, rewards_GN: Tensor, _levels: Tensor, _quality: Tensor, mask_GN: Tensor) -> Any:
        _require_tensor(losses_G, mask_GN.any(-1), given=rewards_GN)
        return losses_G

    return _bound("preference loss", chosen, "losses, a float tensor [G]", check)


class _WrongResultError(Exception):
    """What a user's function returned."""


def _bound(what: str, chosen: Chosen, form: str, check: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with its settings bound; a user's own is named in what it raises or returns wrongly."""
    if str(getattr(chosen.target, "__module__", "")).partition(".")[0] == "rewardsmith":
        return partial(chosen.target, **chosen.arguments())

    def call(*inputs: Any, **more: Any) -> Any:
        try:
            result = chosen.target(*inputs, **chosen.arguments() | more)
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a user's own function may raise anything
            cause = f"{type(error).__name__}: {error}{where_raised(error)}"
            raise UserError(f'the {what} "{chosen.name}" raised {cause}') from error
        try:
            return check(result, *inputs)
        except _WrongResultError as wrong:
            raise UserError(f'the {what} "{chosen.name}" returned {wrong}: it must return {form}') from None

    return call


def _require_tensor(result: object, mask: Tensor, given: Tensor | None = None) -> None:
    """Raise unless it is a float tensor of the mask's shape and device, finite where the mask is True.

    With `given`, the input that carries the gradient, the result must have one too; and numbers that are not finite
    are the function's fault only where those are finite.
    """
    if not isinstance(result, Tensor) or result.shape != mask.shape or not result.is_floating_point():
        raise _WrongResultError(f"{_kind(result)} for a mask of shape {list(mask.shape)}")
    if result.device != mask.device:
        raise _WrongResultError(f"a Tensor on {result.device}, and the batch is on {mask.device}")
    bad = result[mask & ~result.isfinite()]
    if len(bad) and (given is None or bool(given[mask].isfinite().all())):
        raise _WrongResultError(f"{bad[0].item()} for {len(bad)} of {int(mask.sum())} values, which must be finite")
    if given is not None and given.requires_grad and not result.requires_grad:
        raise _WrongResultError("losses without a gradient (detached, or not made of the first argument)")


def _kind(value: object) -> str:
    """Return what a value is, in a few words."""
    if isinstance(value, Tensor):
        return f"a Tensor of {str(value.dtype).removeprefix('torch.')}, shape {list(value.shape)}"
    return f"a {type(value).__name__}"


# ---- objectives ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyObjective:
    """The loss of a policy on the rows of one optimizer step."""

    stage: PolicyStage
    mask_BT: Tensor  # bool, the tokens to learn from
    advantages_BT: Tensor
    old_BT: Tensor | None  # log-probabilities in the ratio; None where they are the learner's own of this pass
    reference_BT: Tensor | None  # log-probabilities of the reference policy; None without a KL loss
    importance_BT: Tensor | None  # weights of the token losses; None for 1
    meter: Meter = field(default_factory=Meter)

    @property
    def advantaged_BT(self) -> Tensor:
        """The tokens of the loss whose advantage is not 0, bool [B, T]: only these learn from the reward."""
        return self.mask_BT & (self.advantages_BT != 0)

    @property
    def learned_BT(self) -> Tensor:
        """The tokens that have a gradient, bool [B, T].

        A token without advantage has a policy loss of exactly 0; it counts only where something is added to that.
        """
        return self.mask_BT if self.stage.entropy or self.reference_BT is not None else self.advantaged_BT

    @property
    def live_B(self) -> Tensor:
        """Which rows can have a gradient, bool [B]: the others need no forward pass."""
        return self.learned_BT.any(-1)

    def part(self, rows_b: Tensor, live_k: Tensor) -> Callable[[Outputs], Tensor]:
        """Return the loss of one optimizer step, for any split of its rows.

        `rows_b` are the rows of the batch that the step is about: they weigh in the reduction. `live_k` are the places
        in `rows_b` that the model is run for.
        """
        stage, mask_bT = self.stage, self.mask_BT[rows_b]
        weigh, token_losses = reduction(stage.reduction), policy_loss(stage.loss)
        weights_bT = imitated_bT = weigh(mask_bT, torch.float32)
        if stage.imitation:
            imitated_bT = weigh(mask_bT & (self.advantages_BT[rows_b] > 0), torch.float32)

        def loss(outputs: Outputs) -> Tensor:
            outputs = outputs.to(mask_bT.device)
            width = outputs.logprobs_bT.shape[1]
            at = live_k[outputs.rows]
            rows = rows_b[at]
            weights, mask = weights_bT[at, :width], mask_bT[at, :width]
            advantages = self.advantages_BT[rows, :width]
            old = outputs.logprobs_bT.detach() if self.old_BT is None else self.old_BT[rows, :width]
            losses, statistics = token_losses(outputs.logprobs_bT, old, advantages, mask)
            if self.importance_BT is not None:
                losses = losses * self.importance_BT[rows, :width]
            total = reduce(losses, weights)
            self.meter.sum("loss", total)
            for name, values in statistics.items():
                self.meter.add(name, values.float(), mask)
            self.meter.add("entropy", outputs.entropy_bT, mask)
            if stage.entropy:
                total = total - stage.entropy * reduce(outputs.entropy_bT, weights)
            if stage.imitation:
                imitation, _ = positive_sft_loss(outputs.logprobs_bT, advantages, mask)
                total = total + stage.imitation * reduce(imitation, imitated_bT[at, :width])
            if self.reference_BT is not None:
                total = total + self._kl(outputs, self.reference_BT[rows, :width], mask, weights)
            return total

        return loss

    def _kl(self, outputs: Outputs, reference_bT: Tensor, mask_bT: Tensor, weights_bT: Tensor) -> Tensor:
        kl = self.stage.kl
        coefficient, estimator = kl.in_loss
        values = kl_loss(outputs.logprobs_bT, reference_bT, mask_bT, estimator=estimator, unbiased=kl.unbiased)
        self.meter.add("kl_from_reference", outputs.logprobs_bT - reference_bT, mask_bT)
        return coefficient * reduce(values, weights_bT)


@dataclass(frozen=True)
class CriticObjective:
    """The loss of a critic on the rows of one optimizer step."""

    stage: PolicyStage
    mask_BT: Tensor
    old_values_BT: Tensor  # the values that the advantages were computed with
    returns_BT: Tensor  # the targets
    meter: Meter = field(default_factory=Meter)

    @property
    def live_B(self) -> Tensor:
        """Which rows can have a gradient, bool [B]."""
        return self.mask_BT.any(-1)

    def part(self, rows_b: Tensor, live_k: Tensor) -> Callable[[Outputs], Tensor]:
        """Return the loss of one optimizer step, for any split of its rows; see `PolicyObjective.part`."""
        assert self.stage.critic is not None
        clip = self.stage.critic.clip
        mask_bT = self.mask_BT[rows_b]
        weights_bT = reduction(self.stage.reduction)(mask_bT, torch.float32)

        def loss(outputs: Outputs) -> Tensor:
            outputs = outputs.to(mask_bT.device)
            width = outputs.values_bT.shape[1]
            at = live_k[outputs.rows]
            rows, mask = rows_b[at], mask_bT[at, :width]
            losses, statistics = value_loss(
                outputs.values_bT, self.old_values_BT[rows, :width], self.returns_BT[rows, :width], mask, clip=clip
            )
            self.meter.add("clipped", statistics["clipped"].float(), mask)
            self.meter.add("squared_error", (outputs.values_bT - self.returns_BT[rows, :width]).square(), mask)
            return reduce(losses, weights_bT[at, :width])

        return loss


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """Return how much of the returns' variance a critic explains: 1 is all of it, 0 is no better than a constant."""
    if len(returns) < 2:
        return 0.0
    spread = returns.var()
    return float(1 - (returns - values).var() / spread) if float(spread) > 0 else 0.0
