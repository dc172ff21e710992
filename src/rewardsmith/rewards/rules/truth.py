"""The ground truth of a prompt."""

from __future__ import annotations

from rewardsmith.rewards.protocol import CannotScore
from rewardsmith.types import Prompt


def truth(prompt: Prompt) -> str:
    """Return the prompt's answer as text; a prompt without one cannot be scored by comparison."""
    if prompt.answer is None:
        raise CannotScore("invalid", f"the prompt {prompt.id!r} has no answer to compare with")
    return str(prompt.answer).strip()
