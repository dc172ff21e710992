"""A batch of preferences, what a reward model minimises over it, and how well rewards agree with it.

Shapes: G groups of at most N answers, R rows (answers of all groups), P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.algorithms.preferences import group_centering
from rewardsmith.engines.conversation_rows import ratings
from rewardsmith.engines.protocol import Outputs, Row
from rewardsmith.errors import UserError
from rewardsmith.trainers.stages import RewardModelStage
from rewardsmith.trainers.user_functions import preference_loss_of
from rewardsmith.types import Preference, Prompt, Ranking

MAX_SOURCES = 200
"""Sources that have a metric of their own."""


@dataclass(frozen=True)
class ComparedAnswers:
    """Answers to one prompt, and how they compare."""

    prompt: Prompt  # the prompt
    answers: tuple[str, ...]  # n of them, at least two
    levels: NDArray[np.int64]  # int64, place of each answer, smaller is better; equal numbers are ties
    quality: NDArray[np.float64]  # float64, whose differences are the annotated margins


def compare_answers(item: Preference | Ranking) -> ComparedAnswers:
    """Return a pair or a group as answers that compare."""
    if isinstance(item, Ranking):
        levels = np.unique(-item.scores, return_inverse=True)[1].astype(np.int64)
        return ComparedAnswers(item.prompt, tuple(item.candidates), levels, item.scores)
    levels = np.array([0, 0 if item.tied else 1])
    return ComparedAnswers(item.prompt, (item.chosen, item.rejected), levels, np.array([item.margin, 0.0]))


class PreferenceBatch:
    """A batch of comparisons, and the rows through which a model reads their answers.

    Args:
        groups: what is compared, G of them.
        rows: one for each answer of each group, in order.

    Attributes:
        rows: R of them.
        at_GN: int64 [G, N], the row of each answer; 0 where there is none.
        levels_GN: int64 [G, N], places; see `ComparedAnswers`.
        quality_GN: float32 [G, N].
        mask_GN: bool [G, N], where there is an answer.
        better_P2: int64 [P, 2], the rows of the better and the worse answer of every pair that is not tied.
        tied_P2: int64 [P, 2], the rows of every pair that is.
        sources_P: the prompt's source for each pair that is not tied.
    """

    def __init__(self, groups: Sequence[ComparedAnswers], rows: Sequence[Row]) -> None:
        self.rows = list(rows)
        shape = len(groups), max((len(group.answers) for group in groups), default=0)
        self.at_GN = torch.zeros(shape, dtype=torch.long)
        self.levels_GN = torch.zeros(shape, dtype=torch.long)
        self.quality_GN = torch.zeros(shape)
        self.mask_GN = torch.zeros(shape, dtype=torch.bool)
        better, tied = [np.zeros((0, 2), dtype=np.int64)], [np.zeros((0, 2), dtype=np.int64)]
        self.sources_P: list[str] = []
        first = 0
        for g, group in enumerate(groups):
            n = len(group.answers)
            self.at_GN[g, :n] = torch.arange(first, first + n)
            self.levels_GN[g, :n] = torch.from_numpy(group.levels)
            self.quality_GN[g, :n] = _as_float32(group)
            self.mask_GN[g, :n] = True
            i, j = np.nonzero(group.levels[:, None] < group.levels[None, :])
            better.append(first + np.stack([i, j], axis=1))
            i, j = np.nonzero(np.triu(group.levels[:, None] == group.levels[None, :], 1))
            tied.append(first + np.stack([i, j], axis=1))
            self.sources_P += [group.prompt.source] * len(better[-1])
            first += n
        self.better_P2, self.tied_P2 = np.concatenate(better), np.concatenate(tied)

    def apart(self, parts: Sequence[Sequence[int]]) -> list[int]:
        """Return the rows of the groups that a partition splits."""
        part_R = np.zeros(len(self.rows), dtype=np.int64)
        for number, rows in enumerate(parts):
            part_R[list(rows)] = number
        groups = (at[mask].tolist() for at, mask in zip(self.at_GN, self.mask_GN, strict=True))
        return [row for rows in groups if len({*part_R[rows].tolist()}) > 1 for row in rows]


def _as_float32(group: ComparedAnswers) -> Tensor:
    """Return the quality of the answers to a prompt, [n]; no margin may become infinite."""
    quality_n = torch.from_numpy(group.quality.copy()).float()
    if not bool((quality_n.max() - quality_n.min()).isfinite()):
        raise UserError(
            f"prompt {group.prompt.id!r} has a margin of {group.quality.max() - group.quality.min():g}, which is too"
            " large for a model to learn: divide all margins and scores of the data by the same number"
        )
    return quality_n


class PreferenceObjective:
    """The loss of a reward model on a batch, exact for any split of its rows into passes.

    A group's loss depends on the rewards of all its answers, and they may go through the model in different passes. In
    each pass the rewards of the others stand as constants: the derivative by the answers of this pass is then the right
    one, and the passes add up to the gradient. Only groups that are torn apart need their rewards beforehand.

    Args:
        stage: which loss, and what is added to it.
        batch: what is compared.
        known_R: float32 [R], the rewards of the rows of `batch.apart`; any finite number elsewhere.

    Attributes:
        seen_R: float32 [R], the reward of each row, once it went through the model.
    """

    def __init__(self, stage: RewardModelStage, batch: PreferenceBatch, known_R: Tensor) -> None:
        self._batch = batch
        self._known_R = known_R
        self._loss = preference_loss_of(stage.loss)
        self._centre = stage.centre
        self.seen_R = torch.full_like(known_R, torch.nan)
        device = known_R.device
        self._at_GN, self._mask_GN = batch.at_GN.to(device), batch.mask_GN.to(device)
        self._levels_GN, self._quality_GN = batch.levels_GN.to(device), batch.quality_GN.to(device)

    def losses(self, rewards_R: Tensor, groups_g: Tensor | None = None) -> Tensor:
        """Return the loss of each group, or of some of them, float32 [g]."""
        chosen = slice(None) if groups_g is None else groups_g
        mask_gN = self._mask_GN[chosen]
        rewards_gN = torch.where(mask_gN, rewards_R[self._at_GN[chosen]], 0)
        losses_g: Tensor = self._loss(rewards_gN, self._levels_GN[chosen], self._quality_GN[chosen], mask_gN)
        return losses_g + self._centre * group_centering(rewards_gN, mask_gN) if self._centre else losses_g

    def part(self, outputs: Outputs) -> Tensor:
        """Return a number whose gradient is that of the batch's mean loss by the rows of this part."""
        rewards_b = ratings(outputs.values_bT, [self._batch.rows[row] for row in outputs.rows.tolist()])
        self.seen_R[outputs.rows] = rewards_b.detach()
        if not bool(rewards_b.isfinite().all()) or not bool(self._known_R.isfinite().all()):
            return rewards_b.sum() * torch.nan  # the engine skips such an update, and logs it
        here_R = torch.zeros_like(self.seen_R, dtype=torch.bool).index_fill(0, outputs.rows, value=True)
        groups_g = (here_R[self._at_GN] & self._mask_GN).any(-1).nonzero()[:, 0]
        rewards_R = self._known_R.index_copy(0, outputs.rows, rewards_b)
        return self.losses(rewards_R, groups_g).sum() / len(self._mask_GN)


