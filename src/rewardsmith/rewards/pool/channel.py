"""Messages between the trainer and its children, on multiprocessing's connections.

The trainer sends pickles. Its children send JSON of bounded size, because they have processed hostile text.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from multiprocessing.connection import Connection
from typing import Any

MAX_REPLY = 1 << 16
"""Bytes in a message of a child; the detail of a failure is shorter, however it is escaped."""

MAX_RESULT = 1 << 26
"""Bytes in a result of a function that is not a rule, such as the prompts of a judge for a whole group."""

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def connect(connection: socket.socket, timeout: int = 0) -> Connection[Any, Any]:
    """Return a connection that owns the socket. A message that stops in the middle raises OSError after `timeout` s."""
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", timeout, 0))
    return Connection(connection.detach())


def as_socket(connection: Connection[Any, Any]) -> socket.socket:
    """Return a second handle of a connection."""
    return socket.socket(fileno=os.dup(connection.fileno()))


def encode_reply(*values: Any) -> bytes:
    """Return the message of a child: a JSON list."""
    return _encode(values).encode("ascii")


def decode_reply(body: bytes) -> list[Any]:
    """Return the list that a child sent; ValueError if it is none."""
    try:
        values = json.loads(body)
    except RecursionError:
        raise ValueError("too deep") from None
    if not isinstance(values, list) or not values:
        raise ValueError("not a list")
    return values
