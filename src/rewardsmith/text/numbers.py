"""Numbers as people and models write them: separators, fractions, percent, powers of ten.

Only ASCII digits count. Whatever is longer than `LONGEST` characters, or has an exponent beyond `EXPONENT`, is no
number: model output must not decide how much there is to compute.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 1_000
"""Characters of the longest number that is read."""

EXPONENT = 300
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
_SEPARATORS = re.compile(r",|\{,\}|\\,")
_CANONICAL = re.compile(r"(-?)(?:([0-9]+) )?([0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?)(?:/([0-9]+))?(%?)")


@dataclass(frozen=True)
class Number:
    """A number that was read.

    Attributes:
        value: exact, as written: 50% has the value 50.
        percent: whether a percent sign followed.
        rounded: whether it was written with a decimal point or as a power of ten, so that it may be an approximation.
    """

    value: Fraction
    percent: bool = False
    rounded: bool = False

    @property
    def share(self) -> Fraction:
        """The value with the percent sign carried out: 50% is 1/2."""
        return self.value / 100 if self.percent else self.value


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
    is longer than `LONGEST`.
    """
    end = max(text.rfind(digit) for digit in "0123456789")
    if end < 0:
        return None
    start = max(0, end - LONGEST - 100)
    matches = list(_NUMBER.finditer(text[start : end + 10]))
    if not matches or (matches[-1].start() == 0 and start > 0):
        return None
    return _canonical(matches[-1])


def first_number(text: str) -> str | None:
    """Return the first number within the first `LONGEST` characters, in the form of `last_number`."""
    match = _NUMBER.search(text[: LONGEST + 1])
    return _canonical(match) if match and match.end() <= LONGEST else None


def after_first_number(text: str) -> str:
    """Return what follows the number that `first_number` finds; "" where it finds none."""
    match = _NUMBER.search(text[: LONGEST + 1])
    return text[match.end() :] if match and match.end() <= LONGEST else ""


def read_number(text: str) -> Number | None:
    """Return the number that a text is, and nothing besides; None for anything else."""
    text = text.strip()
    match = _NUMBER.fullmatch(text) if len(text) <= LONGEST else None
    form = _canonical(match) if match else text if _CANONICAL.fullmatch(text[:LONGEST]) else None
    parts = _CANONICAL.fullmatch(form) if form and len(form) <= LONGEST else None
    if parts is None:
        return None
    sign, units, top, bottom, percent = parts.groups()
    if (bottom is None and units) or (bottom is not None and (int(bottom) == 0 or not top.isdecimal())):
        return None
    if abs(int(top.partition("e")[2] or 0)) > EXPONENT:
        return None
    value = Fraction(top) / int(bottom or 1) + int(units or 0)
    return Number(-value if sign else value, bool(percent), "." in top or "e" in top)


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
    return form if len(form) <= LONGEST else None
