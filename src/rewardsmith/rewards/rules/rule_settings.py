"""Settings that several rules share, what a rule requires, and a limit on its processor time."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, Literal

from pydantic import Field

from rewardsmith.text.answers import final as after_thinking
from rewardsmith.text.claims import claimed

Way = Literal["boxed", "stated", "hash", "tagged", "number", "final", "text"]

Extract = Annotated[
    tuple[Way, ...], Field(min_length=1, description="how to find the answer; the first way that finds one decides")
]

Final = Annotated[
    Literal["auto", "always", "never"],
    Field(description="read what follows </think>: auto where there are such tags, always (else no answer), or never"),
]

Good = Annotated[float, Field(description="the value when it holds")]
Bad = Annotated[float, Field(description="the value when it does not hold")]


def answer_part(text: str, final: str) -> str | None:
    """Return the part of a text in which the answer is looked for, see `Final`; None when it has none yet."""
    if final == "never":
        return text
    return None if final == "always" and "</think>" not in text else after_thinking(text)


def extracted(text: str, ways: Sequence[Way], final: str) -> str | None:
    """Return the answer that the first of the ways finds in the part to read; None where the text takes it back."""
    part = answer_part(text, final)
    found = (claimed(part, way) for way in ways) if part else ()
    return next((answer for answer in found if answer is not None), None) or None


def between(share: float, good: float, bad: float) -> float:
    """Return `bad` for a share of 0, `good` for 1, and what lies between for the rest; exact at both ends."""
    return good if share >= 1 else bad if share <= 0 else bad + (good - bad) * share


@dataclass(frozen=True)
class Needs:
    """What a rule requires before it runs.

    Attributes:
        modules: what the rule imports when it is called. The workers import it once, ahead of the first answer.
        extra: the optional part of this package that installs the modules; "" when they always come with it.
        deadline: seconds per answer, unless the recipe sets another.
        ready: raises a `UserError` if the rule cannot work here. It is called with the deadline and the rule's settings
            by name, before the first step.
    """

    modules: tuple[str, ...] = ()
    extra: str = ""
    deadline: float = 5.0
    ready: Callable[..., None] | None = None


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

    def lost(error: sys.UnraisableHookArgs) -> None:
        if error.exc_type is not TooSlowError:
            report(error)

    # An exception that is raised in a destructor is lost, so the timer fires again and again.
    before, report, sys.unraisablehook = signal.signal(signal.SIGVTALRM, stop), sys.unraisablehook, lost
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.1)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)  # the timer may have fired in the line above
        signal.signal(signal.SIGVTALRM, before)
        sys.unraisablehook = report
