"""Supervised fine-tuning on demonstrations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from rewardsmith.engines.protocol import Outputs, Row
from rewardsmith.errors import UserError
from rewardsmith.trainers.metrics import Clock
from rewardsmith.trainers.objective import Meter
from rewardsmith.trainers.stages import SftStage
from rewardsmith.trainers.trainer import Context, Draws, Update, count_items, counting, derive, held_out, learning_rate
from rewardsmith.types import Demonstration


class SftTrainer:
    r"""Imitates demonstrations; the loss is the mean over the answer tokens of a batch.

    $$\ell = -\frac1N\sum_t \log\pi(y_t)$$

    Args:
        stage: the settings.
        context: models, data and files of the run.
    """

    def __init__(self, stage: SftStage, context: Context) -> None:
        self._stage = stage
        self._context = context
        self._seed = derive(context.seed, stage.name)
        self._engine = context.engine(stage.model)
        shown, seed = self._demonstrations(stage.data), derive(self._seed, "demonstrations")
        self._draws: Draws[Demonstration] = Draws(shown, seed, stage.data)
        self._engine.learn_with(stage.optimizer)
        self._held_out: list[Row] = []
        self.steps = stage.steps or 0
        if stage.epochs is not None:
            each = count_items(shown(derive(seed, 0)), "demonstrations", stage.data, context.log)
            self.steps = math.ceil(stage.epochs * each / stage.batch_size)
        self.learners = {stage.model: self._engine}
        self.reward = None
        self.best_by = "-validation/loss" if stage.validation else ""

    def _demonstrations(self, name: str) -> Callable[[int], Any]:
        source = self._context.source(name)
        demonstrations = getattr(source, "demonstrations", None)
        if demonstrations is None:
            raise UserError(
                f"data.{name} ({type(source).__name__}) has no demonstrations: sft needs answers to imitate"
            )
        return demonstrations  # type: ignore[no-any-return]

    async def begin(self) -> Update:
        """Measure the loss before the first step."""
        async with self._context.on_device(self._stage.model):
            return Update(0, self._validate() if self._stage.validation else {})

    async def step(self, number: int) -> Update:
        """Take one optimizer step."""
        async with self._context.on_device(self._stage.model):
            return self._step(number)

    def _step(self, number: int) -> Update:
        self._context.pause()
        clock, meter = Clock(), Meter()
        rows, dropped = self._rows()
        lr = learning_rate(self._stage.optimizer, number - 1, self.steps)
        count = counting(self._context.progress, "learning", len(rows), "demonstrations")
        step = self._engine.update(rows, _imitation(rows, meter), lr=lr, meter=meter, count=count)
        clock.lap("learn")
        tokens = sum(len(row.response) for row in rows)
        metrics = meter.means() | {"lr": lr, "skipped_updates": float(step.skipped), "tokens/learned": float(tokens)}
        metrics |= {} if step.skipped else {"grad_norm": step.grad_norm}
        metrics |= {"dropped": float(dropped)} if dropped else {}
        validation = self._stage.validation
        if validation and (number % validation.every == 0 or number == self.steps):
            metrics |= self._validate()
        return Update(number, metrics | {"time/learn": clock.metrics(0)["time/learn"]})

    def _rows(self) -> tuple[list[Row], int]:
        """Return the rows of a batch, and how many demonstrations were too long for it."""
        rows: list[Row] = []
        dropped = 0
        while len(rows) < self._stage.batch_size:
            (demonstration,) = self._draws.take(1)
            row = self._row(demonstration)
            if len(row.prompt) + len(row.response) <= self._limit:
                rows.append(row)
                continue
            dropped += 1
            if dropped > 1_000 * self._stage.batch_size:
                raise UserError(
                    f"{dropped} demonstrations in a row have more than {self._limit} tokens: raise max_tokens"
                )
        return rows, dropped

    @property
    def _limit(self) -> int:
        return min(self._stage.max_tokens or self._engine.max_length, self._engine.max_length)

    def _row(self, demonstration: Demonstration) -> Row:
        return Row(self._engine.encode(demonstration.prompt), self._engine.encode_response(demonstration.response))

    def _validate(self) -> dict[str, float]:
        """Return the mean loss over the answer tokens of the held-out demonstrations."""
        validation = self._stage.validation
        assert validation is not None
        if not self._held_out:
            found = held_out(self._demonstrations(validation.data), validation.demonstrations, validation.data)
            rows = [self._row(d) for d in found]
            self._held_out = [row for row in rows if len(row.prompt) + len(row.response) <= self._limit]
        if not self._held_out:
            raise UserError(f"data.{validation.data} has no demonstration of at most {self._limit} tokens")
        self._context.progress("validation", 0, 0)
        total = float(self._engine.logprobs(self._held_out).double().sum())
        loss = -total / sum(len(row.response) for row in self._held_out)
        return {"validation/loss": loss, "validation/perplexity": math.exp(min(loss, 700.0))}

    def state(self) -> dict[str, Any]:
        """Return the position in the data."""
        return {"draws": self._draws.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._draws.restore(state["draws"])


def _imitation(rows: list[Row], meter: Meter) -> Callable[[Outputs], Tensor]:
    """Return the loss of a batch, for any split of its rows."""
    tokens = sum(len(row.response) for row in rows)

    def loss(outputs: Outputs) -> Tensor:
        total = -(outputs.logprobs_bT * outputs.mask_bT).sum() / tokens  # of the whole batch, whatever the part
        meter.sum("loss", total)
        return total

    return loss
