"""Grade-school problems whose answer is a number."""

from __future__ import annotations

from rewardsmith.rewards.protocol import CannotScore
from rewardsmith.rewards.rules.settings import Extract, Final, spoken
from rewardsmith.rewards.rules.truth import truths
from rewardsmith.text.answers import WAYS, boxed, hashed, stated
from rewardsmith.text.numbers import Number, first_number, read_number
from rewardsmith.types import Prompt


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
    """Return the number that the first of the ways finds; None when none finds one.

    In a phrase ("3 + 4 = 7 apples") it is the first number after the last equals sign.
    """
    for way in ways:
        found = WAYS[way](text)
        if found is not None:
            number = number_in(found)
            if number is not None:
                return number
    return None


def number_in(phrase: str) -> Number | None:
    """Return the number that a phrase is, or else the first number after its last equals sign."""
    number = read_number(phrase)
    if number is None:
        first = first_number(phrase.rpartition("=")[2])
        number = read_number(first) if first else None
    return number


def _gold(prompt: Prompt, answer: str) -> object:
    number = number_in(hashed(answer) or boxed(answer) or stated(answer) or answer)
    if number is None:
        raise CannotScore("invalid", f"the answer of the prompt {prompt.id!r} is no number: {answer[:100]!r}")
    return number.value
