"""What an answer is measured in, and the words that may follow a number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from rewardsmith.text.numbers import NUMBER_WORDS

_KNOWN = {
    "mm": "mm", "millimeter": "mm", "millimetre": "mm", "cm": "cm", "centimeter": "cm", "centimetre": "cm",
    "dm": "dm", "meter": "m", "metre": "m", "km": "km", "kilometer": "km", "kilometre": "km", "inch": "in",
    "inche": "in", "ft": "ft", "foot": "ft", "feet": "ft", "yard": "yd", "yd": "yd", "mile": "mi", "mi": "mi",
    "mg": "mg", "gram": "g", "kg": "kg", "kilogram": "kg", "ton": "t", "tonne": "t", "lb": "lb", "pound": "lb",
    "ounce": "oz", "oz": "oz", "ml": "ml", "milliliter": "ml", "millilitre": "ml", "liter": "l", "litre": "l",
    "gallon": "gal", "gal": "gal", "quart": "qt", "pint": "pt", "cup": "cup", "ms": "ms", "millisecond": "ms",
    "sec": "s", "second": "s", "min": "min", "minute": "min", "hr": "h", "hour": "h", "day": "day", "week": "week",
    "month": "month", "year": "year", "yr": "year", "dollar": "dollar", "usd": "dollar", "buck": "dollar",
    "cent": "cent", "penny": "cent", "pennie": "cent", "euro": "euro", "eur": "euro", "rupee": "rupee", "yen": "yen",
    "newton": "N", "joule": "J", "watt": "W", "volt": "V", "ohm": "ohm", "ampere": "A", "amp": "A", "pascal": "Pa",
    "pa": "Pa", "hz": "Hz", "hertz": "Hz", "mol": "mol", "mole": "mol", "kelvin": "K", "kj": "kJ", "kw": "kW",
    "kilojoule": "kJ", "kilowatt": "kW", "celsius": "°C", "fahrenheit": "°F", "degree": "°", "deg": "°",
    "radian": "rad", "rad": "rad", "am": "am", "pm": "pm", "acre": "acre", "hectare": "ha", "unit": "unit",
}  # fmt: skip
"""Units, in lower case and in the singular, and what they are compared by."""

LETTERS = {"m": "m", "g": "g", "s": "s", "h": "h", "l": "l", "L": "l", "N": "N", "J": "J", "W": "W", "V": "V"}
_LETTERS = LETTERS | {"A": "A", "K": "K", "C": "°C", "F": "°F"}
_TOGETHER = {
    "mph": (("mi", 1), ("h", -1)), "kmh": (("km", 1), ("h", -1)), "kph": (("km", 1), ("h", -1)),
    "mps": (("m", 1), ("s", -1)),
}  # fmt: skip
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWERS_AFTER = {"squared": 2, "cubed": 3}
SCALES = {
    word: Fraction(number)
    for word, number in {
        "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    }.items()
} | {
    word + end: Fraction(1, number)
    for number, word in {
        3: "third", 4: "quarter", 5: "fifth", 6: "sixth", 7: "seventh", 8: "eighth", 9: "ninth", 10: "tenth",
        12: "twelfth", 100: "hundredth", 1000: "thousandth", 10**6: "millionth",
    }.items()
    for end in ("", "s")
}  # fmt: skip
"""Words by which a number is multiplied: 5 million, 7 hundredths."""


_PARTS = (
    r"hal(?:f|ves)|(?:third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|twentieth"
    r"|(?:ten|hundred|)-?(?:hundred|thousand|million|billion)th)s?"
)
PARTS = re.compile(_PARTS, re.IGNORECASE)
"""Words after a number for the part of one that is counted: "7 hundredths"."""

CHANGES = re.compile(
    _PARTS + r"|hundreds|thousands|millions|dozens|score|percent"
    r"|squared|cubed|pi|factorial|plus|minus|times|over|divided|multiplied|mod|modulo|remainder|base|root|power|choose"
    r"|and|or|nor|than|less|fewer|more|most|least|short|below|above|under|beyond|another|other|not|no|never|none"
    r"|isn|isnt|wrong|incorrect|false|mistaken|except|without|cannot|is|are|was|if|but|instead|approximately|about"
    r"|(?:st|nd|rd|th)s?|negative|positive|point|infinite(?:ly)?|infinity|double[ds]?|twice|tripled?|inverse|reciprocal"
    r"|opposite|greater|bigger|larger|smaller|permille|mille|ppm|ppb|mil|mio|bn|mn|thou|grand|lakhs?|crores?|gross|pairs?"
    r"|couples?|sqrt|log|ln|sin|cos|tan|exp|imaginary|halved|quadrupled?|negated|inverted|tens|ones"
    + "".join(rf"|{word}(?:e?s)?" for word in NUMBER_WORDS),
    re.IGNORECASE,
)
"""Words next to a number that make it another one, or take it back."""

_PIECE = re.compile(
    r"\s*(?:(?P<daytime>[aApP]\.?\s?[mM](?:\.|(?![A-Za-z])))|(?P<word>[A-Za-z]+(?:['’-][A-Za-z]+)*)\.?"
    r"|\^\s?\{?\s?(?P<power>-?[1-9])\s?\}?|(?P<over>/)|(?P<times>\\cdot|\\times|\\ |-|,))"
)
_TEXT = re.compile(r"\\(?:text|mathrm)\s?\{([^{}]*)\}")


@dataclass(frozen=True)
class Unit:
    """What was counted or measured.

    Attributes:
        powers: units and their exponents, in order of the name; ("m", 1), ("s", -1) for m/s.
        words: words that are no units, in the singular.
        scale: by what a word like "million" multiplies.
    """

    powers: tuple[tuple[str, int], ...] = ()
    words: frozenset[str] = frozenset()
    scale: Fraction = Fraction(1)

    @property
    def known(self) -> bool:
        """Whether it is a unit, and no other word."""
        return bool(self.powers) and not self.words


def read_unit(text: str) -> Unit | None:  # noqa: PLR0912 one branch for each kind of word
    r"""Return what words such as `\text{ km}/\text{h}` or "red apples" measure; None where they may mean more."""
    text = _TEXT.sub(r" \1 ", text).strip()
    powers: dict[str, int] = {}
    words: set[str] = set()
    scale, sign, power, last, at = Fraction(1), 1, 1, "", 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            return None
        at = piece.end()
        word = (piece["word"] or "").casefold()
        raised = int(piece["power"] or _POWERS_AFTER.get(word, 0))
        unit = _LETTERS.get(piece["word"]) or _KNOWN.get(_singular(word))
        if raised and last:
            powers[last] *= raised
        elif piece["over"] or word == "per":
            sign = -1
        elif piece["daytime"]:
            powers[f"{piece['daytime'][0].lower()}m"] = 1
        elif word in _POWERS:
            power = _POWERS[word]
        elif word in SCALES and not (powers or words) and scale == 1:
            scale = SCALES[word]
        elif word in _TOGETHER:
            powers.update(_TOGETHER[word])
        elif raised or CHANGES.fullmatch(word) or word in SCALES:
            return None
        elif unit:
            powers[unit] = powers.get(unit, 0) + sign * power
            last, power = unit, 1
        elif len(word) > 1 or piece["word"] == "a":
            words.add(_singular(word))
        elif word:
            return None  # 5k, 5x
    if power != 1:
        powers["unit"] = power  # "12 square"
    if "°C" in powers or "°F" in powers:
        powers.pop("°", None)
    return Unit(tuple(sorted(powers.items())), frozenset(words), scale)


def conflict(one: Unit | None, other: Unit | None) -> bool:
    """Return whether two answers are measured in different things; a unit that is missing is not different."""
    if one is None or other is None or not (one.powers or one.words) or not (other.powers or other.words):
        return False
    if one.words or other.words:  # "apples" and "red apples", "meters" and "meters of wire"
        several = one.words <= other.words and set(one.powers) <= set(other.powers)
        return not (several or (other.words <= one.words and set(other.powers) <= set(one.powers)))
    a, b = dict(one.powers), dict(other.powers)
    if "°" in a or "°" in b:
        return not set(a) | set(b) <= {"°", "°C"} and not set(a) | set(b) <= {"°", "°F"}
    if "unit" in (*a, *b):
        return sorted(a.values()) != sorted(b.values())
    return a != b


def _singular(word: str) -> str:
    lower = word.casefold()
    if lower in _KNOWN or len(lower) < 3 or lower.endswith("ss"):
        return lower
    if lower.endswith("ies") and len(lower) > 4:
        return lower[:-3] + "y"
    return lower.removesuffix("s")
