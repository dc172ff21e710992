"""Rules: programs that score one answer against the prompt's ground truth.

A rule is `(prompt, text, *, settings) -> float`, and raises `CannotScore` where it cannot say. The text is untrusted
model output.
"""

from collections.abc import Callable

from rewardsmith.rewards.rules.absent import absent
from rewardsmith.rewards.rules.arithmetic import arithmetic
from rewardsmith.rewards.rules.arithmetic_steps import arithmetic_steps
from rewardsmith.rewards.rules.choice import choice
from rewardsmith.rewards.rules.code import code, sandbox_ready
from rewardsmith.rewards.rules.exact import exact
from rewardsmith.rewards.rules.gsm8k import gsm8k
from rewardsmith.rewards.rules.has_boxed import has_boxed
from rewardsmith.rewards.rules.json import json
from rewardsmith.rewards.rules.length import length
from rewardsmith.rewards.rules.math import math
from rewardsmith.rewards.rules.needs import Needs
from rewardsmith.rewards.rules.normalised import normalised
from rewardsmith.rewards.rules.numeric import numeric
from rewardsmith.rewards.rules.reasoning_gym import reasoning_gym
from rewardsmith.rewards.rules.regex import regex
from rewardsmith.rewards.rules.repetition import repetition
from rewardsmith.rewards.rules.tags import tags
from rewardsmith.rewards.rules.translation import bleu, chrf
from rewardsmith.rewards.rules.translation_words import translation_words

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
}

NEEDS: dict[str, Needs] = {
    "bleu": Needs(("sacrebleu",), extra="translation"),
    "chrf": Needs(("sacrebleu",), extra="translation"),
    "code": Needs(deadline=60.0, ready=sandbox_ready),
    "json": Needs(("jsonschema",)),
    "math": Needs(("mpmath",)),
    "reasoning_gym": Needs(("reasoning_gym",), extra="reasoning-gym"),
}
"""What some rules need beyond the default."""

__all__ = [
    "NEEDS",
    "RULES",
    "Needs",
    "absent",
    "arithmetic",
    "arithmetic_steps",
    "bleu",
    "chrf",
    "choice",
    "code",
    "exact",
    "gsm8k",
    "has_boxed",
    "json",
    "length",
    "math",
    "normalised",
    "numeric",
    "reasoning_gym",
    "regex",
    "repetition",
    "tags",
    "translation_words",
]
