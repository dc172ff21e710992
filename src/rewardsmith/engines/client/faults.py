"""What can go wrong with one request, and whether it may go well the next time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from reprlib import Repr
from time import time
from typing import Any

from rewardsmith.types import FailureKind

SHOWN = 300
"""Characters of a server's answer that an error shows."""

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = SHOWN

_PASSING = frozenset({408, 409, 425, 429})
# A proxy in front of a server that is gone answers in its place.
_GONE = frozenset({502, 503, 504, 520, 521, 522, 523, 524, 529})
_BUSY = frozenset({429, 503, 529})
_NEVER = frozenset({501, 505})
_FINAL_CODES = frozenset({"insufficient_quota", "context_length_exceeded", "invalid_api_key", "model_not_found"})


class Fault(Exception):  # noqa: N818 it says what is, not what went wrong in the program
    """One request that brought no answer.

    Attributes:
        kind: what it is called if it stays so.
        passing: whether the same request may be answered the next time.
        gone: whether the address looks dead, so that others should be asked for a while.
        busy: whether it has too much to do, so that all who ask it should slow down.
        after: seconds that the server asks us to wait; None if it says nothing.
        status: of HTTP; 0 where there was none.
    """

    def __init__(
        self,
        kind: FailureKind,
        detail: str,
        *,
        passing: bool = True,
        gone: bool = False,
        busy: bool = False,
        after: float | None = None,
        status: int = 0,
    ) -> None:
        super().__init__(detail)
        self.kind: FailureKind = kind
        self.passing = passing
        self.gone = gone
        self.busy = busy
        self.after = after
        self.status = status


def garbage(what: str, body: object = "") -> Fault:
    """Return the fault of an answer that is not what was agreed on."""
    shown = excerpt(body)
    return Fault("unparsable", f"{what}: {shown}" if shown else what)


def excerpt(body: object) -> str:
    """Return the beginning of an answer on one line."""
    if isinstance(body, bytes):
        body = body[: 4 * SHOWN].decode("utf-8", "replace")
    text = body if isinstance(body, str) else _SHORT.repr(body)
    text = " ".join(text[: 4 * SHOWN].split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def of_status(status: int, where: str, body: object, *, after: float | None = None, code: object = None) -> Fault:
    """Return the fault of an HTTP status.

    Args:
        status: the number, not one of success.
        where: the address, as it may be shown.
        body: what came with it.
        after: seconds that the server asks us to wait.
        code: the name that the server's error has, if any.
    """
    detail = f"{where} answered with status {status}: {excerpt(body)}"
    if status in _GONE:
        busy = status in _BUSY and after is not None  # who says when to come back is there
        return Fault("unreachable", detail, gone=not busy, busy=busy, after=after, status=status)
    passing = (status in _PASSING or (status >= 500 and status not in _NEVER)) and code not in _FINAL_CODES
    if status == 407:
        detail += "; give the proxy's user and password in the environment: http://user:password@host:port"
    return Fault("refused", detail, passing=passing, busy=passing and status in _BUSY, after=after, status=status)


def of_error(error: object, where: str) -> Fault:
    """Return the fault of an error that came as if it were an answer; its code may be an HTTP status."""
    code = error.get("code") if isinstance(error, Mapping) else None
    if isinstance(code, int) and 400 <= code < 600:
        return of_status(code, where, error)
    return Fault("refused", f"{where} answered with an error: {excerpt(error)}", passing=False)


def error_code(body: Any) -> object:
    """Return the name of the error in an error's body, or None."""
    error = body.get("error") if isinstance(body, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) else None


def asked_to_wait(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the headers ask a client to wait, from 0; None if they say nothing that can be read."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name, "")[:100].strip()
        if not text:
            continue
        try:
            seconds = float(text) * unit
        except ValueError:
            seconds = _until(text, headers.get("date", ""))
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None


def _until(text: str, now: str) -> float:
    """Return the seconds until an HTTP date, by the server's own clock if it shows one; NaN if that is no date."""
    try:
        then = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return math.nan
    try:
        return then - parsedate_to_datetime(now[:100]).timestamp()
    except (ValueError, OverflowError, OSError):
        return then - time()
