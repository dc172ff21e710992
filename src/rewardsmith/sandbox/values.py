"""Values of Python as JSON and back, for processes that do not trust each other. Loaded in the child.

What JSON lacks is a list whose first entry is a letter or a name: `(1, 2)` is `["t", [1, 2]]`, and a list is
`["l", […]]`. Values that are not data stay where they are; only a number that stands for them is sent: `["o", 3]`. A
subclass arrives as the built-in type, so nothing that a program has redefined, such as `__eq__`, crosses the border.
"""

from __future__ import annotations

import json
import math
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs more than the rest of this module
    from collections.abc import Callable
    from typing import Any

DEPTH = 50
"""Levels that a value of a program may nest; what a test makes of such values may be nested four times as deeply."""

_EXACT = 1 << 53
_LISTS: dict[str, type[Any]] = {"l": list, "t": tuple, "s": set, "f": frozenset, "q": deque}
_CLASSES = ("decimal.Decimal", "fractions.Fraction", "datetime.date", "datetime.datetime", "datetime.timedelta")
_SIMPLE: dict[str, Callable[[Any], Any]] = {
    "i": lambda text: int(text, 16),
    "n": float,
    "c": lambda parts: complex(float(parts[0]), float(parts[1])),
    "b": bytes.fromhex,
    "B": bytearray.fromhex,
}


class MalformedValue(Exception):  # noqa: N818 the other side's, not ours
    """What arrived is not an encoded value."""


def encode(value: Any, opaque: Callable[[Any], Any], depth: int = DEPTH) -> Any:  # noqa: PLR0911 one for each type
    """Return a value as JSON; what is not data, or nested too deeply, as what `opaque` returns for it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int.__index__(value)
        return number if -_EXACT < number < _EXACT else ["i", hex(number)]
    if isinstance(value, float):
        real = float.__float__(value)
        return real if math.isfinite(real) else ["n", repr(real)]
    if isinstance(value, complex):
        return ["c", [repr(value.real), repr(value.imag)]]
    if isinstance(value, bytes | bytearray):
        return ["b" if isinstance(value, bytes) else "B", value.hex()]
    if depth <= 0:
        return opaque(value)
    if isinstance(value, range):
        return ["r", [encode(n, opaque) for n in (value.start, value.stop, value.step)]]
    if isinstance(value, dict):
        return ["d", [[encode(k, opaque, depth - 1), encode(v, opaque, depth - 1)] for k, v in value.items()]]
    for letter, kind in _LISTS.items():
        if isinstance(value, kind):
            return [letter, [encode(item, opaque, depth - 1) for item in value]]
    name = f"{type(value).__module__}.{type(value).__name__}"
    if name == "datetime.timedelta":
        return [name, [value.days, value.seconds, value.microseconds]]
    return [name, str(value)] if name in _CLASSES else opaque(value)


def decode(data: Any, opaque: Callable[[int], Any], depth: int = DEPTH) -> Any:
    """Return the value that was encoded; `opaque` returns what stayed on the other side.

    Raises MalformedValue for anything that `encode` cannot have written. It builds sets and dictionaries, and
    a program can choose keys that are slow to compare: call it in a process with limits.
    """
    try:
        return _decode(data, opaque, depth)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise MalformedValue(f"{type(error).__name__}: {error}"[:200]) from None


def _decode(data: Any, opaque: Callable[[int], Any], depth: int) -> Any:  # noqa: PLR0911 as above
    if isinstance(data, dict) or depth < 0:
        raise MalformedValue("an object, or nested too deeply")
    if not isinstance(data, list):
        return data
    letter, content = data
    if letter == "o":
        return opaque(int(content))
    if letter in _SIMPLE:
        return _SIMPLE[letter](content)
    if letter in _CLASSES:
        module, _, name = letter.partition(".")
        kind = getattr(__import__(module), name)
        if name == "timedelta":
            return kind(*content)
        return (kind.fromisoformat if module == "datetime" else kind)(content)
    if letter == "d":
        return {_decode(k, opaque, depth - 1): _decode(v, opaque, depth - 1) for k, v in content}
    items = [_decode(item, opaque, depth - 1) for item in content]
    return range(*items) if letter == "r" else _LISTS[letter](items)


def same(value: Any, expected: Any, tolerance: float) -> bool:
    """Return whether a decoded value is the expected JSON value.

    Values are equal as in Python, except that a tuple equals a list and that keys are compared as text: JSON has
    neither tuples nor other keys.
    """
    if isinstance(expected, list):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(expected)
            and all(same(a, b, tolerance) for a, b in zip(value, expected, strict=True))
        )
    if isinstance(expected, dict):
        entries = {_key(key): entry for key, entry in value.items()} if isinstance(value, dict) else None
        return (
            entries is not None
            and len(entries) == len(value)
            and entries.keys() == expected.keys()
            and all(same(entries[key], entry, tolerance) for key, entry in expected.items())
        )
    if isinstance(expected, str) or expected is None:
        return type(value) is type(expected) and bool(value == expected)
    return isinstance(value, int | float) and close(value, expected, tolerance)


def close(a: float, b: float, tolerance: float) -> bool:
    """Return whether a number is the expected one, or near it relative to that or to 1, whichever is larger."""
    if a == b or not tolerance:
        return a == b
    return math.isfinite(b) and abs(float(a) - float(b)) <= tolerance * max(1.0, abs(b))


def _key(key: Any) -> str:
    """Return a key as JSON would write it; no text for what it would refuse."""
    if isinstance(key, str):
        return key
    return json.dumps(key) if key is None or isinstance(key, int | float) else "\0"
