"""Calls of a user's own functions in this process: what they raise, or how long they take, concerns no other call."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Set
from contextlib import suppress
from itertools import islice
from typing import Any

from rewardsmith.rewards.base import CannotScore, must_propagate


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function, or an object that is called like one, is a coroutine function."""
    call = getattr(function, "__call__", None)  # noqa: B004 it is inspected, not called
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def in_thread(function: Callable[[], Any]) -> Any:
    """Return what a function returns, called in a daemon thread of its own.

    One that hangs keeps neither other calls nor the end of the program waiting, as it would in a pool of threads.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():  # cancelled
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(RuntimeError(f"it raised {error!r}") if isinstance(error, StopIteration) else error)

    def call() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:  # noqa: BLE001 whoever awaits it gets it
            error = raised
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=call, name="reward function", daemon=True).start()
    return await future


async def call_function(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns: awaited if it is async, else from a thread."""
    result = function(*arguments) if is_async(function) else await in_thread(lambda: function(*arguments))
    return await result if inspect.isawaitable(result) else result


async def gather_results(calls: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Return the result of each call, or what it raised; `SystemExit` would end the event loop if it left a task."""

    async def one(call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await call
        except BaseException as error:
            if must_propagate(error):
                raise
            return error

    return list(await asyncio.gather(*map(one, calls)))


def listed(values: Any, count: int) -> list[Any]:
    """Return what a function returned for `count` answers as a list; anything but one value each cannot be used."""
    unordered = isinstance(values, str | bytes | bytearray | memoryview | Mapping | Set)
    found = None if unordered or not hasattr(values, "__iter__") else list(islice(values, count + 1))
    if found is None or len(found) != count:
        raise CannotScore("invalid", f"the function returned {str(values)[:200]!r} for {count} answers: one value each")
    return found
