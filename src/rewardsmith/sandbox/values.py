"""Values of Python as JSON and back, for processes that do not trust each other. Loaded in the child.

What JSON lacks is a list whose first entry is a letter: `(1, 2)` is `["t", [1, 2]]`, and a list is `["l", […]]`. Values
that are not plain data stay where they are; only a number that stands for them is sent: `["o", 3]`. A subclass of a
plain type arrives as the plain type, so nothing that a program has redefined, such as `__eq__`, crosses the border.
"""

from __future__ import annotations

import math
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs more than the rest of this module
    from collections.abc import Callable
    from typing import Any

DEPTH = 50
"""Levels that a value of a program may nest; what a test makes of such values may be nested four times as deeply."""

_EXACT = 1 << 53


class MalformedValue(Exception):  # noqa: N818 the other side's, not ours
    """What arrived is not an encoded value."""


def encode(value: Any, opaque: Callable[[Any], Any], depth: int = DEPTH) -> Any:  # noqa: PLR0911 one for each type
    """Return a value as JSON; what is not plain data, or nested too deeply, as what `opaque` returns for it."""
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
    for letter, kind in _SEQUENCES.items():
        if isinstance(value, kind):
            return [letter, [encode(item, opaque, depth - 1) for item in value]]
    name = f"{type(value).__module__}.{type(value).__name__}"
    if name == "datetime.timedelta":
        return ["delta", [value.days, value.seconds, value.microseconds]]
    return [_NUMBERS[name], str(value)] if name in _NUMBERS else opaque(value)


_SEQUENCES: dict[str, type[Any]] = {
    "l": list,
    "t": tuple,
    "s": set,
    "f": frozenset,
    "q": deque,
}

_NUMBERS = {
    "decimal.Decimal": "D",
    "fractions.Fraction": "F",
    "datetime.date": "date",
    "datetime.datetime": "datetime",
}


def decode(data: Any, opaque: Callable[[int], Any], depth: int = DEPTH) -> Any:
    """Return the value that was encoded; `opaque` returns what stayed on the other side.

    Raises MalformedValue for anything that `encode` cannot have written. It builds sets and dictionaries, and
    a program can choose keys that are slow to compare: call it in a process with limits.
    """
    try:
        return _decode(data, opaque, depth)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise MalformedValue(f"{type(error).__name__}: {error}"[:200]) from None


def _decode(data: Any, opaque: Callable[[int], Any], depth: int) -> Any:
    if not isinstance(data, list):
        if isinstance(data, dict):
            raise MalformedValue("an object")
        return data
    letter, content = data
    if letter == "o":
        return opaque(int(content))
    if letter in _SIMPLE:
        return _SIMPLE[letter](content)
    if letter in ("D", "F", "date", "datetime", "delta"):
        return _number(letter, content)
    if depth <= 0:
        raise MalformedValue("nested too deeply")
    if letter == "d":
        return {_decode(k, opaque, depth - 1): _decode(v, opaque, depth - 1) for k, v in content}
    return _FROM_LIST[letter]([_decode(item, opaque, depth - 1) for item in content])


_SIMPLE: dict[str, Callable[[Any], Any]] = {
    "i": lambda text: int(text, 16),
    "n": float,
    "c": lambda parts: complex(float(parts[0]), float(parts[1])),
    "b": bytes.fromhex,
    "B": bytearray.fromhex,
}

_FROM_LIST: dict[str, Callable[[list[Any]], Any]] = {
    "l": list,
    "t": tuple,
    "s": set,
    "f": frozenset,
    "q": deque,
    "r": lambda numbers: range(*numbers),
}


def _number(letter: str, text: Any) -> Any:
    if letter == "D":
        from decimal import Decimal  # noqa: PLC0415 most programs return none

        return Decimal(text)
    if letter == "F":
        from fractions import Fraction  # noqa: PLC0415

        return Fraction(text)
    import datetime  # noqa: PLC0415

    if letter == "delta":
        return datetime.timedelta(*text)
    return (datetime.date if letter == "date" else datetime.datetime).fromisoformat(text)
