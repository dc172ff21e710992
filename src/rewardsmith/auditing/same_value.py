r"""Whether two final answers have the same value by the equality of the math rule, and wrong answers that do not.

    same_value(r"\binom{5}{3}", r"\binom{5}{2}")   ->   True

The texts are derived from the truth of a prompt, so that the rule may run in this process. Long ones are compared as
text.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

from rewardsmith.data.distractors import distractors, may_keep_value, same_answer
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.math import math
from rewardsmith.rewards.rules.math.evaluation import as_fraction
from rewardsmith.rewards.rules.math.math_rule import beyond
from rewardsmith.rewards.rules.math.nodes import UnparsableMath
from rewardsmith.rewards.rules.math.parser import parse
from rewardsmith.rewards.rules.rule_settings import TooSlowError, processor_limit
from rewardsmith.types import Message, Prompt

MAX_CHARS = 200
"""Characters of an answer that is computed with."""

SECONDS = 0.5
"""Processor time of one comparison, where it runs in the main thread."""

MAX_DENOMINATOR = 10_000
"""Of the value of an expression that is written as a fraction."""


def same_value(text: str, truth: str) -> bool:
    """Return whether the math rule takes a final answer for the truth; False where it cannot tell."""
    if same_answer(text, truth):
        return True
    if not text.strip() or not truth.strip() or max(len(text), len(truth)) > MAX_CHARS:
        return False
    prompt = Prompt("truth", [Message("user", "?")], answer=truth)
    try:
        with processor_limit(SECONDS):
            return math(prompt, f"\\boxed{{{text}}}", final="never") == 1.0
    except (CannotScore, TooSlowError):
        return False


def same_as_any(text: str, truths: Sequence[str]) -> bool:
    """Return whether a final answer has the value of one of the truths."""
    return any(same_value(text, truth) for truth in truths)


def wrong_answers(answer: str, rng: random.Random, count: int = 4, *, accepted: Sequence[str] = ()) -> list[str]:
    r"""Return what `distractors` does, without texts that have the value of an accepted answer.

    Where another integer in an expression may keep its value they are derived from the value itself: 11 and 9 for
    `\binom{5}{2}`.
    """
    truths = [answer, *accepted]
    value = rational_value(answer) if len(answer) <= MAX_CHARS and may_keep_value(answer) else ""
    sources = [value, answer] if value else [answer]
    drawn = [text for source in sources for text in distractors(source, rng, count + 4, accepted=truths)]
    made: list[str] = []
    for text in dict.fromkeys(drawn):
        if len(made) < count and not same_as_any(text, truths):
            made.append(text)
    return made


def rational_value(answer: str) -> str:
    r"""Return the value of an expression as an integer or a fraction: 10 for `\binom{5}{2}`; "" where it has none."""
    if len(answer) > MAX_CHARS or beyond(answer):
        return ""
    try:
        with processor_limit(SECONDS):
            value = as_fraction(parse(answer))
    except (UnparsableMath, TooSlowError):
        return ""
    near = Fraction(0) if value is None else value.limit_denominator(MAX_DENOMINATOR)
    return str(near) if value is not None and same_value(str(near), answer) else ""
