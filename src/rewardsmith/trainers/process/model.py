"""An implicit process reward model at work: it scores the rollouts of a step and learns from their outcomes.

What is scored when, by `update`:

    none     one forward pass gives the rewards; nothing is learned
    after    one pass for each mini-batch gives its rewards, then its gradient: no rollout is scored by a model that has
             learned from it, though later mini-batches are scored by one that has learned from earlier ones
    reverse  a forward pass for the statistics of groups first, then as `after`
    before   learn, then score all rollouts with another forward pass
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from rewardsmith.algorithms.implicit import implicit_rewards
from rewardsmith.algorithms.implicit_losses import (
    Opponents,
    Weighting,
    group_offsets,
    opponents,
    outcome_cross_entropy,
    pairwise_losses,
    pairwise_wins,
)
from rewardsmith.engines.protocol import Engine, Loss, Outputs, Row
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.trainers.process.labelled import Labelled
from rewardsmith.trainers.reference import Reference

_WEIGHTINGS: dict[str, Weighting] = {
    "pairwise": "none",
    "best-of-n-outcome": "best-of-n-outcome",
    "best-of-n-reward": "best-of-n-reward",
}


@dataclass(frozen=True)
class Appraisal:
    """What the model said of the rollouts of a step, and what it learned.

    Attributes:
        rewards_BT: float32 [B, T], β times the log-ratio of each token of the fresh rollouts.
        fresh_B: float32 [B], their sums as far as the model had not yet learned from them.
        after_B: float32 [B], their sums after the update; None where nobody measured.
        loss: mean over the labelled rollouts of all optimizer steps; None without any.
        grad_norms: one for each optimizer step that was taken.
        skipped: optimizer steps that were not, because the gradient was not finite.
    """

    rewards_BT: Tensor
    fresh_B: Tensor
    after_B: Tensor | None = None
    loss: float | None = None
    grad_norms: Sequence[float] = ()
    skipped: int = 0


class ProcessModel:
    """Scores and learns.

    Args:
        settings: of the reward.
        engine: π_φ.
        reference: π_ref; None where it is the policy that wrote the answers, whose log-probabilities are then given.
    """

    def __init__(self, settings: Implicit, engine: Engine, reference: Reference | None) -> None:
        self.settings = settings
        self.engine = engine
        self.reference = reference

    def appraise(self, batch: Labelled, policy_BT: Tensor | None, *, lr: float, measure: bool) -> Appraisal:
        """Score the fresh rollouts of a batch, and learn from all of it.

        Args:
            batch: the rollouts of a step, and those that are replayed.
            policy_BT: float32 [B, T], the policy's log-probabilities, where they are the reference.
            lr: learning rate.
            measure: whether to measure the sums after the update where that needs a pass of its own.
        """
        settings, fresh = self.settings, batch.fresh
        if settings.update == "none":
            return self.look(batch, policy_BT)
        parts = self._mini_batches(batch)
        reference_BT = self._reference(batch, parts) if policy_BT is None else policy_BT
        compares = settings.learning.loss != "cross-entropy"
        known_BT = self._forward(batch, parts, reference_BT) if compares or settings.update == "reverse" else None
        update = _Update(settings, batch, reference_BT, known_BT)
        for epoch in range(settings.learning.epochs):
            for rows in parts:
                self._learn(update, rows, lr, first=epoch == 0)
        if not self.engine.is_finite:
            raise ValueError("after the update some weights are not finite")
        seen_BT = update.seen_BT[:fresh]
        fresh_B = (seen_BT if known_BT is None else known_BT[:fresh]).sum(-1)
        after_BT = None
        if settings.update == "before" or measure:
            after_BT = self._forward(batch, parts, reference_BT)[:fresh]
        rewards_BT = after_BT if settings.update == "before" and after_BT is not None else seen_BT
        after_B = None if after_BT is None else after_BT.sum(-1)
        return Appraisal(rewards_BT, fresh_B, after_B, update.mean_loss, update.grad_norms, update.skipped)

    def look(self, batch: Labelled, policy_BT: Tensor | None) -> Appraisal:
        """Score the rollouts of a batch, and learn nothing."""
        parts = self._mini_batches(batch)
        reference_BT = self._reference(batch, parts) if policy_BT is None else policy_BT
        rewards_BT = self._forward(batch, parts, reference_BT)[: batch.fresh]
        return Appraisal(rewards_BT, rewards_BT.sum(-1))

    def _mini_batches(self, batch: Labelled) -> list[list[int]]:
        """Return the rows of each optimizer step: fresh ones in their order, and a share of the replayed ones.

        Groups stay whole: siblings that were scored before and after a step could not be compared.
        """
        size = self.settings.learning.mini_batch or batch.fresh
        fresh: list[list[int]] = [[]]
        for _, group in groupby(range(batch.fresh), key=batch.groups_B.tolist().__getitem__):
            if len(fresh[-1]) >= size:
                fresh.append([])
            fresh[-1] += group
        replayed = torch.arange(batch.fresh, len(batch.rows)).tensor_split(len(fresh))
        return [mine + old.tolist() for mine, old in zip(fresh, replayed, strict=True)]

    def _reference(self, batch: Labelled, parts: Sequence[Sequence[int]]) -> Tensor:
        """Return π_ref's log-probabilities [B, T], in the passes in which the model itself will be run.

        The same passes round alike: as long as the model is its reference, the rewards are exactly 0.
        """
        assert self.reference is not None
        found_BT = torch.zeros(batch.mask_BT.shape, device=self.engine.device)
        for rows in parts:
            _put(found_BT, rows, self.reference.logprobs(_rows(batch, rows), max_rows=self._max_rows))
        return found_BT

    @property
    def _max_rows(self) -> int | None:
        return self.settings.learning.micro_batch

    def _forward(self, batch: Labelled, parts: Sequence[Sequence[int]], reference_BT: Tensor) -> Tensor:
        """Return the rewards of all rollouts under the model as it is, [B, T]."""
        logprobs_BT = torch.zeros_like(reference_BT)
        for rows in parts:
            _put(logprobs_BT, rows, self.engine.logprobs(_rows(batch, rows), max_rows=self._max_rows))
        return _rewards(logprobs_BT, reference_BT, batch.mask_BT, self.settings.beta)

    def _learn(self, update: _Update, rows: Sequence[int], lr: float, *, first: bool) -> None:
        """Take one optimizer step; without a label among the rows they are scored only."""
        batch = update.batch
        if bool(batch.votes_B[rows].any()):
            loss = update.part(rows, first=first)
            step = self.engine.update(_rows(batch, rows), loss, lr=lr, max_rows=self._max_rows, entropy=False)
            update.skipped += step.skipped
            update.grad_norms += [] if step.skipped else [step.grad_norm]
        elif first:
            logprobs_bT = self.engine.logprobs(_rows(batch, rows), max_rows=self._max_rows)
            width = logprobs_bT.shape[1]
            mask_bT, reference_bT = batch.mask_BT[rows, :width], update.reference_BT[rows, :width]
            _put(update.seen_BT, rows, _rewards(logprobs_bT, reference_bT, mask_bT, self.settings.beta))


class _Update:
    """The losses of a step's optimizer steps, over any split of their rows."""

    def __init__(self, settings: Implicit, batch: Labelled, reference_BT: Tensor, known_BT: Tensor | None) -> None:
        self.batch = batch
        self.reference_BT = reference_BT
        self.seen_BT = torch.zeros_like(reference_BT)  # rewards as each rollout first went through the model
        self.grad_norms: list[float] = []
        self.skipped = 0
        self._beta = settings.beta
        self._total = torch.zeros((), dtype=torch.float64, device=reference_BT.device)
        self._count = 0
        self._offset_B: Tensor | None = None
        self._opponents: Opponents | None = None
        outcomes_B, votes_B, groups_B = batch.outcomes_B, batch.votes_B, batch.groups_B
        if settings.learning.offset == "group-mean":
            self._offset_B = group_offsets(outcomes_B, votes_B, groups_B)
        if settings.learning.loss in _WEIGHTINGS:
            assert known_BT is not None
            weighting = _WEIGHTINGS[settings.learning.loss]
            self._opponents = opponents(known_BT.sum(-1), outcomes_B, votes_B, groups_B, weighting=weighting)

    def part(self, rows: Sequence[int], *, first: bool) -> Loss:
        """Return the mean loss of the labelled ones among some rows, for any split of them."""
        batch = self.batch
        rows_b = torch.tensor(rows, device=self.reference_BT.device)
        count = int(batch.votes_B[rows_b].sum())
        self._count += count

        def loss(outputs: Outputs) -> Tensor:
            at, width = rows_b[outputs.rows], outputs.logprobs_bT.shape[1]
            mask_bT = batch.mask_BT[at, :width]
            rewards_bT = _rewards(outputs.logprobs_bT, self.reference_BT[at, :width], mask_bT, self._beta)
            if first:
                self.seen_BT[at, :width] = rewards_bT.detach()
            losses_b = self._losses(rewards_bT, mask_bT, at)
            self._total += losses_b.detach().sum(dtype=torch.float64)
            return losses_b.sum() / count

        return loss

    def _losses(self, rewards_bT: Tensor, mask_bT: Tensor, at: Tensor) -> Tensor:
        votes_b = self.batch.votes_B[at]
        if self._opponents is not None:
            found = self._opponents
            return pairwise_losses(rewards_bT.sum(-1), found.mean_B[at], found.sign_B[at], found.weight_B[at])
        offset_b = None if self._offset_B is None else self._offset_B[at]
        return outcome_cross_entropy(
            rewards_bT, mask_bT & votes_b[:, None], self.batch.outcomes_B[at], offset_B=offset_b
        )

    @property
    def mean_loss(self) -> float | None:
        """Mean over the labelled rollouts of all optimizer steps."""
        return float(self._total) / self._count if self._count else None


def fresh_wins(sums_B: Tensor, batch: Labelled) -> tuple[float, float]:
    """Return `pairwise_wins` of the sums [B] of the fresh rollouts."""
    n = batch.fresh
    won, number = pairwise_wins(sums_B, batch.outcomes_B[:n], batch.votes_B[:n], batch.groups_B[:n])
    return float(won), float(number)


def _rewards(logprobs_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor, beta: float) -> Tensor:
    return implicit_rewards(logprobs_BT, reference_BT, mask_BT, beta=beta)


def _rows(batch: Labelled, rows: Sequence[int]) -> list[Row]:
    return [batch.rows[i] for i in rows]


def _put(into_BT: Tensor, rows: Sequence[int], values_bT: Tensor) -> None:
    """Write the values of some rows, which may be narrower than the batch."""
    into_BT[torch.tensor(rows, device=into_BT.device), : values_bT.shape[1]] = values_bT.to(into_BT.device)
