"""Messages on a stream socket: eight bytes of length, then the body.

What the trainer says is pickled: it is trusted. What a child says is JSON of bounded length: it has seen hostile text.
"""

from __future__ import annotations

import json
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

LONGEST_REPLY = 1 << 16
"""Bytes in the longest message of a child: a failure's detail, however it is escaped, is shorter."""

LONGEST_RESULT = 1 << 26
"""Bytes in the longest result of a function that is no rule, such as the prompts of a judge for a whole group."""


class GarbledError(Exception):
    """What came cannot be a message."""


def framed(body: bytes) -> bytes:
    """Return the bytes to send."""
    return _LENGTH.pack(len(body)) + body


def reply(*values: Any) -> bytes:
    """Return what a child sends: a JSON list."""
    return framed(_encode(values).encode("ascii"))


class Inbox:
    """Cuts the bytes that arrive into messages.

    Attributes:
        longest: the most bytes that a message may have; None for no limit.
    """

    def __init__(self, longest: int | None = LONGEST_REPLY) -> None:
        self.longest = longest
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        """Take what was received."""
        self._bytes += data

    @property
    def begun(self) -> bool:
        """Whether a part of a message has come."""
        return bool(self._bytes)

    def take(self) -> bytes | None:
        """Return the next message, or None when it is not complete yet.

        Raises:
            GarbledError: if its length is beyond the limit.
        """
        if len(self._bytes) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._bytes)
        if self.longest is not None and length > self.longest:
            raise GarbledError(f"a message of {length} bytes: at most {self.longest}")
        end = _LENGTH.size + length
        if len(self._bytes) < end:
            return None
        body = bytes(self._bytes[_LENGTH.size : end])
        del self._bytes[:end]
        return body


def read_reply(body: bytes) -> list[Any]:
    """Return the list that a child sent.

    Raises:
        GarbledError: if it is no JSON list.
    """
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise GarbledError("no JSON") from None
    if not isinstance(values, list) or not values:
        raise GarbledError("no list")
    return values
