"""Numbers in words: "seven", "twenty-one", "three hundred and five", "one half"."""

from __future__ import annotations

import re
from fractions import Fraction

_SMALL = {
    word: number
    for number, word in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ]
    )
} | {
    word: 10 * (i + 2)
    for i, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"])
}
NUMBER_WORDS = frozenset(_SMALL)
"""Words that are numbers by themselves."""

_SCALES = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
_PARTS = {"half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7,
          "eighth": 8, "ninth": 9, "tenth": 10}  # fmt: skip
_ORDINALS = {
    word: number
    for number, word in enumerate(
        [
            "first",
            "second",
            "third",
            "fourth",
            "fifth",
            "sixth",
            "seventh",
            "eighth",
            "ninth",
            "tenth",
            "eleventh",
            "twelfth",
        ],
        start=1,
    )
}


def number_in_words(text: str) -> Fraction | None:
    """Return the number that words are, and nothing besides; None for anything else. "Fifth" alone is 5."""
    if text.casefold() in _ORDINALS:
        return Fraction(_ORDINALS[text.casefold()])
    words = [word for word in re.split(r"[\s-]+", text.casefold()) if word]
    negative = words[:1] in (["minus"], ["negative"])
    words = words[negative:]
    below = _PARTS.get(words[-1]) or _PARTS.get(words[-1].removesuffix("s")) if len(words) > 1 else None
    value = _whole(words[:-1] if below else words)
    if value is None or (below and (value >= below or (value == 1) == words[-1].endswith("s"))):
        return None
    return Fraction(-value if negative else value, below or 1)


def _whole(words: list[str]) -> int | None:
    total = part = 0
    last = ""
    for word in words:
        if word == "and" and last in _SCALES:
            continue
        if word in _SMALL:
            # "twenty one" is a number, "one twenty" and "two three" are none.
            if last in _SMALL and not (part % 100 >= 20 and part % 10 == 0 and 0 < _SMALL[word] < 10):
                return None
            part += _SMALL[word]
        elif word == "hundred" and 0 < part < 100 and last in _SMALL:
            part *= 100
        elif word in _SCALES and part and word != "hundred":
            total, part = total + part * _SCALES[word], 0
        else:
            return None
        last = word
    return total + part if last else None
