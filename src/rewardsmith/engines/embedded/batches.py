"""Work for an engine that comes piece by piece and is done many pieces at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

from rewardsmith.llm import ModelCallError

J = TypeVar("J")
R = TypeVar("R")

Turn = Callable[[], AbstractAsyncContextManager[None]]
"""Entered while the engine works; it is awake then."""


@dataclass(eq=False)
class Piece(Generic[J, R]):
    """One piece of work.

    Attributes:
        job: what is to be done.
        result: what came of it. It may be done already: who asked has gone.
    """

    job: J
    result: asyncio.Future[R]

    def finish(self, result: R) -> None:
        """Hand the result to who asked for it, if still there."""
        if not self.result.done():
            self.result.set_result(result)


class Batches(Generic[J, R]):
    """Lets what comes while a batch is in hand wait for the next one.

    Args:
        work: finishes the pieces of a batch. What it raises is why those that it did not finish have no result.
        turn: entered around each batch.
        alike: what pieces of one batch have in common.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Piece[J, R]]], Awaitable[None]],
        turn: Turn,
        alike: Callable[[J], object] = lambda job: None,
    ) -> None:
        self._work = work
        self._turn = turn
        self._alike = alike
        self._waiting: list[Piece[J, R]] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, job: J) -> asyncio.Future[R]:
        """Return the result of a job, to be waited for; it may raise `ModelCallError`."""
        piece: Piece[J, R] = Piece(job, asyncio.get_running_loop().create_future())
        self._waiting.append(piece)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve())
        return piece.result

    async def close(self) -> None:
        """Stop; what is not done has no result."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._give_up([])

    async def _serve(self) -> None:
        await asyncio.sleep(0)  # the pieces of a group come one after the other
        while self._waiting:
            first = self._alike(self._waiting[0].job)
            batch = [piece for piece in self._waiting if self._alike(piece.job) == first]
            self._waiting = [piece for piece in self._waiting if self._alike(piece.job) != first]
            batch = [piece for piece in batch if not piece.result.done()]
            try:
                if batch:
                    async with self._turn():
                        await self._work(batch)
                        _fail(batch, ModelCallError("crashed", "the engine left it out"))
            except Exception as error:  # noqa: BLE001 whatever the engine raises, it is these that have no result
                _fail(batch, ModelCallError("crashed", f"{type(error).__name__}: {error}"))
            except BaseException:
                self._give_up(batch)
                raise

    def _give_up(self, batch: Sequence[Piece[J, R]]) -> None:
        _fail([*batch, *self._waiting], ModelCallError("cancelled", "the run stopped before it was done"))
        self._waiting = []


def _fail(pieces: Sequence[Piece[J, R]], why: ModelCallError) -> None:
    for piece in pieces:
        if not piece.result.done():
            piece.result.set_exception(why)
