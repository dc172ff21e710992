"""Many things asked at once, so that one which fails does not take the others with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from rewardsmith.llm import ModelCallError
from rewardsmith.rewards.base import CannotScore, Halt, failure_of

A = TypeVar("A")
T = TypeVar("T")
V = TypeVar("V")

_NOT_THEIR_FAULT = frozenset({"unreachable", "timeout", "cancelled"})
"""Kinds of failure that asking again, one by one, would only repeat."""


async def settled(call: Callable[[A], Awaitable[T]], arguments: Iterable[A]) -> list[T | Exception]:
    """Make a call for each argument, all at once; return what each returned or raised.

    A call that was cancelled by itself is a `ModelCallError` of that kind; one that wants to exit is a `CannotScore`.

    Raises:
        Halt: one of them did; the others are cancelled.
        CancelledError: whoever waits for the calls was cancelled, and so were they.
    """

    async def one(argument: A) -> T | Exception:
        try:
            return await call(argument)
        except Halt:
            raise
        except Exception as error:  # noqa: BLE001 it becomes a failure of those whom it concerns
            return error
        except SystemExit as error:  # it would end the event loop, and with it the run
            why = failure_of(error)
            return CannotScore(why.kind, why.detail)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(argument)) for argument in arguments]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    lost = ModelCallError("cancelled", "the question was taken back")
    return [lost if task.cancelled() else task.result() for task in tasks]


async def together(
    ask: Callable[[Sequence[T]], Awaitable[Sequence[V]]], items: Sequence[T], *, deadline: float | None = None
) -> list[V | Exception]:
    """Return what a model says of each item, or why it says nothing.

    The items are asked about in one call. Where the model refuses that, each is asked about alone.

    Args:
        ask: the model's `rate` or `embed`; it answers all or raises.
        items: what is asked about.
        deadline: seconds for all of it; None for no limit.
    """
    try:
        async with asyncio.timeout(deadline):
            (found,) = await settled(partial(_all, ask), [items])
            if not isinstance(found, Exception):
                return [*found]
            theirs = isinstance(found, ModelCallError) and found.kind not in _NOT_THEIR_FAULT
            if not theirs or len(items) == 1:
                return [found for _ in items]
            alone = await settled(partial(_all, ask), [[item] for item in items])
            return [one if isinstance(one, Exception) else one[0] for one in alone]
    except TimeoutError:  # what a model raises is settled: this is the limit
        return [ModelCallError("timeout", f"no answer within {deadline:g} s (deadline)") for _ in items]


async def _all(ask: Callable[[Sequence[T]], Awaitable[Sequence[V]]], items: Sequence[T]) -> Sequence[V]:
    if not items:
        return []
    found = await ask(items)
    if len(found) != len(items):
        raise ModelCallError("invalid", f"the model gave {len(found)} answers for {len(items)}")
    return found


__all__ = ["settled", "together"]
