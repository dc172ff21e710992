"""Reward models that learn from comparisons: Bradley-Terry on pairs, Plackett-Luce on whole groups.

Shapes: G groups of at most N answers, R rows (answers of all groups), P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.algorithms.preferences import group_centering
from rewardsmith.engines.conversation_rows import conversation_rows, ratings, tokens_read
from rewardsmith.engines.protocol import Meter, Outputs, Row
from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError
from rewardsmith.text.judge_prompts import rated_answer, rated_conversation
from rewardsmith.trainers.evaluate.eval_measures import measure_sources
from rewardsmith.trainers.objective import preference_loss
from rewardsmith.trainers.sft import SupervisedTrainer
from rewardsmith.trainers.stages import RewardModelStage
from rewardsmith.trainers.trainer import Context, counting, held_out
from rewardsmith.types import Preference, Ranking

MAX_UNFIT = 1_000
"""Items without a comparison that fits, after which the stage stops."""

Item = Preference | Ranking


def answers_of(item: Item) -> tuple[str, ...]:
    """Return the answers that an item compares."""
    return tuple(item.candidates) if isinstance(item, Ranking) else (item.chosen, item.rejected)


class PreferenceBatch:
    """A batch of comparisons, and the rows through which a model reads their answers.

    Attributes:
        rows: one for each answer of each group, in order; R of them.
        at_GN: int64 [G, N], the row of each answer; 0 where there is none.
        levels_GN: int64 [G, N], place of each answer, smaller is better; equal numbers are ties.
        quality_GN: float32 [G, N], whose differences are the annotated margins.
        mask_GN: bool [G, N], where there is an answer.
        better_P2: int64 [P, 2], the rows of the better and the worse answer of every pair that is not tied.
        tied_P2: int64 [P, 2], the rows of every pair that is.
        sources_P: the prompt's source for each pair that is not tied.
    """

    def __init__(self, items: Sequence[Item], rows: Sequence[Row]) -> None:
        self.rows = list(rows)
        shape = len(items), max((len(answers_of(item)) for item in items), default=0)
        self.at_GN = torch.zeros(shape, dtype=torch.long)
        self.levels_GN = torch.zeros(shape, dtype=torch.long)
        self.quality_GN = torch.zeros(shape)
        self.mask_GN = torch.zeros(shape, dtype=torch.bool)
        better, tied = [np.zeros((0, 2), dtype=np.int64)], [np.zeros((0, 2), dtype=np.int64)]
        self.sources_P: list[str] = []
        first = 0
        for g, item in enumerate(items):
            levels, quality = _levels_and_quality(item)
            n = len(levels)
            self.at_GN[g, :n] = torch.arange(first, first + n)
            self.levels_GN[g, :n] = torch.from_numpy(levels)
            self.quality_GN[g, :n] = torch.from_numpy(quality.astype(np.float32))
            self.mask_GN[g, :n] = True
            i, j = np.nonzero(levels[:, None] < levels[None, :])
            better.append(first + np.stack([i, j], axis=1))
            i, j = np.nonzero(np.triu(levels[:, None] == levels[None, :], 1))
            tied.append(first + np.stack([i, j], axis=1))
            self.sources_P += [item.prompt.source] * len(better[-1])
            first += n
        self.better_P2, self.tied_P2 = np.concatenate(better), np.concatenate(tied)

    def apart(self, parts: Sequence[Sequence[int]]) -> list[int]:
        """Return the rows of the groups that a partition splits."""
        part_R = np.zeros(len(self.rows), dtype=np.int64)
        for number, rows in enumerate(parts):
            part_R[list(rows)] = number
        groups = (at[mask].tolist() for at, mask in zip(self.at_GN, self.mask_GN, strict=True))
        return [row for rows in groups if len({*part_R[rows].tolist()}) > 1 for row in rows]


def _levels_and_quality(item: Item) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the place and the quality of each answer; no margin may be infinite in float32."""
    if isinstance(item, Ranking):
        levels, quality = np.unique(-item.scores, return_inverse=True)[1].astype(np.int64), item.scores
    else:
        levels, quality = np.array([0, 0 if item.tied else 1]), np.array([item.margin, 0.0])
    margin = quality.max() - quality.min()
    if max(margin, np.abs(quality).max()) > np.finfo(np.float32).max:
        raise UserError(
            f"prompt {item.prompt.id!r} has a margin of {margin:g}, which is too large for a model to learn: divide all"
            " margins and scores of the data by the same number"
        )
    return levels, quality


class PreferenceObjective:
    """The loss of a reward model on a batch, exact for any split of its rows into passes.

    A group's loss depends on the rewards of all its answers, and they may go through the model in different passes. In
    each pass the rewards of the others stand as constants: the derivative by the answers of this pass is then the right
    one, and the passes add up to the gradient. Only groups that are torn apart need their rewards beforehand: `known_R`
    has those of the rows of `batch.apart`, and any finite number elsewhere. The meter keeps the reward of each row.
    """

    def __init__(self, stage: RewardModelStage, batch: PreferenceBatch, known_R: Tensor) -> None:
        self._batch, self._known_R, self._centre = batch, known_R, stage.centre
        self._loss = preference_loss(stage.loss)
        self.meter = Meter()
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
        self.meter.keep("reward", outputs.rows, rewards_b)
        if not bool(rewards_b.isfinite().all()) or not bool(self._known_R.isfinite().all()):
            return rewards_b.sum() * torch.nan  # the engine skips such an update, and logs it
        here_R = torch.zeros_like(self._known_R, dtype=torch.bool).index_fill(0, outputs.rows, value=True)
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
    """Return `sources/SOURCE/accuracy` for each source of the prompts, and how many pairs it has."""
    right_P = _leads(batch.better_P2, rewards_R) > 0
    return measure_sources(
        batch.sources_P, lambda at: {"accuracy": float(right_P[list(at)].mean()), "pairs": float(len(at))}
    )


