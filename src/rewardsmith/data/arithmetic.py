"""A tiny world with programmatic truth: chains of additions and subtractions with every step shown.

    7+5-3?   ->   7+5=12;12-3=9;#9

Operands are 1 to 9 and every partial result lies in 0 to 20. The demonstrations are sloppy on purpose: a step that
carries or borrows forgets it now and then, another step comes out one too high, and the error is carried on to the
answer. A model that imitates them learns the right way and the slipping way; reinforcement learning against the truth
then *selects* the right one. It does not teach arithmetic that the demonstrations do not contain.

A share of the demonstrations may be miracles: right answers that are reached through a wrong step. A reward that looks
at the answer alone cannot tell them from honest work.

    8+5-4?   ->   8+5=14;14-4=9;#9
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from rewardsmith.errors import UserError
from rewardsmith.text.arithmetic import answer, apply, check_steps, criteria, miracle, solution, written
from rewardsmith.types import Demonstration, Message, Prompt

LARGEST = 20
SOURCE = "arithmetic"

_PATIENCE = 20_000  # draws; with the smallest share of 0.001, bad luck that long has probability 2e-9


class Arithmetic:
    """Chains of + and - with shown steps."""

    def __init__(
        self,
        *,
        operations: Annotated[int, Field(ge=1, le=16, description="steps in a problem")] = 3,
        split: Annotated[
            Literal["train", "held-out"], Field(description="a problem is in one of the two, by a hash of its text")
        ] = "train",
        held_out: Annotated[float, Field(ge=0, le=0.99, description="share of the problems that is held out")] = 0.1,
        forgets_carry: Annotated[
            float, Field(ge=0, le=1, description="demonstrations: chance that a carry or borrow is forgotten")
        ] = 0.6,
        slips: Annotated[
            float, Field(ge=0, le=1, description="demonstrations: chance that another step comes out one too high")
        ] = 0.3,
        miracles: Annotated[
            float,
            Field(ge=0, le=1, description="demonstrations: share of right answers reached through a wrong step"),
        ] = 0.0,
    ) -> None:
        if split == "held-out" and held_out < 0.001:
            raise UserError(f"held_out is {held_out}: the held-out split needs a share of at least 0.001")
        if miracles and operations < 2:
            raise UserError(f"miracles is {miracles}: a miracle needs a wrong step before the last, so operations >= 2")
        self.operations = operations
        self.split = split
        self.held_out = held_out
        self.forgets_carry = forgets_carry
        self.slips = slips
        self.miracles = miracles

    def prompts(self, seed: int) -> Iterator[Prompt]:
        """Yield prompts of this split without end, drawn evenly from all problems; the same seed, the same prompts."""
        rng = random.Random(seed)
        misses = 0
        while misses < _PATIENCE:
            problem = _draw(rng, self.operations)
            if self._is_held_out(problem) == (self.split == "held-out"):
                misses = 0
                yield self.prompt(problem)
            else:
                misses += 1
        raise UserError(
            f"no problem with {self.operations} operations is in the split {self.split!r} with held_out ="
            f" {self.held_out}: hold out more, or use more operations"
        )

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Yield prompts of this split, each with a sloppy solution or a miracle, without end."""
        rng = random.Random(f"slips {seed}")
        for prompt in self.prompts(seed):
            problem = prompt.info["problem"]
            is_miracle = self.miracles > 0 and rng.random() < self.miracles
            yield Demonstration(prompt, miracle(problem) if is_miracle else self.sloppy(problem, rng))

    def prompt(self, problem: str) -> Prompt:
        """Return the prompt for a problem such as `7+5-3`."""
        message = Message("user", f"{problem}?")
        info = {"problem": problem, "criteria": criteria(problem)}
        return Prompt(f"{SOURCE}-{problem}", [message], source=SOURCE, answer=str(answer(problem)), info=info)

    def _is_held_out(self, problem: str) -> bool:
        digest = hashlib.blake2b(problem.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.held_out * 2**64

    def sloppy(self, problem: str, rng: random.Random) -> str:
        """Return a solution with the slips of this world."""

        def step(a: int, sign: str, b: int) -> int:
            result = apply(a, sign, b)
            over = a % 10 + b >= 10 if sign == "+" else a % 10 < b
            if over and rng.random() < self.forgets_carry:
                return result - 10 if sign == "+" else result + 10
            return result + 1 if not over and rng.random() < self.slips else result

        return written(problem, step)


def problems(operations: int) -> Iterator[str]:
    """Yield every problem with that many operations."""

    def extend(text: str, value: int, left: int) -> Iterator[str]:
        if not left:
            yield text
            return
        for sign in "+-":
            for operand in range(1, 10):
                result = apply(value, sign, operand)
                if 0 <= result <= LARGEST:
                    yield from extend(f"{text}{sign}{operand}", result, left - 1)

    for first in range(1, 10):
        yield from extend(str(first), first, operations)


def _draw(rng: random.Random, operations: int) -> str:
    """Draw evenly from all problems: draw any chain, and again if a partial result leaves the range."""
    while True:
        value = rng.randint(1, 9)
        text = str(value)
        for _ in range(operations):
            sign, operand = rng.choice("+-"), rng.randint(1, 9)
            value = apply(value, sign, operand)
            if not 0 <= value <= LARGEST:
                break
            text += f"{sign}{operand}"
        else:
            return text


__all__ = ["LARGEST", "SOURCE", "Arithmetic", "check_steps", "problems", "solution"]
