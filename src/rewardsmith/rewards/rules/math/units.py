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


def read_unit(text: str) -> Unit | None:
    r"""Return what words such as `\text{ km}/\text{h}` or "red apples" measure; None where they may mean more."""
    text = _TEXT.sub(r" \1 ", text).strip()
    reading, at = _Reading(), 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None or not reading.take(piece):
            return None
        at = piece.end()
    return reading.unit()


class _Reading:
    """What was read of a unit so far."""

    def __init__(self) -> None:
        self.powers: dict[str, int] = {}
        self.words: list[str] = []
        self.scale = Fraction(1)
        self.sign = self.power = 1
        self.last = ""

    def take(self, piece: re.Match[str]) -> bool:
        """Read a piece; False where it is nothing that measures or counts."""
        word = (piece["word"] or "").casefold()
        power = int(piece["power"] or _POWERS_AFTER.get(word, 0))
        if power:
            if self.last:
                self.powers[self.last] *= power
            return bool(self.last)
        if piece["over"] or word == "per":
            self.sign = -1
        elif piece["daytime"]:
            self.powers["pm" if piece["daytime"][0] in "pP" else "am"] = 1
        elif word in _POWERS:
            self.power = _POWERS[word]
        elif word in SCALES and not (self.powers or self.words) and self.scale == 1:
            self.scale = SCALES[word]
        elif word in _TOGETHER:
            self.powers.update(_TOGETHER[word])
        elif word:
            return self._take_word(piece["word"])
        return True

    def _take_word(self, word: str) -> bool:
        if CHANGES.fullmatch(word) or word.casefold() in SCALES:
            return False
        unit = _LETTERS.get(word) or _KNOWN.get(_singular(word))
        if unit is not None:
            self.powers[unit] = self.powers.get(unit, 0) + self.sign * self.power
            self.last, self.power = unit, 1
        elif len(word) > 1 or word == "a":
            self.words.append(_singular(word))
        else:
            return False  # 5k, 5x
        return True

    def unit(self) -> Unit:
        """Return all of it."""
        if self.power != 1:
            self.powers["unit"] = self.power  # "12 square"
        if "°C" in self.powers or "°F" in self.powers:
            self.powers.pop("°", None)
        return Unit(tuple(sorted(self.powers.items())), frozenset(self.words), self.scale)


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
