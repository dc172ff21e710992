r"""What an answer of mathematics looks like once spelling is taken away.

`\dfrac12`, `\left( … \right)`, `1{,}234`, `12\text{ cm}`, `90^\circ` and `x = 5` are so common that they are read
here: most answers are then equal as text or as numbers, and the computer algebra system is never asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from rewardsmith.text.numbers import Number, read_number

_REPLACED = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ",
    "≥": r"\ge ", "≠": r"\ne ", "≈": "=", "∪": r"\cup ", "∩": r"\cap ", "²": "^2", "³": "^3", "√": r"\sqrt ",
    "**": "^", "\u00a0": " ", "\u202f": " ", "\u2009": " ", r"\%": "%", r"\$": "", "$": "", "{,}": ",",
}  # fmt: skip
_REPLACE = re.compile("|".join(re.escape(sign) for sign in sorted(_REPLACED, key=len, reverse=True)))
_DROPPED = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits|quad|qquad)(?![A-Za-z])|(?<!\\)\\[,;:! ]|~"
    r"|\\[\[\]()](?![0-9])"
    r"|\^\s?(?:\\circ(?![A-Za-z])|\{\s?\\circ\s?\})(?:\s?[CF]\b)?|°(?:\s?[CF]\b)?|\bU\+00B0"
)
_FRAC = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_SHORT_FRAC = re.compile(r"\\frac\s?([0-9])\s?([0-9])(?![0-9])")
_NAMES = {"pi": "pi", "infinity": "infty"}
_NAMED = re.compile(r"(?<![A-Za-z\\])(?:pi|infinity)(?![A-Za-z])", re.IGNORECASE)
_PERCENT = re.compile(r"\s?(?:\\text\s?\{\s?)?\b(?:percent|per cent|pct)\b(?:\s?\})?", re.IGNORECASE)
_APPROX = re.compile(r"\\(?:approx|simeq)(?![A-Za-z])")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|operatorname)\s?\{([^{}]*)\}")
_ASSIGNED = re.compile(
    r"(?P<name>[A-Za-z](?:_(?:\w|\{\w+\}))?(?:\([A-Za-z](?:,\s?[A-Za-z])*\))?|\\[a-z]+)\s?=(?P<value>[^=<>]+)"
)
_UNIT_TEXT = re.compile(
    r"(?P<value>.*[0-9)}%])\s*\\(?:text|textrm|mathrm|mbox)\s?\{(?P<unit>[^{}0-9]*)\}\s?(?:\^\s?\{?[23]\}?)?\.?"
)
_UNIT_WORDS = re.compile(r"(?P<value>.*?[0-9)}%])\s*(?P<unit>[A-Za-z][A-Za-z ./]*)(?:\^\s?\{?[23]\}?)?\.?")
_WORDS = re.compile(r"[^\W\d_]+(?:[\s'’-]+[^\W\d_]+)*")

UNITS = {
    "mm": "mm", "millimeter": "mm", "millimetre": "mm", "cm": "cm", "centimeter": "cm", "centimetre": "cm",
    "meter": "m", "metre": "m", "km": "km", "kilometer": "km", "kilometre": "km", "inch": "in", "inche": "in",
    "ft": "ft", "foot": "ft", "feet": "ft", "yard": "yd", "mile": "mi", "mph": "mi/h", "kmh": "km/h", "kph": "km/h",
    "mg": "mg", "gram": "g", "kg": "kg", "kilogram": "kg", "lb": "lb", "pound": "lb", "ounce": "oz", "oz": "oz",
    "ml": "ml", "milliliter": "ml", "liter": "l", "litre": "l", "gallon": "gal", "sec": "s", "second": "s",
    "min": "min", "minute": "min", "hr": "h", "hour": "h", "day": "day", "week": "week", "month": "month",
    "year": "year", "dollar": "dollar", "usd": "dollar", "cent": "cent", "euro": "euro", "degree": "", "deg": "",
    "unit": "", "square": "", "sq": "", "cubic": "", "cu": "", "per": "",
}  # fmt: skip
"""Units, in the singular, and what they are compared by; "" for one that says nothing."""

_LETTER_UNITS = {"m": "m", "g": "g", "s": "s", "h": "h", "l": "l", "L": "l", "N": "N", "J": "J", "W": "W", "V": "V"}
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_MEANT = re.compile(
    r"hal(f|ves)|(third|quarter|(ten|hundred|thousand)th)s?|squared|cubed|pi|factorial|plus|minus|times|over|and|or|not|than"
)
"""Words after a number that make it another one."""


@dataclass(frozen=True)
class Form:
    r"""An answer, read.

    Attributes:
        latex: what a parser gets.
        key: the same without any white space and `\text`; two answers of one key are equal.
        number: the number that it is, where it is one.
        words: the words that it is, in lower case, where it is no mathematics.
        unit: what it is measured in, as `UNITS` has it; "" where none is given or known.
        name: what the value is assigned to, as in "x = 5"; "" where it is not.
    """

    latex: str
    key: str
    number: Number | None
    words: str | None
    unit: str
    name: str


def read_form(text: str, *, counted: bool = False) -> Form:
    """Return an answer, read.

    Args:
        text: what was extracted.
        counted: whether a number is expected, so that words after it can only say what was counted.
    """
    latex = _clean(text)
    name = ""
    assigned = _ASSIGNED.fullmatch(latex)
    if assigned:
        name, latex = assigned["name"], assigned["value"].strip()
    words = _words(latex)
    value, unit = (latex, "") if words else _without_unit(latex, counted)
    number = read_number(value) or (_scaled(value) if counted else None)
    key = re.sub(r"\s+", "", _TEXT.sub(r"\1", value))
    return Form(value, key, number, words, unit, name)


def _clean(text: str) -> str:
    text = _REPLACE.sub(lambda sign: _REPLACED[sign[0]], text)
    text = _DROPPED.sub(" ", text)
    text = _APPROX.sub("=", _SHORT_FRAC.sub(r"\\frac{\1}{\2}", _FRAC.sub(r"\\frac", text)))
    text = _NAMED.sub(lambda word: f"\\{_NAMES[word[0].lower()]} ", _PERCENT.sub("%", text))
    return " ".join(text.split()).strip().rstrip(".,;:").strip()


def _words(latex: str) -> str | None:
    r"""Return the words of an answer that is text: in `\text{…}`, or bare, with a word of four letters or more."""
    plain = _TEXT.sub(r"\1", latex).strip("'\"“”‘’. ")
    if plain.startswith("(") and plain.endswith(")"):
        plain = plain[1:-1].strip()
    if not _WORDS.fullmatch(plain):
        return None
    bare = plain == latex
    longest = max(len(word) for word in re.split(r"[\s'’-]+", plain))
    return None if bare and longest < 4 else " ".join(plain.casefold().split())


def _without_unit(latex: str, counted: bool) -> tuple[str, str]:
    """Return an answer without what it is measured in, and that unit."""
    match = _UNIT_TEXT.fullmatch(latex)
    if match and match["unit"].strip().casefold() in _SCALES:
        return f"{match['value'].strip()} {match['unit'].strip()}", ""
    if match:
        return match["value"].strip(), _unit(match["unit"])
    match = _UNIT_WORDS.fullmatch(latex)
    if not match:
        return latex, ""
    words = [word for word in re.split(r"[\s./]+", match["unit"]) if word]
    if any(word.casefold() in _SCALES for word in words):
        return latex, ""
    known = all(_singular(word) in UNITS or (word in _LETTER_UNITS and "/" in match["unit"]) for word in words)
    spaced = latex[len(match["value"]) :].startswith(" ")
    # "5 m" counts metres where a number is expected, and is a product elsewhere.
    nouns = counted and spaced and len(words) <= 6 and (len(words[0]) > 1 or words[0] in _LETTER_UNITS)
    nouns = nouns and not any(_MEANT.fullmatch(word.casefold()) for word in words)
    return (match["value"].strip(), _unit(match["unit"])) if known or nouns else (latex, "")


def _unit(text: str) -> str:
    known = [_LETTER_UNITS.get(word) or UNITS.get(_singular(word), "?") for word in re.split(r"[\s./]+", text) if word]
    return "" if "?" in known else "/".join(word for word in known if word)


def _singular(word: str) -> str:
    lower = word.casefold()
    return lower if lower in UNITS else lower.removesuffix("s")


def _scaled(text: str) -> Number | None:
    """Return 5000000 for "5 million"."""
    head, _, scale = text.rpartition(" ")
    number = read_number(head) if scale.casefold() in _SCALES else None
    return (
        None if number is None else Number(number.value * Fraction(_SCALES[scale.casefold()]), rounded=number.rounded)
    )
