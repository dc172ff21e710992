"""Rollouts of later steps, which are written and scored while a step learns.

The schedule does not depend on time. When step k begins, the policy has learned from k - 1 steps; these weights write
the rollouts of step k + `ahead`, and no others. So step k learns from answers that are `ahead` updates old (fewer in
the first steps). When a step ends, everything that was begun in it is written, and what is not scored yet is saved as
it was written: a resumed run learns from the same answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rewardsmith.engines.protocol import Engine
from rewardsmith.trainers.collect import POLL_SECONDS, Collector, Lap, StepRollouts, WrittenRounds
from rewardsmith.trainers.stages import PolicyStage
from rewardsmith.trainers.trainer import Context


@dataclass(eq=False)
class BatchAhead:
    """The rollouts of a later step."""

    step: int
    version: int  # of the policy that writes them
    rounds: WrittenRounds = field(default_factory=WrittenRounds)
    seconds: float = 0.0  # for which they were written
    written: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)  # it is written, or has failed
    task: asyncio.Task[StepRollouts] | None = None
    before: Any = None  # the position of the collector when this one was begun; None before

    def state(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"step": self.step, "version": self.version, **self.rounds.state()}


class RolloutsAhead:
    """Collects the rollouts of the next `stage.ahead` steps in the background."""

    def __init__(self, stage: PolicyStage, collector: Collector, engine: Engine, context: Context) -> None:
        self._stage, self._collector, self._engine, self._context = stage, collector, engine, context
        self._batches: list[BatchAhead] = []  # in the order of their steps
        self._changed = asyncio.Event()  # something was written, scored, or failed
        self._waiting = False  # whether the step waits for rollouts, so that their progress is shown
        self._wrote = 0.0  # seconds

    async def take(self, number: int, lap: Lap) -> tuple[StepRollouts, float]:
        """Return the rollouts of step `number`, and the seconds for which they were written.

        The present weights begin to write what they have to. Where they are also those that learn, that ends here.
        """
        first = self._batches[-1].step + 1 if self._batches else number
        new = range(first, min(number + self._stage.ahead, self._collector.steps) + 1)
        if new:
            await self._engine.hold_writer()
        self._batches += [BatchAhead(step, number - 1) for step in new]
        self._begin()
        if not self._engine.writes_apart:
            await self._until(self._is_written, self._context.pause)
            lap("ahead")
        batch = self._batches[0]
        await self._until(lambda: batch.task is not None and batch.task.done(), self._context.pause)
        assert batch.task is not None
        del self._batches[0]
        lap("wait")
        return batch.task.result(), batch.seconds

    async def finish_writing(self, pause: Callable[[], None]) -> None:
        """Wait until all that was begun is written; from then on the new weights write."""
        try:
            await self._until(self._is_written, pause)
        finally:
            self._engine.release_writer()

    async def finish_scoring(self) -> None:
        """Wait until all that was begun is scored."""
        await self._until(lambda: all(one.task is None or one.task.done() for one in self._batches), lambda: None)

    def seconds_written(self) -> float:
        """Return the seconds since the last call in which answers were written."""
        seconds, self._wrote = self._wrote, 0.0
        return seconds

    async def close(self) -> None:
        """Cancel what is under way."""
        tasks = [one.task for one in self._batches if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._batches = []
        self._engine.release_writer()

    # ---- the background --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start what is not under way yet, in order."""
        previous: BatchAhead | None = None
        for batch in self._batches:
            if batch.task is None:
                batch.task = asyncio.create_task(self._collect(batch, previous))
                batch.task.add_done_callback(self._note)
            previous = batch

    def _note(self, task: asyncio.Task[StepRollouts]) -> None:
        if not task.cancelled():
            task.exception()  # it is raised by `_until`
        self._changed.set()

    async def _collect(self, batch: BatchAhead, previous: BatchAhead | None) -> StepRollouts:
        """Collect a batch once the one before it has drawn its prompts, and has left its surplus."""
        select, last = self._stage.select, time.perf_counter()

        def lap(name: str) -> None:
            nonlocal last
            now = time.perf_counter()
            if name == "write":
                batch.seconds += now - last
                self._wrote += now - last
                if len(batch.rounds.rounds) == select.rounds:
                    self._end_writing(batch)
            last = now

        if previous is not None and previous.task is not None:
            if select.staleness:
                await asyncio.wait([previous.task])
            if not previous.written:
                await previous.over.wait()
        batch.before = self._collector.position()
        try:
            rollouts = await self._collector.collect(
                batch.step,
                lap,
                version=batch.version,
                written=batch.rounds,
                pause=lambda: None,  # half a batch could not be continued once the weights have changed
                report=self._report,
            )
        finally:
            batch.over.set()
        self._end_writing(batch)
        return rollouts

    def _end_writing(self, batch: BatchAhead) -> None:
        batch.written = True
        batch.over.set()
        self._changed.set()

    def _report(self, *counts: Any, **more: Any) -> None:
        if self._waiting:
            self._context.progress(*counts, **more)

    def _is_written(self) -> bool:
        return all(one.written for one in self._batches)

    async def _until(self, done: Callable[[], bool], pause: Callable[[], None]) -> None:
        """Wait for the background; what fails there is raised here."""
        self._waiting = True
        try:
            while True:
                self._changed.clear()
                for batch in self._batches:
                    if batch.task is not None and batch.task.done():
                        batch.task.result()
                if done():
                    return
                pause()
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._changed.wait()
        finally:
            self._waiting = False

    # ---- state -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of the collector before the first batch that is not written whole, and those that are."""
        begun = [one for one in self._batches if one.before is not None]
        lost = next((one for one in begun if not one.written), None)
        whole = self._batches[: self._batches.index(lost)] if lost else [one for one in self._batches if one.written]
        draws = lost.before[0] if lost else None
        surplus = begun[0].before[1] if begun else None
        return self._collector.state(draws, surplus) | {"ahead": [one.state() for one in whole]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._collector.restore(state)
        self._batches = [
            BatchAhead(int(one["step"]), int(one["version"]), WrittenRounds.restored(one), written=True)
            for one in state.get("ahead", ())
        ]
