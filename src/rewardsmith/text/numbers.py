"""Numbers as people and models write them: separators, fractions, percent, powers of ten, words.

Only ASCII digits count. Whatever is longer than `MAX_CHARS` characters, or has an exponent beyond `MAX_EXPONENT`, is no
number: model output must not decide how much there is to compute.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

MAX_CHARS = 1_000
"""Characters of the longest number that is read."""

MAX_EXPONENT = 300
"""The largest power of ten, in either direction."""

_WHOLE = r"(?:[0-9]{1,3}(?:(?:,|\{,\}|\\,)[0-9]{3})+(?![0-9])|[0-9]+)"
_PAIR = r"(?:\{\s?(?P<top>-?[0-9]+)\s?\}\s?\{\s?(?P<bottom>[0-9]+)\s?\}|(?P<top1>[0-9])\s?(?P<bottom1>[0-9])(?![0-9]))"
_NUMBER = re.compile(
    # An index or an exponent (x_1, m^2, s^{-1}), the end of a word (cm2) and the tail of another number are no numbers.
    r"(?<![0-9A-Za-z^_])(?<![0-9]\.)(?<![\^_]\{)(?<![\^_][-−])(?<![\^_]\{[-−])(?<!\*\*)"
    r"(?:\\?[$€£]\s?)?(?P<sign>(?<![0-9A-Za-z)\]}])[-+−])?(?:\\?[$€£]\s?)?(?<![0-9]\.)"
    r"(?:"
    rf"(?P<units>[0-9]+)?\s?\\[dtc]?frac\s?{_PAIR}"
    r"|(?<!/)(?:(?P<units2>[0-9]+) )?(?P<top2>[0-9]+)\s?/\s?(?P<bottom2>[0-9]+)(?![0-9/]|\.[0-9])"
    rf"|(?P<decimal>{_WHOLE}(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:[eE](?P<exponent>[-+]?[0-9]{1,6})(?![0-9A-Za-z])"
    r"|\s?(?:\\times|\\cdot|[×·*])\s?10\s?\^\s?(?P<braced>\{\s?)?(?P<power>[-−]?[0-9]{1,6})(?(braced)\s?\}))?"
    r")"
    r"(?P<raised>\s?(?:\^|\*\*)\s?\{?[-−]?[0-9]{1,6}\}?)?"
    r"(?P<percent>\s?\\?%)?(?![0-9]|[eE][-+]?[0-9]|\.[0-9])"
)
_CURRENCY = re.compile(r"\\?[$€£]\s?")
_SEPARATORS = re.compile(r",|\{,\}|\\,")
_CANONICAL = re.compile(r"(-?)(?:([0-9]+) )?([0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?)(?:/([0-9]+))?(%?)")


@dataclass(frozen=True)
class Number:
    """A number as it is written: 50% has the value 50; `rounded` ones have a decimal point or a power of ten."""

    value: Fraction
    percent: bool = False
    rounded: bool = False

    @property
    def share(self) -> Fraction:
        """The value with the percent sign carried out: 50% is 1/2."""
        return self.value / 100 if self.percent else self.value


class FoundNumber(NamedTuple):
    """A number in a text, and where it stands without a currency sign before it."""

    number: Number
    start: int
    end: int


def close(right: Fraction, answer: Fraction, precision: int) -> bool:
    """Say whether numbers agree to so many decimal places, and to all but two of as many digits.

    The second bound keeps 0.0000001 and 0.0000002 apart, which agree to six places.
    """
    apart = abs(right - answer)
    return bool(apart * 2 * 10**precision <= 1 and apart * 10 ** max(precision - 2, 0) <= abs(right))


def last_number(text: str) -> str | None:
    """Return the last number of a text as `-1234.5`, `3/4`, `1 1/2`, `5e-3` or `50%`; None without one.

    Signs, thousands separators (1,234 and 1{,}234), LaTeX fractions, mixed numbers and powers of ten are understood;
    currency signs are dropped, a percent sign is kept. Exponents and indices (m^2, x_1) are passed over. A power such
    as 2^10 is returned as it is written. The comma is never a decimal sign: "3,5" ends in 5. None where the last number
    is longer than `MAX_CHARS`.
    """
    end = max(text.rfind(digit) for digit in "0123456789")
    if end < 0:
        return None
    start = max(0, end - MAX_CHARS - 100)
    matches = list(_NUMBER.finditer(text[start : end + 10]))
    if not matches or (matches[-1].start() == 0 and start > 0):
        return None
    return _canonical(matches[-1])


def first_number(text: str) -> str | None:
    """Return the first number within the first `MAX_CHARS` characters, in the form of `last_number`."""
    match = _NUMBER.search(text[: MAX_CHARS + 1])
    return _canonical(match) if match and match.end() <= MAX_CHARS else None


def after_first_number(text: str) -> str:
    """Return what follows the number that `first_number` finds; "" where it finds none."""
    match = _NUMBER.search(text[: MAX_CHARS + 1])
    return text[match.end() :] if match and match.end() <= MAX_CHARS else ""


def read_number(text: str) -> Number | None:
    """Return the number that a text is, and nothing besides; None for anything else."""
    text = text.strip()
    match = _NUMBER.fullmatch(text) if len(text) <= MAX_CHARS else None
    form = _canonical(match) if match else text if _CANONICAL.fullmatch(text[:MAX_CHARS]) else None
    parts = _CANONICAL.fullmatch(form) if form and len(form) <= MAX_CHARS else None
    if parts is None:
        return None
    sign, units, top, bottom, percent = parts.groups()
    if (bottom is None and units) or (bottom is not None and (int(bottom) == 0 or not top.isdecimal())):
        return None
    if abs(int(top.partition("e")[2] or 0)) > MAX_EXPONENT:
        return None
    value = Fraction(top) / int(bottom or 1) + int(units or 0)
    return Number(-value if sign else value, bool(percent), "." in top or "e" in top)


def find_numbers(text: str) -> Iterator[FoundNumber]:
    """Yield the numbers of a text in order, in the forms that `last_number` understands; powers are passed over."""
    for match in _NUMBER.finditer(text):
        form = _canonical(match)
        number = read_number(form) if form else None
        if number is not None:
            currency = _CURRENCY.match(match[0])
            yield FoundNumber(number, match.start() + (currency.end() if currency else 0), match.end())


def _canonical(match: re.Match[str]) -> str | None:
    part = match.groupdict()
    if part["raised"]:
        return match[0].strip()
    minus = part["sign"] in ("-", "−")
    top = part["top"] or part["top1"] or part["top2"]
    if top:
        minus ^= top.startswith("-")
        units = part["units"] or part["units2"]
        bottom = part["bottom"] or part["bottom1"] or part["bottom2"]
        form = f"{units + ' ' if units else ''}{top.lstrip('-')}/{bottom}"
    else:
        form = _SEPARATORS.sub("", part["decimal"])
        form = f"0{form}" if form.startswith(".") else form
        exponent = part["exponent"] or part["power"]
        form += f"e{int(exponent.replace('−', '-'))}" if exponent else ""
    form = f"{'-' if minus else ''}{form}{'%' if part['percent'] else ''}"
    return form if len(form) <= MAX_CHARS else None


# ---- numbers in words --------------------------------------------------------------------------------------------

_ONES = {
    **{"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9},
    **{"ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16},
    **{"seventeen": 17, "eighteen": 18, "nineteen": 19},
}
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SMALL = _ONES | {word: 10 * i for i, word in enumerate(_TENS, 2)}
NUMBER_WORDS = frozenset(_SMALL)
"""Words that are numbers by themselves."""

_SCALES = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
_ORDINALS = {
    **{"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8},
    **{"ninth": 9, "tenth": 10, "eleventh": 11, "twelfth": 12},
}
_PARTS = {"half": 2, "halves": 2, "quarter": 4} | {word: i for word, i in _ORDINALS.items() if 3 <= i <= 10}


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
