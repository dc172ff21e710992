"""A limit on the processor time that one answer may cost a rule."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SECONDS = 1.5
"""Processor time, well below the usual deadline of 5 seconds on the clock: a busy machine takes longer on that."""


class TooSlowError(BaseException):
    """The answer has cost more processor time than it may. No `except Exception` of a library on the way catches it."""


@contextmanager
def processor_limit(seconds: float = SECONDS) -> Iterator[None]:
    """Raise TooSlowError inside the block once it has used so much processor time.

    Without it, whoever writes an answer could choose a timeout, which is a failure, in place of a 0. It interrupts
    Python code and regular expressions. Only the main thread can be interrupted, in which rules run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.1)  # again and again: an exception may be lost in a destructor
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
