"""One number as an answer, or in a JSON object."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rewardsmith.text.objects import last_object
from rewardsmith.text.reading import Unreadable

PARSER = "rating-1"
"""The version of this reader, for the record: it goes up whenever a text would be read otherwise."""

_NUMBER = re.compile(r"[-−+]?(?:[0-9]{1,15}(?:\.[0-9]{1,20})?|\.[0-9]{1,20})")
_MARKUP = re.compile(r"\\boxed|[*`$\[\]{}\"'“”‘’]|\s")
LONGEST_LINE = 200


def read_number(text: str) -> float:
    """Return the number that a text is, or that its last line is; nothing but markup may stand beside it.

    Only decimals count: no exponents, no separators, no infinity.

    Raises:
        Unreadable: there is no such number.
    """
    last = text.rstrip()[-LONGEST_LINE - 1 :].rpartition("\n")[2]
    number = _decimal(last)
    if number is None:
        raise Unreadable("no number", f"the last line is {last[-60:]!r}, not a number")
    return number


def read_field(text: str, key: str) -> float:
    """Return a number of the last JSON object in a text; true is 1 and false is 0.

    Args:
        text: what the judge wrote.
        key: of the number; dots reach into nested objects.

    Raises:
        Unreadable: there is no object, or no number under that key.
    """
    value: object = last_object(text)
    if value is None:
        raise Unreadable("no JSON", "the answer has no object that can be read")
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    number = _decimal(value) if isinstance(value, str) else value
    if not isinstance(number, bool | int | float) or not -1e15 < number < 1e15:  # also what is no number at all
        raise Unreadable("no number", f"the last object has none under {key!r}")
    return float(number)


def _decimal(text: str) -> float | None:
    """Return a short text as a number, without the markup around it."""
    if len(text) > LONGEST_LINE:
        return None
    # Markup becomes a space: 1*0 must not read as 10.
    number = _MARKUP.sub(" ", text).strip().removesuffix(".").rstrip()
    return float(number.replace("−", "-")) if _NUMBER.fullmatch(number) else None


__all__ = ["PARSER", "read_field", "read_number"]
