"""Grade-school problems whose answer is a number."""

from __future__ import annotations

import re

from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.math_units import PARTS, SCALES
from rewardsmith.rewards.rules.settings import Extract, Final, spoken
from rewardsmith.rewards.rules.truth import truths
from rewardsmith.text.answers import boxed, hashed, stated
from rewardsmith.text.claims import claimed
from rewardsmith.text.numbers import Number, after_first_number, first_number, read_number
from rewardsmith.types import Prompt

_NEXT_WORD = re.compile(r"[\s-]*(?:\\text\s?\{\s*)?([A-Za-z]+)")
_OTHER = re.compile(
    r"\s*(?:[,;]|\\?(?:text\s?\{\s*)?\b(?:or|and|to|through)\b\s*\}?)?\s*\\?[$€£]?\s*[-−]?[0-9]", re.IGNORECASE
)
"""A number after another, with nothing between them but a word that makes it another answer."""


def gsm8k(
    prompt: Prompt, text: str, *, extract: Extract = ("hash", "boxed", "stated", "number"), final: Final = "auto"
) -> float:
    """1 when the number that the text gives is the answer, else 0; `extract = ["hash"]` insists on `#### 18`.

    The answer is a number, or a whole solution that ends in `#### 18`. Numbers are compared exactly; units, currency
    and percent signs are passed over.
    """
    golds = [_gold(prompt, answer) for answer in truths(prompt)]
    said = spoken(text, final)
    number = find_number(said, extract) if said else None
    return float(number is not None and number.value in golds)


def find_number(text: str, ways: Extract) -> Number | None:
    """Return the number in what the first of the ways finds; None where that is no number, or is taken back.

    What has no digits is passed over. In a phrase ("3 + 4 = 7 apples") it is the first number after the last "=".
    """
    for way in ways:
        found = claimed(text, way)
        if found == "" or (found and re.search("[0-9]", found)):
            return number_in(found)
    return None


def number_in(phrase: str) -> Number | None:
    """Return the number that a phrase is, or else the first number after its last equals sign.

    None where the phrase gives several ("5 or 6"), says that two numbers are equal which are not, or counts parts of
    one in words ("7 hundredths") that are not understood.
    """
    number = read_number(phrase)
    if number is not None:
        return number
    before, _, last = phrase.rpartition("=")
    first = first_number(last)
    number = read_number(first) if first else None
    same = read_number(before.rpartition("=")[2])
    if number is None or (same is not None and same.share != number.share):
        return None
    rest = after_first_number(last)
    word = _NEXT_WORD.match(rest)
    if _OTHER.match(rest) or (word and word[1].casefold() not in SCALES and PARTS.fullmatch(word[1])):
        return None
    scale = SCALES.get(word[1].casefold(), 1) if word else 1
    return Number(number.value * scale, number.percent, number.rounded)


def _gold(prompt: Prompt, answer: str) -> object:
    number = number_in(hashed(answer) or boxed(answer) or stated(answer) or answer)
    if number is None:
        raise CannotScore("invalid", f"the answer of the prompt {prompt.id!r} is no number: {answer[:100]!r}")
    return number.value
