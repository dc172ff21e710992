"""JSON in what a model wrote, between whatever else it wrote."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

TAIL = 50_000
"""Characters at the end of a text in which an object is looked for."""

MOST_FAILURES = 200
"""Objects that cannot be decoded before the search is given up."""

_BEGINS = re.compile(r'\{\s*+["}]')
# NaN and Infinity are not JSON. Models write raw ends of lines into strings: strict would refuse them.
_DECODER = json.JSONDecoder(parse_constant=lambda name: None, strict=False)


@dataclass(frozen=True)
class Found:
    """An object and where it stands: `text[start:end]`."""

    value: dict[str, Any]
    start: int
    end: int


def last_object(text: str) -> dict[str, Any] | None:
    """Return the last JSON object of a text that is not part of another one; None when there is none.

    Only the end of a long text is searched. An object that holds NaN or Infinity has None there. Nothing inside an
    object that cannot be decoded counts, and nothing before one: the last object is then not known.
    """
    found = find_object(text)
    return found.value if found else None


def own_object(text: str) -> Found | None:
    """Return the last JSON object if nothing else stands on its lines: one within a sentence is only mentioned."""
    found = find_object(text)
    if found is None:
        return None
    before = text[max(0, found.start - 200) : found.start].rpartition("\n")[2]
    after = text[found.end : found.end + 200].partition("\n")[0]
    return None if before.strip(" \t`") or after.strip(" \t`.") else found


def find_object(text: str) -> Found | None:
    """Return the last JSON object and its place; see `last_object`."""
    cut = max(0, len(text) - TAIL)
    tail = text[cut:]
    closing, unopened = _braces(tail)
    found: Found | None = None
    failures, begins = 0, _BEGINS.search(tail)
    while begins and failures < MOST_FAILURES:
        place = begins.start()
        try:
            value, end = _DECODER.raw_decode(tail, place)
        except (ValueError, RecursionError):  # also numbers of thousands of digits
            found, failures = None, failures + 1
            end = closing.get(place, len(tail))  # what stands within it is part of it
        else:
            found = Found(value, place + cut, end + cut)
        begins = _BEGINS.search(tail, end)
    if failures == MOST_FAILURES or (cut and found and unopened >= found.end - cut):
        return None  # it may be part of one that began before the tail
    return found


def _braces(text: str) -> tuple[dict[int, int], int]:
    """Return where each opening brace is closed, counting all braces, and the last closing one without an opening."""
    open_, closing, unopened = list[int](), dict[int, int](), -1
    for brace in re.finditer("[{}]", text):
        if brace[0] == "{":
            open_.append(brace.start())
        elif open_:
            closing[open_.pop()] = brace.end()
        else:
            unopened = brace.start()
    return closing, unopened


__all__ = ["Found", "find_object", "last_object", "own_object"]
