"""Reward models that learn from comparisons: Bradley-Terry on pairs, Plackett-Luce on whole groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from rewardsmith.data.source import Reads
from rewardsmith.engines.conversation_rows import conversation_rows, ratings, tokens_read
from rewardsmith.engines.protocol import Row
from rewardsmith.errors import UserError, listing
from rewardsmith.llm import ModelCallError
from rewardsmith.text.judge_prompts import rated_answer, rated_conversation
from rewardsmith.trainers.metrics import Clock
from rewardsmith.trainers.preference_batch import (
    ComparedAnswers,
    PreferenceBatch,
    PreferenceObjective,
    accuracy_by_source,
    agreement,
    compare_answers,
)
from rewardsmith.trainers.stages import RewardModelStage
from rewardsmith.trainers.trainer import Context, Draws, Update, count_items, counting, derive, held_out, learning_rate
from rewardsmith.types import Preference, Ranking

PATIENCE = 1_000
"""Batches without a comparison that fits, after which the stage is not worth going on with."""

Items = Callable[[int], Iterator[Preference | Ranking]]


class RewardModelTrainer:
    """Teaches a model with a scalar head to order answers as the data does.

    An answer's reward is read where it will be read when the model is called: the prompt and the answer go through the
    chat template and the tokenizer by the same functions (`text.judge_prompts`, `engines.conversation_rows`).

    Args:
        stage: the settings.
        context: models, data and files of the run.
    """

    def __init__(self, stage: RewardModelStage, context: Context) -> None:
        self._stage = stage
        self._context = context
        self._seed = derive(context.seed, stage.name)
        items, seed = self._items(stage.data), derive(self._seed, stage.learn_from)
        self._left: int | None = None
        if stage.epochs is not None:
            self._left = stage.epochs * count_items(items(derive(seed, 0)), stage.learn_from, stage.data, context.log)
        self._draws: Draws[Preference | Ranking] = Draws(items, seed, stage.data)
        self._engine = context.engine(stage.model)
        self._engine.require_chat_template()
        self._engine.learn_with(stage.optimizer)
        self._held_out: tuple[PreferenceBatch, int] | None = None
        self._learned = 0  # comparisons that fitted, so far
        self.steps: int = stage.steps or math.ceil((self._left or 0) / stage.batch_size)
        self.learners = {stage.model: self._engine}
        self.reward = None
        self.best_by = "validation/accuracy" if stage.validation else ""

    # ---- the data --------------------------------------------------------------------------------------------------

    def _items(self, name: str) -> Items:
        """Return what yields the pairs or groups of a source."""
        source, wanted = self._context.source(name), self._stage.learn_from
        found: Items | None = getattr(source, wanted, None)
        if found is None:
            others: list[Reads] = ["preferences", "rankings"]
            has = [other for other in others if hasattr(source, other)]
            remedy = f'it has {listing(has)}: set learn_from = "{has[0]}"' if has else "name data with comparisons"
            raise UserError(f"data.{name} ({type(source).__name__}) has no {wanted}: {remedy}")
        return found

    def _batch(self, items: Iterable[Preference | Ranking]) -> tuple[PreferenceBatch, int]:
        """Return those items as comparisons that fit, and how many do not."""
        groups: list[ComparedAnswers] = []
        conversations, tokens = [], []
        dropped = 0
        for item in items:
            compared = compare_answers(item)
            stage = self._stage
            rated = [
                rated_conversation(compared.prompt, rated_answer(answer, think=stage.think), system=stage.system)
                for answer in compared.answers
            ]
            try:
                read = [self._engine.encode_conversation(conversation) for conversation in rated]
            except ModelCallError as error:
                raise UserError(f"prompt {compared.prompt.id!r}: {error}") from None
            if not all(0 < len(each) <= self._limit for each in read):
                dropped += 1
                continue
            groups.append(compared)
            conversations += rated
            tokens += read
        return PreferenceBatch(groups, conversation_rows(conversations, tokens)), dropped

    @property
    def _limit(self) -> int:
        return min(self._stage.max_tokens or self._engine.max_length, self._engine.max_length)

    # ---- the steps -------------------------------------------------------------------------------------------------

    async def begin(self) -> Update:
        """Measure the model before the first step."""
        async with self._context.on_device(self._stage.model):
            return Update(0, self._validate() if self._stage.validation else {})

    async def step(self, number: int) -> Update:
        """Take one optimizer step."""
        async with self._context.on_device(self._stage.model):
            return self._step(number)

    def _step(self, number: int) -> Update:
        self._context.pause()
        clock = Clock()
        batch, dropped = self._batch(self._draws.take(self._size(number)))
        self._require_some(number, batch)
        lr = learning_rate(self._stage.optimizer, number - 1, self.steps)
        metrics = self._learn(batch, lr) | {"lr": lr, "tokens/learned": float(tokens_read(batch.rows))}
        clock.lap("learn")
        metrics |= {"dropped": float(dropped)} if dropped else {}
        validation = self._stage.validation
        if validation and (number % validation.every == 0 or number == self.steps):
            metrics |= self._validate()
        return Update(number, metrics | {"time/learn": clock.metrics(0)["time/learn"]})

    def _size(self, number: int) -> int:
        """Return how many items a step takes; the last one of all epochs takes what is left."""
        size = self._stage.batch_size
        return size if self._left is None else min(size, self._left - (number - 1) * size)

    def _require_some(self, number: int, batch: PreferenceBatch) -> None:
        self._learned += len(batch.mask_GN)
        taken = (number - 1) * self._stage.batch_size + self._size(number)
        if not self._learned and (taken >= PATIENCE or number == self.steps):
            raise UserError(
                f"none of the first {taken} {self._stage.learn_from} of data.{self._stage.data} fits into"
                f" {self._limit} tokens: raise max_tokens, or take a model that reads more"
            )

    def _learn(self, batch: PreferenceBatch, lr: float) -> dict[str, float]:
        """Take the step on a batch, and return how the rewards before it were."""
        if not batch.rows:
            return {"skipped_updates": 0.0}
        known_R = torch.zeros(len(batch.rows), device=self._engine.device)
        apart = batch.apart(self._engine.micro_batches(batch.rows))
        if apart:
            known_R[apart] = self._rewards([batch.rows[row] for row in apart])
        objective = PreferenceObjective(self._stage, batch, known_R)
        count = counting(self._context.progress, "learning", len(batch.rows), "answers")
        step = self._engine.update(batch.rows, objective.part, lr=lr, count=count)
        metrics = {"skipped_updates": float(step.skipped)} | ({} if step.skipped else {"grad_norm": step.grad_norm})
        if not bool(objective.seen_R.isfinite().all()):
            return metrics
        rewards_R = objective.seen_R.double().cpu().numpy()
        return {"loss": float(objective.losses(objective.seen_R).mean())} | agreement(batch, rewards_R) | metrics

    def _rewards(self, rows: list[Row]) -> Tensor:
        return ratings(self._engine.values(rows), rows)

    def _validate(self) -> dict[str, float]:
        """Return how the model does on the held-out comparisons."""
        validation = self._stage.validation
        assert validation is not None
        if self._held_out is None:
            found = held_out(self._items(validation.data), validation.items, validation.data)
            self._held_out = self._batch(found)
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
        return {"draws": self._draws.state(), "learned": self._learned}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._draws.restore(state["draws"])
        self._learned = int(state["learned"])
