"""Many things asked of a model at once, so that one which it refuses does not take the others with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rewardsmith.asking import CannotAnswer

T = TypeVar("T")
V = TypeVar("V")

_NOT_THEIR_FAULT = frozenset({"unreachable", "timeout", "cancelled"})
"""Kinds of failure that asking again, one by one, would only repeat."""


async def together(
    ask: Callable[[Sequence[T]], Awaitable[Sequence[V]]], items: Sequence[T], *, deadline: float | None = None
) -> list[V | BaseException]:
    """Return what a model says of each item, or why it says nothing.

    The items are asked about in one call. Where the model refuses that, each is asked about alone.

    Args:
        ask: the model's `rate` or `embed`; it answers all or raises.
        items: what is asked about.
        deadline: seconds for all of it; None for no limit.
    """
    limit = asyncio.timeout(deadline)
    why: Exception
    try:
        async with limit:
            try:
                return [*await _all(ask, items)]
            except CannotAnswer as error:
                if len(items) == 1 or error.kind in _NOT_THEIR_FAULT:
                    raise
            alone = await asyncio.gather(*(_all(ask, [item]) for item in items), return_exceptions=True)
            return [found if isinstance(found, BaseException) else found[0] for found in alone]
    except Exception as error:  # noqa: BLE001 a model may raise anything: each item has failed for that reason
        why = CannotAnswer("timeout", f"no answer within {deadline:g} s (deadline)") if limit.expired() else error
    return [why for _ in items]


async def _all(ask: Callable[[Sequence[T]], Awaitable[Sequence[V]]], items: Sequence[T]) -> Sequence[V]:
    if not items:
        return []
    found = await ask(items)
    if len(found) != len(items):
        raise CannotAnswer("invalid", f"the model gave {len(found)} answers for {len(items)}")
    return found


__all__ = ["together"]
