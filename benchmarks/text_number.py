"""The reward of `benchmarks/plan.py`: a number that differs from answer to answer."""

from __future__ import annotations


def letters(prompt: object, text: str) -> float:
    """Return a number in 0 to 1."""
    return (sum(map(ord, text)) % 97) / 97
