"""The answer of the arithmetic world."""

from __future__ import annotations

from rewardsmith.rewards.rules.truth import truth
from rewardsmith.types import Prompt


def arithmetic(prompt: Prompt, text: str) -> float:
    """1 when the text after the only `#` is the answer, else 0."""
    _, mark, after = text.partition("#")
    return float(after.strip() == truth(prompt) and bool(mark))
