"""How a long command is stopped: a polite kill does what Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupted(Exception):  # noqa: N818 it is a wish, not an error
    """The user stopped the command; the message says how to go on."""


@contextmanager
def stoppable() -> Iterator[None]:
    """Let a polite kill do what Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


__all__ = ["Interrupted", "stoppable"]
