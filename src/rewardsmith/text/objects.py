"""JSON in what a model wrote, between whatever else it wrote."""

from __future__ import annotations

import json
from typing import Any

TAIL = 50_000
"""Characters at the end of a text in which an object is looked for."""

MOST_TRIES = 200
"""Opening braces that are tried."""

_DECODER = json.JSONDecoder(parse_constant=lambda name: None)  # NaN and Infinity are not JSON


def last_object(text: str) -> dict[str, Any] | None:
    """Return the last JSON object of a text that is not part of another one; None when there is none.

    Only the end of a long text is searched. An object that holds NaN or Infinity has None there.
    """
    text = text[-TAIL:]
    found: dict[str, Any] | None = None
    place = text.find("{")
    for _ in range(MOST_TRIES):
        if place < 0:
            break
        try:
            value, end = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):  # also numbers of thousands of digits
            end = place + 1
        else:
            found = value
        place = text.find("{", end)
    return found


__all__ = ["last_object"]
