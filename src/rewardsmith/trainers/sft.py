"""Supervised fine-tuning, and what it shares with other stages that learn from the items of a source."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from rewardsmith.engines.protocol import Meter, Outputs, Row
from rewardsmith.errors import UserError
from rewardsmith.trainers.metrics import Clock
from rewardsmith.trainers.stages import SftStage, SupervisedStage
from rewardsmith.trainers.trainer import Context, Draws, Trainer, Update, count_items, counting, derive, held_out
from rewardsmith.types import Demonstration


class SupervisedTrainer(Trainer):
    """Takes batches of the items of a source, and validates on others; a subclass learns and measures."""

    best = ""  # the metric of a validation by which the best checkpoint is chosen; with - in front: the lowest

    def __init__(self, stage: SupervisedStage, context: Context) -> None:
        self._stage, self._context = stage, context
        seed, items = derive(derive(context.seed, stage.name), stage.reads), self._items(stage.data)
        self._draws: Draws[Any] = Draws(items, seed, stage.data)
        self._engine = context.engine(stage.model)
        self._engine.learn_with(stage.optimizer)
        self._limit = min(stage.max_tokens or self._engine.max_length, self._engine.max_length)
        self._total: int | None = None  # items of all epochs
        if stage.epochs is not None:
            self._total = stage.epochs * count_items(items(derive(seed, 0)), stage.reads, stage.data, context.log)
        self.steps: int = stage.steps or math.ceil((self._total or 0) / stage.batch_size)
        self.learners, self.reward = {stage.model: self._engine}, None
        self.best_by = self.best if stage.validation else ""

    def _items(self, name: str) -> Callable[[int], Iterator[Any]]:
        """Return what yields the items of a source in an order given by a seed."""
        items: Callable[[int], Iterator[Any]] = getattr(self._context.source(name), self._stage.reads)
        return items

    async def begin(self) -> Update:
        """Measure the model before the first step."""
        validation = self._stage.validation
        async with self._context.on_device(self._stage.model):
            return Update(0, self._validate() if validation and validation.due(0, self.steps) else {})

    async def step(self, number: int) -> Update:
        """Take one optimizer step."""
        async with self._context.on_device(self._stage.model):
            self._context.pause()
            clock, lr = Clock(), self._stage.optimizer.rate(number - 1, self.steps)
            metrics = self._learn(number, lr) | {"lr": lr}
            clock.lap("learn")
            validation = self._stage.validation
            if validation and validation.due(number, self.steps):
                metrics |= self._validate()
        return Update(number, metrics | {"time/learn": clock.metrics(0)["time/learn"]})

    def _learn(self, number: int, lr: float) -> dict[str, float]:
        """Take the optimizer step and return its metrics."""
        raise NotImplementedError

    def _validate(self) -> dict[str, float]:
        """Return how the model does on the held-out items."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return the position in the data."""
        return {"draws": self._draws.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._draws.restore(state["draws"])


class SftTrainer(SupervisedTrainer):
    r"""Imitates demonstrations; the loss is the mean over the answer tokens of a batch.

    $$\ell = -\frac1N\sum_t \log\pi(y_t)$$
    """

    best = "-validation/loss"
    _stage: SftStage

    def __init__(self, stage: SftStage, context: Context) -> None:
        super().__init__(stage, context)
        self._held_out: list[Row] = []

    def _learn(self, number: int, lr: float) -> dict[str, float]:
        meter, (rows, dropped) = Meter(), self._rows()
        tokens = sum(len(row.response) for row in rows)

        def loss(outputs: Outputs) -> Tensor:
            total = -(outputs.logprobs_bT * outputs.mask_bT).sum() / tokens  # of the whole batch, whatever the part
            meter.sum("loss", total)
            return total

        count = counting(self._context.progress, "learning", len(rows), "demonstrations")
        step = self._engine.update(rows, loss, lr=lr, meter=meter, count=count)
        metrics = meter.means() | {"skipped_updates": float(step.skipped), "tokens/learned": float(tokens)}
        metrics |= {} if step.skipped else {"grad_norm": step.grad_norm}
        return metrics | ({"dropped": float(dropped)} if dropped else {})

    def _rows(self) -> tuple[list[Row], int]:
        """Return the rows of a batch, and how many demonstrations were too long for it."""
        rows: list[Row] = []
        dropped = 0
        while len(rows) < self._stage.batch_size:
            row = self._row(*self._draws.take(1))
            if len(row.prompt) + len(row.response) <= self._limit:
                rows.append(row)
                continue
            dropped += 1
            if dropped > 1_000 * self._stage.batch_size:
                raise UserError(f"{dropped} demonstrations have more than {self._limit} tokens: raise max_tokens")
        return rows, dropped

    def _row(self, demonstration: Demonstration) -> Row:
        return Row(self._engine.encode(demonstration.prompt), self._engine.encode_response(demonstration.response))

    def _validate(self) -> dict[str, float]:
        """Return the mean loss over the answer tokens of the held-out demonstrations."""
        validation = self._stage.validation
        assert validation is not None
        if not self._held_out:
            items = held_out(self._items(validation.data), validation.demonstrations, validation.data)
            rows = [self._row(item) for item in items]
            self._held_out = [row for row in rows if len(row.prompt) + len(row.response) <= self._limit]
        if not self._held_out:
            raise UserError(f"data.{validation.data} has no demonstration of at most {self._limit} tokens")
        self._context.progress("validation", 0, 0)
        total = float(self._engine.logprobs(self._held_out).double().sum())
        loss = -total / sum(len(row.response) for row in self._held_out)
        return {"validation/loss": loss, "validation/perplexity": math.exp(min(loss, 700.0))}
