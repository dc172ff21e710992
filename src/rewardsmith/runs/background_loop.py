"""Async code for programs that have no event loop, or one that is running: scripts, notebooks, threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rewardsmith.errors import UserError

Value = TypeVar("Value")


class BackgroundLoop:
    """An event loop in a daemon thread, started at its first use."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start a new loop at the next use: a forked child has none of its parent's threads."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run a coroutine there, and wait for it; Ctrl-C cancels it."""
        loop = self._running()
        if threading.current_thread() is self._thread:
            work.close()
            raise UserError("this call would wait for itself: use the async form, such as score_async, inside a reward")
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def wait(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run a coroutine there, and await it in the caller's own loop."""
        loop = self._running()
        if asyncio.get_running_loop() is loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="rewardsmith", daemon=True)
                self._thread.start()
            return self._loop


LOOP = BackgroundLoop()
"""The loop on which all rewards of a Python program score: connections belong to a loop."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LOOP.forget)


def call_without_loop(work: Callable[[threading.Event | None], Value]) -> Value:
    """Call a function that starts an event loop of its own: in a thread, if one is running here, as in a notebook.

    The function gets an event that is set when the user interrupts the wait; None where signals arrive by themselves.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if threading.current_thread() is threading.main_thread():
            return work(None)
    stop, found = threading.Event(), dict[str, Any]()

    def call() -> None:
        try:
            found["value"] = work(stop)
        except BaseException as error:  # noqa: BLE001 it is raised in the caller's thread
            found["error"] = error

    thread = threading.Thread(target=call, name="rewardsmith run", daemon=True)
    thread.start()
    while thread.is_alive():
        try:
            thread.join(0.2)
        except KeyboardInterrupt:
            if stop.is_set():
                raise
            stop.set()
    if "error" in found:
        raise found["error"]
    return found["value"]  # type: ignore[no-any-return]
