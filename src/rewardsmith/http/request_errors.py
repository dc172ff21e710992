"""Failed HTTP requests: their kind, whether a retry may help, and how long to wait before it."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from reprlib import Repr
from time import time

from rewardsmith.types import FailureKind

MAX_EXCERPT = 300  # characters of a reply that an error shows
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = MAX_EXCERPT

_RETRYABLE = frozenset({408, 409, 425, 429})
_UNREACHABLE = frozenset({502, 503, 504, 520, 521, 522, 523, 524, 529})  # a proxy replies for a server that is gone
_OVERLOADED = frozenset({429, 503, 529})
_PERMANENT = frozenset({501, 505})
_PERMANENT_CODES = frozenset({"insufficient_quota", "context_length_exceeded", "invalid_api_key", "model_not_found"})


@dataclass(eq=False)
class RequestError(Exception):
    """One request without a usable reply."""

    kind: FailureKind  # if it is not retried
    detail: str
    retryable: bool = True  # the same request may succeed later
    unreachable: bool = False  # the address looks dead: others should be used for a while
    overloaded: bool = False  # the server has too many requests: all should slow down
    retry_after: float | None = None  # seconds
    status: int = 0  # of HTTP; 0 if there was none

    def __str__(self) -> str:
        return self.detail


def malformed(what: str, body: object = "") -> RequestError:
    """Return the error of a reply that breaks the protocol."""
    shown = excerpt(body)
    return RequestError("unparsable", f"{what}: {shown}" if shown else what)


def excerpt(body: object) -> str:
    """Return the beginning of a reply on one line."""
    if isinstance(body, bytes):
        body = body[: 4 * MAX_EXCERPT].decode("utf-8", "replace")
    text = body if isinstance(body, str) else _SHORT.repr(body)
    text = " ".join(text[: 4 * MAX_EXCERPT].split())
    return text if len(text) <= MAX_EXCERPT else f"{text[:MAX_EXCERPT]}…"


def status_error(status: int, body: object, *, retry_after: float | None = None, code: object = None) -> RequestError:
    """Return the error of an HTTP status; `code` is the name of the error in the body, if any."""
    gone = status in _UNREACHABLE
    temporary = status in _RETRYABLE or (status >= 500 and status not in _PERMANENT)
    retryable = gone or (temporary and str(code) not in _PERMANENT_CODES)
    # A gateway's 503 is a server that is gone; one that says when to come back is there.
    busy = retryable and status in _OVERLOADED and (not gone or retry_after is not None)
    kind: FailureKind = "unreachable" if gone else "refused"
    detail = f"status {status}: {excerpt(body)}"
    return RequestError(kind, detail, retryable, gone and not busy, busy, retry_after, status)


def body_error(error: object) -> RequestError:
    """Return the error that came in the body of a reply with status 200; its code may be an HTTP status."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 600:
        return status_error(code, error)
    return RequestError("refused", f"it replied with an error: {excerpt(error)}", retryable=False)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header (number or HTTP date); None without a usable one."""
    text = headers.get("retry-after", "")[:100].strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time()
        except (ValueError, OverflowError, OSError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def pause_before_retry(retries: int, retry_after: float, left: float, *, backoff: float, max_backoff: float) -> float:
    """Return the seconds to wait: a random share of the back-off, which doubles with each retry, after Retry-After.

    A Retry-After that ends before the deadline leaves at least half of the time after it for the request.
    """
    jitter = random.uniform(0, min(max_backoff, backoff * 2.0 ** min(retries, 60)))
    return min(retry_after + jitter, (retry_after + left) / 2) if retry_after else jitter
