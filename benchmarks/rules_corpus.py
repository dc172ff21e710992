"""Answers to mathematics problems whose verdict is known by construction, with a few hostile ones among them.

Imported by both sides of `rules.py`, so it needs nothing but the standard library.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction

REASONING = (
    "First we set up the equation from the conditions of the problem and simplify both sides. "
    "Collecting terms gives {a} + {b} = {c}, and substituting back confirms that the constraint holds. "
)


@dataclass(frozen=True)
class Answer:
    """One response.

    Attributes:
        problem: number of the problem; the answers to one problem form a group.
        gold: the reference answer, LaTeX.
        text: the response.
        right: the verdict that it deserves; None for a hostile one, which must not be called right.
    """

    problem: int
    gold: str
    text: str
    right: bool | None


HOSTILE = [
    r"9^{9^{9^9}}",
    r"10^{10^{10}}",
    r"1000000!",
    r"\binom{10^9}{5\cdot 10^8}",
    r"2^{1000000007}",
    r"\int_0^\infty \frac{\sin(x^7) e^{-x^3}}{\log(x^2+1)^5} dx",
    r"(\sqrt{2}+\sqrt{3}+\sqrt{5}+\sqrt{7}+\sqrt{11}+\sqrt{13})^{40}",
    "(" * 5_000 + "1" + ")" * 5_000,
    "7" * 1_000_000,
    "__import__('os').system('sleep 60')",
]


def corpus(problems: int, answers: int, hostile: float, seed: int) -> list[Answer]:
    """Return `answers` responses to each of `problems` problems, of which the share `hostile` is hostile."""
    rng = random.Random(seed)
    made: list[Answer] = []
    count = problems * answers
    poisoned = set(rng.sample(range(count), round(hostile * count)))
    for number in range(problems):
        gold, right, wrong = rng.choice(KINDS)(rng)
        for _ in range(answers):
            is_right = rng.random() < 0.5
            said = rng.choice(right if is_right else wrong)
            verdict: bool | None = is_right
            if len(made) in poisoned:
                said, verdict = rng.choice(HOSTILE), None
            text = REASONING.format(a=rng.randint(1, 99), b=rng.randint(1, 99), c=rng.randint(1, 198)) * rng.randint(
                2, 8
            )
            made.append(Answer(number, gold, f"{text}Therefore the answer is $\\boxed{{{said}}}$.", verdict))
    return made


def _integer(rng: random.Random) -> tuple[str, list[str], list[str]]:
    n = rng.randint(-500, 5000)
    return str(n), [str(n), f"{n:,}", f"{n}.0"], [str(n + 1), str(-n - 3), f"{n}/7"]


def _fraction(rng: random.Random) -> tuple[str, list[str], list[str]]:
    p, q = rng.randint(1, 30), rng.choice([4, 5, 8, 16, 20])
    x = Fraction(p, q)
    latex = rf"\frac{{{x.numerator}}}{{{x.denominator}}}"
    return (
        latex,
        [latex, f"{float(x)}", f"{2 * x.numerator}/{2 * x.denominator}"],
        [rf"\frac{{{p}}}{{{q + 1}}}", str(p * q)],
    )


def _radical(rng: random.Random) -> tuple[str, list[str], list[str]]:
    a, b = rng.randint(2, 9), rng.choice([2, 3, 5, 7])
    return (
        rf"{a}\sqrt{{{b}}}",
        [rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b}}}"],
        [rf"{a + 1}\sqrt{{{b}}}", rf"{a}+\sqrt{{{b}}}"],
    )


def _polynomial(rng: random.Random) -> tuple[str, list[str], list[str]]:
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    gold = f"x^2+{a + b}x+{a * b}"
    return gold, [gold, f"(x+{a})(x+{b})"], [f"x^2+{a + b}x+{a * b + 1}", f"(x+{a})(x+{b + 1})"]


def _set(rng: random.Random) -> tuple[str, list[str], list[str]]:
    a, b = sorted(rng.sample(range(-20, 20), 2))
    return rf"\{{{a},{b}\}}", [rf"\{{{a},{b}\}}", rf"\{{{b},{a}\}}"], [rf"\{{{a},{b + 1}\}}", rf"\{{{a}\}}"]


KINDS = [_integer, _integer, _fraction, _radical, _polynomial, _set]
"""Integers twice: they are the most frequent answers of common data sets."""
