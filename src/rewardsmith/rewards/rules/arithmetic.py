"""The answer of the arithmetic world."""

from __future__ import annotations

from rewardsmith.types import Prompt


def arithmetic(prompt: Prompt, text: str) -> float:
    """1 when the text after the only `#` is the answer, else 0."""
    _, mark, after = text.partition("#")
    return float(bool(mark) and after.strip() == str(prompt.answer))
