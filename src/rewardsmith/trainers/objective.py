"""What a policy step minimises: the policy loss and what a recipe adds to it, over any split of the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rewardsmith.algorithms.auxiliary_losses import positive_sft_loss, value_loss
from rewardsmith.algorithms.kl import kl_loss
from rewardsmith.algorithms.reductions import reduce
from rewardsmith.engines.protocol import Meter, Outputs
from rewardsmith.trainers.stages import PolicyStage
from rewardsmith.trainers.user_functions import policy_loss_of, reduction_of


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
        weigh = reduction_of(stage.reduction)
        weights_bT = weigh(mask_bT)
        imitated_bT = weigh(mask_bT & (self.advantages_BT[rows_b] > 0)) if stage.imitation else weights_bT
        policy_loss = policy_loss_of(stage.loss)

        def loss(outputs: Outputs) -> Tensor:
            width = outputs.logprobs_bT.shape[1]
            at = live_k[outputs.rows]
            rows = rows_b[at]
            weights, mask = weights_bT[at, :width], mask_bT[at, :width]
            advantages = self.advantages_BT[rows, :width]
            old = outputs.logprobs_bT.detach() if self.old_BT is None else self.old_BT[rows, :width]
            losses, statistics = policy_loss(outputs.logprobs_bT, old, advantages, mask)
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
        estimator = "k2" if kl.estimator == "auto" else kl.estimator
        values = kl_loss(outputs.logprobs_bT, reference_bT, mask_bT, estimator=estimator, unbiased=kl.unbiased)
        self.meter.add("kl_from_reference", outputs.logprobs_bT - reference_bT, mask_bT)
        return kl.coefficient * reduce(values, weights_bT)


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
        weights_bT = reduction_of(self.stage.reduction)(mask_bT)

        def loss(outputs: Outputs) -> Tensor:
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
