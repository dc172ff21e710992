"""Rules: programs that score one answer against the prompt's ground truth.

A rule is `(prompt, text, *, settings) -> float`, and raises `CannotScore` where the prompt is at fault. The text is
untrusted model output.
"""

from collections.abc import Callable

from rewardsmith.rewards.rules.answer_rules import (
    arithmetic,
    arithmetic_steps,
    choice,
    exact,
    gsm8k,
    normalised,
    numeric,
    translation_words,
    word_problem,
    word_problem_steps,
)
from rewardsmith.rewards.rules.code_rule import code, sandbox_ready
from rewardsmith.rewards.rules.gym_rule import reasoning_gym
from rewardsmith.rewards.rules.json_rule import json
from rewardsmith.rewards.rules.math import math
from rewardsmith.rewards.rules.rule_settings import Needs
from rewardsmith.rewards.rules.text_rules import absent, has_boxed, length, regex, repetition, tags
from rewardsmith.rewards.rules.translation_rules import bleu, chrf

RULES: dict[str, Callable[..., float]] = {
    "absent": absent,
    "arithmetic": arithmetic,
    "arithmetic_steps": arithmetic_steps,
    "bleu": bleu,
    "chrf": chrf,
    "choice": choice,
    "code": code,
    "exact": exact,
    "gsm8k": gsm8k,
    "has_boxed": has_boxed,
    "json": json,
    "length": length,
    "math": math,
    "normalised": normalised,
    "numeric": numeric,
    "reasoning_gym": reasoning_gym,
    "regex": regex,
    "repetition": repetition,
    "tags": tags,
    "translation_words": translation_words,
    "word_problem": word_problem,
    "word_problem_steps": word_problem_steps,
}

NEEDS: dict[str, Needs] = {
    "bleu": Needs(("sacrebleu",), extra="translation"),
    "chrf": Needs(("sacrebleu",), extra="translation"),
    "code": Needs(deadline=60.0, ready=sandbox_ready),
    "json": Needs(("jsonschema",)),
    "math": Needs(("mpmath",)),
    "reasoning_gym": Needs(("reasoning_gym",), extra="reasoning-gym"),
}
"""What some rules require beyond the default."""

__all__ = ["NEEDS", "RULES", "Needs"]