def agreement(batch: PreferenceBatch, rewards_R: NDArray[np.float64]) -> dict[str, float]:
    """Return how well rewards order the pairs of a batch.

    `accuracy` is the share of the pairs that are not tied in which the better answer has the higher reward, and
    `undecided` the share in which both have the same, which is not right; `margin` is the mean lead of the better
    answer. Ties count in none of these: `tied` is how many there are, and `tied_gap` the mean distance within them.
    """
    metrics = {"reward/mean": float(rewards_R.mean()), "reward/spread": float(rewards_R.std())}
    if len(batch.better_P2):
        lead_P = _leads(batch.better_P2, rewards_R)
        metrics |= {"accuracy": float((lead_P > 0).mean()), "margin": float(lead_P.mean())}
        metrics["undecided"] = float((lead_P == 0).mean())
    metrics["tied"] = float(len(batch.tied_P2))
    if len(batch.tied_P2):
        metrics["tied_gap"] = float(np.abs(_leads(batch.tied_P2, rewards_R)).mean())
    return metrics


def accuracy_by_source(batch: PreferenceBatch, rewards_R: NDArray[np.float64]) -> dict[str, float]:
    """Return `accuracy/SOURCE` for the `MAX_SOURCES` largest sources of the prompts; nothing where there is one."""
    names, at_P, counts = np.unique(np.array(batch.sources_P, dtype=object), return_inverse=True, return_counts=True)
    if len(names) < 2:
        return {}
    shares = np.bincount(at_P, weights=_leads(batch.better_P2, rewards_R) > 0) / counts
    largest = np.sort(np.argsort(-counts, kind="stable")[:MAX_SOURCES])
    return {f"accuracy/{names[i] or 'unnamed'}": float(shares[i]) for i in largest}


def _leads(pairs_P2: NDArray[np.int64], rewards_R: NDArray[np.float64]) -> NDArray[np.float64]:
    leads: NDArray[np.float64] = rewards_R[pairs_P2[:, 0]] - rewards_R[pairs_P2[:, 1]]
    return leads
