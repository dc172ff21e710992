"""Whether an answer stands in a box."""

from __future__ import annotations

from rewardsmith.rewards.rules.settings import Bad, Final, Good, spoken
from rewardsmith.text.answers import boxed
from rewardsmith.types import Prompt


def has_boxed(prompt: Prompt, text: str, *, final: Final = "auto", good: Good = 1.0, bad: Bad = 0.0) -> float:
    r"""`good` when the last `\boxed{…}` is closed and not empty, else `bad`; right or wrong does not matter."""
    said = spoken(text, final)
    return good if said and boxed(said) is not None else bad
