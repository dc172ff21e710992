"""Whether what a program wrote or returned is what was expected. One side is hostile: no step is slower than linear."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

_NUMBER = re.compile(r"[+-]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})([eE][+-]?\d{1,4})?")


@dataclass(frozen=True)
class Comparison:
    """How outputs are compared.

    Attributes:
        whitespace: "tokens" compares the words, wherever lines break; "lines" compares line by line, without the white
            space at the end of each and of the whole.
        tolerance: how far a number may be from the expected one, relative to it or to 1, whichever is larger.
    """

    whitespace: Literal["tokens", "lines"] = "tokens"
    tolerance: float = 0.0

    def same_output(self, got: bytes, expected: str) -> bool:
        """Return whether what was written is what was expected."""
        text = got.decode("utf-8", "replace")
        if self.whitespace == "tokens":
            return self._same_words(text.split(), expected.split())
        lines, right = _lines(text), _lines(expected)
        if lines == right or not self.tolerance or len(lines) != len(right):
            return lines == right
        return all(self._same_words(a.split(), b.split()) for a, b in zip(lines, right, strict=True))

    def _same_words(self, words: list[str], right: list[str]) -> bool:
        if words == right or not self.tolerance or len(words) != len(right):
            return words == right
        return all(a == b or self._close_texts(a, b) for a, b in zip(words, right, strict=True))

    def _close_texts(self, a: str, b: str) -> bool:
        return bool(_NUMBER.fullmatch(a) and _NUMBER.fullmatch(b)) and self._close(float(a), float(b))

    def _close(self, a: float, b: float) -> bool:
        return a == b or (math.isfinite(b) and abs(a - b) <= self.tolerance * max(1.0, abs(b)))

    def same_reply(self, reply: bytes, expected: object) -> bool:
        """Return whether an answer of `player.Player` holds the expected JSON value.

        Values are equal as in Python, except that a tuple equals a list and that keys are compared as text: JSON has
        neither tuples nor other keys. Anything malformed is not equal.
        """
        try:
            answer = json.loads(reply)
            return isinstance(answer, dict) and "value" in answer and self._same(answer["value"], expected)
        except (ValueError, TypeError, RecursionError, OverflowError, MemoryError):
            return False

    def _same(self, got: Any, expected: object) -> bool:
        """Compare an encoded value, see `values.py`; no set or dictionary is made of keys that a program chose."""
        if isinstance(expected, str) or expected is None:
            return type(got) is type(expected) and got == expected
        if isinstance(expected, bool | int | float):
            number = _number(got)
            return number is not None and (
                number == expected or bool(self.tolerance and self._close(float(number), float(expected)))
            )
        if not isinstance(got, list) or len(got) != 2 or not isinstance(got[1], list):
            return False
        letter, content = got
        if isinstance(expected, Mapping):
            entries = {_key(key): value for key, value in content} if letter == "d" else {}
            return (
                letter == "d"
                and len(entries) == len(content)
                and entries.keys() == expected.keys()
                and all(self._same(entries[key], value) for key, value in expected.items())
            )
        assert isinstance(expected, Sequence)
        return (
            letter in ("l", "t")
            and len(content) == len(expected)
            and all(self._same(a, b) for a, b in zip(content, expected, strict=True))
        )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _number(got: Any) -> float | int | None:
    if isinstance(got, list) and len(got) == 2 and isinstance(got[1], str):
        return int(got[1], 16) if got[0] == "i" else float(got[1]) if got[0] == "n" else None
    return got if isinstance(got, bool | int | float) else None


def _key(got: Any) -> str:
    """Return a key as JSON would write it; no text for what it would refuse."""
    if isinstance(got, str):
        return got
    number = _number(got)
    return "\0" if number is None and got is not None else json.dumps(number)