def _leads(pairs_P2: NDArray[np.int64], rewards_R: NDArray[np.float64]) -> NDArray[np.float64]:
    leads: NDArray[np.float64] = rewards_R[pairs_P2[:, 0]] - rewards_R[pairs_P2[:, 1]]
    return leads


class RewardModelTrainer(SupervisedTrainer):
    """Teaches a model with a scalar head to order answers as the data does.

    An answer's reward is read where it will be read when the model is called: the prompt and the answer go through the
    chat template and the tokenizer by the same functions (`text.judge_prompts`, `engines.conversation_rows`).
    """

    best = "validation/accuracy"
    _stage: RewardModelStage

    def __init__(self, stage: RewardModelStage, context: Context) -> None:
        super().__init__(stage, context)
        self._engine.require_chat_template()
        self._held_out: tuple[PreferenceBatch, int] | None = None
        self._learned = 0  # comparisons that fitted, so far

    def _batch(self, items: Sequence[Item]) -> tuple[PreferenceBatch, int]:
        """Return those items as comparisons that fit, and how many do not."""
        stage, kept, conversations, tokens = self._stage, list[Item](), [], []
        for item in items:
            rated = [
                rated_conversation(item.prompt, rated_answer(answer, think=stage.think), system=stage.system)
                for answer in answers_of(item)
            ]
            try:
                read = [self._engine.encode_conversation(conversation) for conversation in rated]
            except ModelCallError as error:
                raise UserError(f"prompt {item.prompt.id!r}: {error}") from None
            if all(0 < len(each) <= self._limit for each in read):
                kept.append(item)
                conversations += rated
                tokens += read
        return PreferenceBatch(kept, conversation_rows(conversations, tokens)), len(items) - len(kept)

    def _learn(self, number: int, lr: float) -> dict[str, float]:
        size, before = self._stage.batch_size, (number - 1) * self._stage.batch_size
        if self._total is not None:  # the last step of all epochs takes what is left
            size = min(size, self._total - before)
        batch, dropped = self._batch(self._draws.take(size))
        self._learned += len(batch.mask_GN)
        if not self._learned and (before + size >= MAX_UNFIT or number == self.steps):
            raise UserError(
                f"none of the first {before + size} {self._stage.learn_from} of data.{self._stage.data} fits into"
                f" {self._limit} tokens: raise max_tokens, or use a model with a longer context"
            )
        metrics = self._update(batch, lr) | {"tokens/learned": float(tokens_read(batch.rows))}
        return metrics | ({"dropped": float(dropped)} if dropped else {})

    def _update(self, batch: PreferenceBatch, lr: float) -> dict[str, float]:
        """Take the step on a batch, and return how the rewards before it were."""
        if not batch.rows:
            return {"skipped_updates": 0.0}
        known_R = torch.zeros(len(batch.rows), device=self._engine.device)
        apart = batch.apart(self._engine.micro_batches(batch.rows))
        if apart:
            known_R[apart] = self._rewards([batch.rows[row] for row in apart])
        objective = PreferenceObjective(self._stage, batch, known_R)
        count = counting(self._context.progress, "learning", len(batch.rows), "answers")
        step = self._engine.update(batch.rows, objective.part, lr=lr, meter=objective.meter, count=count)
        metrics = {"skipped_updates": float(step.skipped)} | ({} if step.skipped else {"grad_norm": step.grad_norm})
        seen_R = objective.meter.fill("reward", torch.full_like(known_R, torch.nan))
        if not bool(seen_R.isfinite().all()):
            return metrics
        loss = float(objective.losses(seen_R).mean())
        return {"loss": loss} | agreement(batch, seen_R.double().cpu().numpy()) | metrics

    def _rewards(self, rows: list[Row]) -> Tensor:
        return ratings(self._engine.values(rows), rows)

    def _validate(self) -> dict[str, float]:
        """Return how the model does on the held-out comparisons."""
        validation = self._stage.validation
        assert validation is not None
        if self._held_out is None:
            self._held_out = self._batch(held_out(self._items(validation.data), validation.items, validation.data))
        batch, dropped = self._held_out
        if not batch.rows:
            raise UserError(
                f"data.{validation.data} has no {self._stage.learn_from} that fit into {self._limit} tokens"
            )
        self._context.progress("validation", 0, 0)
        rewards_R = self._rewards(batch.rows)
        if not bool(rewards_R.isfinite().all()):
            raise UserError(f"models.{self._stage.model} gives numbers that are not finite: lower optimizer.lr")
        loss = float(PreferenceObjective(self._stage, batch, rewards_R).losses(rewards_R).mean())
        numbers_R = rewards_R.double().cpu().numpy()
        metrics = {"loss": loss} | agreement(batch, numbers_R) | accuracy_by_source(batch, numbers_R)
        metrics |= {"dropped": float(dropped)} if dropped else {}
        return {f"validation/{name}": value for name, value in metrics.items()}

    def state(self) -> dict[str, Any]:
        """Return the position in the data, and how many comparisons were learned from."""
        return super().state() | {"learned": self._learned}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        super().restore(state)
        self._learned = int(state["learned"])
