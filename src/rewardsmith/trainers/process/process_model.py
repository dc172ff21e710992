"""An implicit process reward model in training: it scores the rollouts of a step and learns from their outcomes.

What is scored when, by `update`:

    none     one forward pass gives the rewards; nothing is learned
    after    one pass for each mini-batch gives its rewards, then its gradient: no rollout is scored by a model that has
             learned from it, though later mini-batches are scored by one that has learned from earlier ones
    reverse  a forward pass for the statistics of groups first, then as `after`
    before   learn, then score all rollouts with another forward pass
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.algorithms.implicit_rewards import (
    Opponents,
    Weighting,
    group_offsets,
    implicit_rewards,
    opponents,
    outcome_cross_entropy,
    pairwise_losses,
    pairwise_wins,
)
from rewardsmith.engines.protocol import Engine, Loss, Meter, Outputs, Row
from rewardsmith.errors import UserError
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.trainers.reference import Reference
from rewardsmith.types import Prompt, Score, ScoredGroup


@dataclass(frozen=True)
class OutcomeBatch:
    """Rollouts and their outcomes; B rollouts, T tokens of the longest answer."""

    rows: Sequence[Row]  # the token ids of each rollout
    groups_B: Tensor  # int64, which rollouts answer the same prompt
    mask_BT: Tensor  # bool, the answer tokens
    outcomes_B: Tensor  # float32, in [0, 1]; 0 where there is none
    votes_B: Tensor  # bool, whether there is an outcome: one that failed is no label
    fresh: int  # how many of the rollouts, the first ones, were written in this step; the others are replayed
    sampler_BT: Tensor  # float32, the log-probabilities with which the tokens were sampled

    def wins(self, sums_B: Tensor) -> tuple[float, float]:
        """Return `pairwise_wins` of the sums [B] of the fresh rollouts."""
        n = self.fresh
        won, number = pairwise_wins(sums_B, self.outcomes_B[:n], self.votes_B[:n], self.groups_B[:n])
        return float(won), float(number)


def outcome_batch(
    fresh: Sequence[ScoredGroup],
    replayed: Sequence[ScoredGroup],
    encode: Callable[[Prompt], NDArray[np.int32]],
    outcome: str,
    device: torch.device,
) -> OutcomeBatch:
    """Return the groups of this step and replayed ones of earlier steps as what the model learns from.

    `encode` gives the tokens of a prompt, and `outcome` is the dotted name of the part of the reward to learn from.
    """
    groups = [*fresh, *replayed]
    rollouts = [rollout for scored in groups for rollout in scored.group.rollouts]
    labels = [_outcome(score, outcome) for scored in groups for score in scored.scores]
    prompts = [tokens for scored in groups for tokens in [encode(scored.group.prompt)] * len(scored.scores)]
    counts_B = torch.tensor([len(rollout.tokens) for rollout in rollouts])
    mask_BT = torch.arange(int(counts_B.max()))[None] < counts_B[:, None]
    sampler_BT = torch.zeros(mask_BT.shape)
    sampler_BT[mask_BT] = torch.from_numpy(np.concatenate([rollout.logprobs for rollout in rollouts]))
    return OutcomeBatch(
        rows=[Row(p, r.tokens) for p, r in zip(prompts, rollouts, strict=True)],
        groups_B=torch.tensor([i for i, scored in enumerate(groups) for _ in scored.scores], device=device),
        mask_BT=mask_BT.to(device),
        outcomes_B=torch.tensor([label or 0.0 for label in labels], device=device),
        votes_B=torch.tensor([label is not None for label in labels], device=device) & mask_BT.any(-1).to(device),
        fresh=sum(len(scored.scores) for scored in fresh),
        sampler_BT=sampler_BT.to(device),
    )


def _outcome(score: Score, outcome: str) -> float | None:
    """Return the outcome of a rollout; None where it has none, because it failed or was skipped."""
    part = dict(score.named_parts()).get(outcome)
    if part is None or part.value is None:
        return None
    if not 0 <= part.value <= 1:
        raise UserError(
            f'an implicit process reward model learns from outcomes between 0 and 1, but the part "{outcome}" is'
            f' {part.value:g}: transform it with type = "clip" or "scale", or name another part as the outcome'
        )
    return part.value


@dataclass(frozen=True)
class ModelRewards:
    """The rewards of the fresh rollouts of a step, and what the model learned."""

    rewards_BT: Tensor  # float32, β times the log-ratio of each token
    fresh_B: Tensor  # float32, their sums before the model learned from them
    after_B: Tensor | None = None  # float32, their sums after the update; None where they were not measured
    loss: float | None = None  # mean over the labelled rollouts of all optimizer steps; None without any
    grad_norms: Sequence[float] = ()  # one for each optimizer step that was taken
    skipped: int = 0  # optimizer steps that were not, because the gradient was not finite


class ProcessModel:
    """Scores and learns: the engine is π_φ, the reference π_ref; None is the policy as it was when it sampled."""

    def __init__(self, settings: Implicit, engine: Engine, reference: Reference | None) -> None:
        self.settings = settings
        self.engine = engine
        self.reference = reference

    def score_only(self, batch: OutcomeBatch) -> ModelRewards:
        """Score the fresh rollouts of a batch, and learn nothing."""
        parts = self._mini_batches(batch)
        rewards_BT = self._forward(batch, parts, self._reference(batch, parts))[: batch.fresh]
        return ModelRewards(rewards_BT, rewards_BT.sum(-1))

    def score_and_learn(self, batch: OutcomeBatch, *, lr: float, measure: bool) -> ModelRewards:
        """Score the fresh rollouts of a batch, and learn from all of it.

        `measure`: measure the sums after the update also where that needs a pass of its own.
        """
        settings, fresh = self.settings, batch.fresh
        if settings.update == "none":
            return self.score_only(batch)
        parts = self._mini_batches(batch)
        reference_BT = self._reference(batch, parts)
        statistics = settings.learn.loss != "cross-entropy" or settings.update == "reverse"
        known_BT = self._forward(batch, parts, reference_BT) if statistics else None
        losses = _Losses(settings, batch, reference_BT, known_BT)
        grad_norms: list[float] = []
        skipped = 0
        for epoch in range(settings.learn.epochs):
            for rows in parts:
                if bool(batch.votes_B[rows].any()):
                    step = self.engine.update(
                        [batch.rows[i] for i in rows],
                        losses.for_rows(rows, first=epoch == 0),
                        lr=lr,
                        max_rows=settings.learn.micro_batch,
                        entropy=False,
                        meter=losses.meter,
                    )
                    skipped += step.skipped
                    grad_norms += [] if step.skipped else [step.grad_norm]
                elif epoch == 0:  # nothing to learn from: these are scored only
                    losses.scored_BT[rows] = self._forward(batch, [rows], reference_BT)[rows]
        if not self.engine.is_finite:
            raise ValueError("after the update some weights are not finite")
        again = settings.update == "before" or measure
        after_BT = self._forward(batch, parts, reference_BT)[:fresh] if again else None
        first_BT = losses.first_BT[:fresh]
        return ModelRewards(
            rewards_BT=after_BT if settings.update == "before" and after_BT is not None else first_BT,
            fresh_B=(first_BT if known_BT is None else known_BT[:fresh]).sum(-1),
            after_B=None if after_BT is None else after_BT.sum(-1),
            loss=losses.mean,
            grad_norms=grad_norms,
            skipped=skipped,
        )

    def _mini_batches(self, batch: OutcomeBatch) -> list[list[int]]:
        """Return the rows of each optimizer step: fresh ones in their order, and a share of the replayed ones.

        Groups stay whole: siblings that were scored before and after a step could not be compared.
        """
        size = self.settings.learn.mini_batch or batch.fresh
        fresh: list[list[int]] = [[]]
        for _, group in groupby(range(batch.fresh), key=batch.groups_B.tolist().__getitem__):
            if len(fresh[-1]) >= size:
                fresh.append([])
            fresh[-1] += group
        replayed = torch.arange(batch.fresh, len(batch.rows)).tensor_split(len(fresh))
        return [mine + old.tolist() for mine, old in zip(fresh, replayed, strict=True)]

    def _reference(self, batch: OutcomeBatch, parts: Sequence[Sequence[int]]) -> Tensor:
        """Return π_ref's log-probabilities [B, T], in the passes in which the model itself will be run.

        The same passes round alike: as long as the model is its reference, the rewards are exactly 0.
        """
        return batch.sampler_BT if self.reference is None else self._logprobs(self.reference, batch, parts)

    def _forward(self, batch: OutcomeBatch, parts: Sequence[Sequence[int]], reference_BT: Tensor) -> Tensor:
        """Return the rewards of the rows of these parts under the model as it is, [B, T]."""
        logprobs_BT = self._logprobs(self.engine, batch, parts)
        return implicit_rewards(logprobs_BT, reference_BT, batch.mask_BT, beta=self.settings.beta)

    def _logprobs(self, model: Engine | Reference, batch: OutcomeBatch, parts: Sequence[Sequence[int]]) -> Tensor:
        logprobs_BT = torch.zeros(batch.mask_BT.shape, device=self.engine.device)
        for rows in parts:
            logprobs_bT = model.logprobs([batch.rows[i] for i in rows], max_rows=self.settings.learn.micro_batch)
            rows_b = torch.tensor(rows, device=logprobs_BT.device)
            logprobs_BT[rows_b, : logprobs_bT.shape[1]] = logprobs_bT
        return logprobs_BT


class _Losses:
    """The losses of a step's optimizer steps, over any split of their rows."""

    def __init__(self, settings: Implicit, batch: OutcomeBatch, reference_BT: Tensor, known_BT: Tensor | None) -> None:
        self.meter = Meter()
        self.scored_BT = torch.zeros_like(reference_BT)  # rewards of the rows that no optimizer step reads
        self._batch = batch
        self._reference_BT = reference_BT
        self._beta = settings.beta
        self._count = 0
        self._offset_B: Tensor | None = None
        self._opponents: Opponents | None = None
        labels = batch.outcomes_B, batch.votes_B, batch.groups_B
        if settings.learn.offset == "group-mean":
            self._offset_B = group_offsets(*labels)
        if settings.learn.loss != "cross-entropy":
            assert known_BT is not None
            weighting: Weighting = "none" if settings.learn.loss == "pairwise" else settings.learn.loss
            self._opponents = opponents(known_BT.sum(-1), *labels, weighting=weighting)

    @property
    def mean(self) -> float | None:
        """Mean over the labelled rollouts of all optimizer steps."""
        return self.meter.means()["loss"] / self._count if self._count else None

    @property
    def first_BT(self) -> Tensor:
        """Rewards as each rollout first went through the model."""
        return self.meter.fill("reward", self.scored_BT)

    def for_rows(self, rows: Sequence[int], *, first: bool) -> Loss:
        """Return the mean loss of the labelled ones among some rows, for any split of them."""
        batch = self._batch
        rows_b = torch.tensor(rows, device=self._reference_BT.device)
        count = int(batch.votes_B[rows_b].sum())
        self._count += count

        def loss(outputs: Outputs) -> Tensor:
            outputs = outputs.to(rows_b.device)
            at, width = rows_b[outputs.rows], outputs.logprobs_bT.shape[1]
            mask_bT, reference_bT = batch.mask_BT[at, :width], self._reference_BT[at, :width]
            rewards_bT = implicit_rewards(outputs.logprobs_bT, reference_bT, mask_bT, beta=self._beta)
            if first:
                self.meter.keep("reward", at, rewards_bT)
            losses_b = self._losses(rewards_bT, mask_bT, at)
            self.meter.sum("loss", losses_b.sum(dtype=torch.float64))
            return losses_b.sum() / count

        return loss

    def _losses(self, rewards_bT: Tensor, mask_bT: Tensor, at: Tensor) -> Tensor:
        if self._opponents is not None:
            others = self._opponents
            return pairwise_losses(rewards_bT.sum(-1), others.mean_B[at], others.sign_B[at], others.weight_B[at])
        labelled_bT = mask_bT & self._batch.votes_B[at][:, None]
        offset_b = None if self._offset_B is None else self._offset_B[at]
        return outcome_cross_entropy(rewards_bT, labelled_bT, self._batch.outcomes_B[at], offset_B=offset_b)
