"""The rule of both sides of `benchmarks/scale.py`; workers of rules need neither ray nor verl to import it."""

from rewardsmith.types import Prompt


def digits(text: str) -> float:
    """Return the share of digits: a score that differs between answers of a model that knows nothing."""
    return sum(c.isdigit() for c in text) / max(1, len(text))


def digits_of(prompt: Prompt, text: str) -> float:
    """Score an answer, as our rules are called."""
    return digits(text)
