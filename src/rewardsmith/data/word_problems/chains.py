"""Chains such as `12 +7 -5`: a start, and operations that are done from left to right."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

MAX_FACTOR = 5
"""Largest number to multiply with, or to divide by."""

MAX_STEPS = 9
"""Operations of the longest chain; each of them and the conclusion has a point of ten."""

_CHAIN = re.compile(rf"[0-9]{{1,6}}( [-+*/][0-9]{{1,6}}){{1,{MAX_STEPS}}}")
_TRIES = 2_000


class Operation(NamedTuple):
    """What is done to the number so far: `+7`."""

    sign: str
    number: int

    def of(self, value: int) -> int:
        """Return the result; a division rounds down where it is not exact."""
        match self.sign:
            case "+":
                return value + self.number
            case "-":
                return value - self.number
            case "*":
                return value * self.number
            case _:
                return value // self.number

    def exact(self, value: int) -> bool:
        """Return whether nothing is rounded."""
        return self.sign != "/" or value % self.number == 0


def is_chain(text: str) -> bool:
    """Return whether a text is a chain, with at most `MAX_STEPS` operations."""
    return bool(_CHAIN.fullmatch(text)) and " /0" not in text


def parse_chain(chain: str) -> tuple[int, list[Operation]]:
    """Return the start of a chain and its operations."""
    if not is_chain(chain):
        raise ValueError(f"{chain!r:.60} is no chain: it should be such as 12 +7 -5")
    start, *operations = chain.split()
    return int(start), [Operation(text[0], int(text[1:])) for text in operations]


def results(chain: str) -> list[int]:
    """Return the result of each operation; the last one is the answer."""
    value, operations = parse_chain(chain)
    found = []
    for operation in operations:
        value = operation.of(value)
        found.append(value)
    return found


def draw_chain(rng: random.Random, steps: int, largest: int, signs: str) -> str:
    """Draw a chain with all numbers from 1 to `largest`, and divisions that are exact.

    It draws until it finds one: `can_draw` must be true of the same settings.
    """
    while True:
        chain = _try_chain(rng, steps, largest, signs)
        if chain:
            return chain


def can_draw(steps: int, largest: int, signs: str) -> bool:
    """Return whether there are such chains, and they are not too rare to be found; always the same for the settings."""
    rng = random.Random(0)
    return any(_try_chain(rng, steps, largest, signs) for _ in range(_TRIES))


def _try_chain(rng: random.Random, steps: int, largest: int, signs: str) -> str:
    """Draw a chain; "" where it cannot be continued."""
    value = rng.randint(2, largest // 2)
    parts = [str(value)]
    for _ in range(steps):
        sign = rng.choice(signs)
        numbers = _numbers(sign, value, largest)
        if not numbers:
            return ""
        operation = Operation(sign, rng.choice(numbers))
        value = operation.of(value)
        parts.append(f"{sign}{operation.number}")
    return " ".join(parts)


def _numbers(sign: str, value: int, largest: int) -> Sequence[int]:
    """Return the numbers with which an operation may continue a chain."""
    match sign:
        case "+":
            return range(2, largest - value + 1)
        case "-":
            return range(2, value)
        case "*":
            return range(2, min(MAX_FACTOR, largest // value) + 1)
        case _:
            return [number for number in range(2, MAX_FACTOR + 1) if value % number == 0 and value > number]
