"""Models that share a device: those in use are on it, the others are offloaded to host memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rewardsmith.llm import ModelCallError, WrappedModel

Move = Callable[[], Awaitable[None] | None]


@dataclass(eq=False)
class _Waiter:
    models: frozenset[str]
    admitted: bool = False


class DeviceScheduler:
    """Moves the models of one device onto it when they are needed, and offloads the others.

    All that wait for the same models are admitted together. A later request waits if another set of models is
    queued, so that no request starves.
    """

    def __init__(self) -> None:
        self._moves: dict[str, tuple[Move, Move]] = {}
        self._loaded: frozenset[str] = frozenset()
        self._unsure: frozenset[str] = frozenset()  # a move was interrupted
        self._active = 0
        self._queue: list[_Waiter] = []
        self._changed = asyncio.Condition()

    def add(self, name: str, sleep: Move, wake: Move) -> None:
        """Add a model, which is offloaded now."""
        self._moves[name] = sleep, wake

    @asynccontextmanager
    async def on_device(self, *names: str) -> AsyncIterator[None]:
        """Wait until these models are on the device and keep them there; a model that was not added always is."""
        models = frozenset(names) & self._moves.keys()
        if not models:
            yield
            return
        await self._enter(_Waiter(models))
        try:
            yield
        finally:
            await asyncio.shield(self._leave())  # also when cancelled: else the device would stay taken

    async def _enter(self, waiter: _Waiter) -> None:
        async with self._changed:
            if waiter.models <= self._loaded and self._active and not self._queue:
                self._active += 1
                return
            self._queue.append(waiter)
            try:
                await self._changed.wait_for(lambda: waiter.admitted or (not self._active and self._queue[0] is waiter))
                if not waiter.admitted:
                    await self._switch(waiter.models)
            except BaseException:
                if waiter.admitted:
                    self._active -= 1
                else:
                    self._queue.remove(waiter)
                self._changed.notify_all()
                raise

    async def _leave(self) -> None:
        async with self._changed:
            self._active -= 1
            self._changed.notify_all()

    async def _switch(self, models: frozenset[str]) -> None:
        """Offload the others, load these models, and admit all that wait for them."""
        for name in sorted((self._loaded | self._unsure) - models):
            await self._move(name, wake=False)
        for name in sorted(models - self._loaded):
            await self._move(name, wake=True)
        for waiter in [each for each in self._queue if each.models <= self._loaded]:
            waiter.admitted = True
            self._active += 1
            self._queue.remove(waiter)
        self._changed.notify_all()

    async def _move(self, name: str, *, wake: bool) -> None:
        """Load or offload a model; a move that was interrupted is repeated next time."""
        self._loaded -= {name}
        self._unsure |= {name}
        try:
            waiting = self._moves[name][wake]()
            if waiting is not None:
                await waiting
        except ModelCallError as error:
            if wake or error.kind != "unreachable":  # a server that is gone holds no device memory
                raise
        except Exception:
            self._unsure -= {name}
            raise
        self._unsure -= {name}
        self._loaded |= {name} if wake else frozenset()


class OffloadedModel(WrappedModel):
    """A served model that is woken for its calls and sleeps while other models use the device."""

    def __init__(self, model: Any, scheduler: DeviceScheduler) -> None:
        super().__init__(model)
        self._scheduler = scheduler
        self.added = False  # whether the scheduler moves it; it was put to sleep then

    async def check(self) -> None:
        """Raise if it cannot work; put it to sleep the first time."""
        await self.model.check()
        if not self.added:
            await self.model.sleep()
            self._scheduler.add(self.name, self.model.sleep, self.model.wake)
            self.added = True

    @asynccontextmanager
    async def during_call(self) -> AsyncIterator[None]:
        """Have the model on the device."""
        if not self.added:
            await self.check()
        async with self._scheduler.on_device(self.name):
            yield
