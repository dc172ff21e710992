"""Plain equality."""

from __future__ import annotations

from rewardsmith.rewards.rules.truth import truths
from rewardsmith.types import Prompt


def exact(prompt: Prompt, text: str) -> float:
    """1 when the text, without surrounding white space, is the answer or one of the answers, else 0."""
    return float(text.strip() in truths(prompt))
