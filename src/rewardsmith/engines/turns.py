"""Models that share a device take turns: one party is awake, the others sleep in host memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError, ProbeReply

Rest = Callable[[], Awaitable[None] | None]


@dataclass(eq=False)
class _Ticket:
    party: frozenset[str]
    admitted: bool = False


class Turns:
    """Wakes models when it is their turn, and lets them sleep when it is another's.

        turns.join("policy", engine.sleep, engine.wake)
        async with turns.turn("policy"):
            ...  # the policy is awake; whoever has joined beside it sleeps

    A party is admitted as a whole: all that wait for the models of the one whose turn it is. Those that come later
    wait for the next turn if another party is waiting, so that nobody waits for ever.
    """

    def __init__(self) -> None:
        self._rest: dict[str, tuple[Rest, Rest]] = {}
        self._awake: frozenset[str] = frozenset()
        self._unsure: frozenset[str] = frozenset()
        self._active = 0
        self._queue: list[_Ticket] = []
        self._changed = asyncio.Condition()

    def join(self, name: str, sleep: Rest, wake: Rest) -> None:
        """Take in a model, which is asleep."""
        self._rest[name] = sleep, wake

    @asynccontextmanager
    async def turn(self, *names: str) -> AsyncIterator[None]:
        """Wait until all these models are awake, and keep them so; names that have not joined are never asleep."""
        party = frozenset(name for name in names if name in self._rest)
        if not party:
            yield
            return
        await self._enter(_Ticket(party))
        try:
            yield
        finally:
            await self._leave()

    async def _enter(self, ticket: _Ticket) -> None:
        async with self._changed:
            if ticket.party <= self._awake and self._active and not self._queue:
                self._active += 1
                return
            self._queue.append(ticket)
            try:
                await self._changed.wait_for(lambda: ticket.admitted or self._is_next(ticket))
                if not ticket.admitted:
                    await self._switch(ticket.party)
            except BaseException:
                if ticket in self._queue:
                    self._queue.remove(ticket)
                else:  # it was admitted, and goes away
                    self._active -= 1
                self._changed.notify_all()
                raise

    def _is_next(self, ticket: _Ticket) -> bool:
        return not self._active and self._queue[0] is ticket

    async def _switch(self, party: frozenset[str]) -> None:
        """Let the others sleep, wake the party, and admit all who wait for it."""
        for name in sorted((self._awake | self._unsure) - party):
            await self._move(name, wake=False)
        for name in sorted(party - self._awake):
            await self._move(name, wake=True)
        for ticket in [ticket for ticket in self._queue if ticket.party <= self._awake]:
            ticket.admitted = True
            self._active += 1
            self._queue.remove(ticket)
        self._changed.notify_all()

    async def _move(self, name: str, *, wake: bool) -> None:
        """Wake a model or let it sleep; one that was interrupted on the way is moved again next time."""
        self._awake -= {name}
        self._unsure |= {name}
        try:
            waiting = self._rest[name][wake]()
            if waiting is not None:
                await waiting
        except ModelCallError as error:
            if wake or error.kind != "unreachable":
                raise
            # A server that is gone holds no memory: nobody need wait for it to sleep.
        except Exception:
            self._unsure -= {name}
            raise
        self._unsure -= {name}
        self._awake |= {name} if wake else frozenset()

    async def _leave(self) -> None:
        # Shielded: a turn that does not end because its holder was cancelled would stop everybody.
        await asyncio.shield(self._ended())

    async def _ended(self) -> None:
        async with self._changed:
            self._active -= 1
            self._changed.notify_all()


class TakingTurns:
    """A served model that is woken for its questions, and sleeps while others are at work.

    Args:
        model: has `sleep` and `wake`, and any of `ask`, `rate` and `embed`.
        turns: of the device.

    Attributes:
        joined: whether it has been let to sleep, and takes turns since.
    """

    def __init__(self, model: Any, turns: Turns) -> None:
        self._model = model
        self._turns = turns
        self.joined = False

    async def check(self) -> None:
        """Raise if it cannot work; the first time, let it sleep."""
        await self._model.check()
        if not self.joined:
            await self._model.sleep()
            self._turns.join(self._model.name, self._model.sleep, self._model.wake)
            self.joined = True

    async def fingerprint(self, deadline: float) -> tuple[ProbeReply, ...]:
        """Return the model's replies to fixed probes."""
        return await self._in_turn(self._model.fingerprint, deadline)  # type: ignore[no-any-return]

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's answer."""
        return await self._in_turn(self._model.chat, question)  # type: ignore[no-any-return]

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return one number for each conversation."""
        return await self._in_turn(self._model.rate, conversations)  # type: ignore[no-any-return]

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector for each text."""
        return await self._in_turn(self._model.embed, texts)  # type: ignore[no-any-return]

    async def _in_turn(self, verb: Callable[[Any], Awaitable[Any]], asked: Any) -> Any:
        if not self.joined:
            await self.check()
        async with self._turns.turn(self._model.name):
            return await verb(asked)

    def __getattr__(self, name: str) -> Any:
        """Be the model in everything else."""
        return getattr(self._model, name)
