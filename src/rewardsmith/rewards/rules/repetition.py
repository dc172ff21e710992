"""Answers that repeat themselves."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rewardsmith.rewards.rules.settings import Bad, Good
from rewardsmith.types import Prompt

TAIL = 1_000_000
"""Characters at the end of a text that are searched: loops go on to the end, and memory has a bound."""

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_CHECKED = 10_000


def repetition(
    prompt: Prompt,
    text: str,
    *,
    characters: Annotated[
        int, Field(ge=0, description="a passage of this length must not occur twice; 0 for any")
    ] = 300,
    words: Annotated[int, Field(ge=1, description="length of the word sequences whose repetitions are counted")] = 8,
    share: Annotated[float, Field(ge=0, le=1, description="largest share of repeated sequences; 1 for any")] = 1.0,
    good: Good = 1.0,
    bad: Bad = 0.0,
) -> float:
    """`bad` when a long passage occurs twice, or too many word sequences do, else `good`.

    Occurrences may overlap, so a short loop that runs on counts as well. Only the last million characters are searched.
    """
    text = text[-TAIL:]
    if characters and has_repeated(text, characters):
        return bad
    return bad if share < 1 and repeated_share(text, words) > share else good


def has_repeated(text: str, length: int) -> bool:
    """Say whether some passage of `length` characters occurs twice in a text of n characters, in O(n log n)."""
    count = len(text) - length + 1
    if count < 2:
        return False
    hashes = _window_hashes(text, length)
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    # Equal hashes are looked at, so a collision is never taken for a repetition.
    pairs = zip(order[same[:_CHECKED]].tolist(), order[same[:_CHECKED] + 1].tolist(), strict=True)
    return any(text[i : i + length] == text[j : j + length] for i, j in pairs)


def repeated_share(text: str, length: int) -> float:
    """Return the share of the sequences of `length` words that occurred before in the text."""
    parts = text.split()
    count = len(parts) - length + 1
    if count < 2:
        return 0.0
    seen = {hash(sequence) for sequence in zip(*(parts[i:] for i in range(length)), strict=False)}
    return 1 - len(seen) / count


def _window_hashes(text: str, length: int) -> NDArray[np.uint64]:
    """Return the hash of each window: Σ c_j B^j over the window, divided by B^start, all modulo 2^64."""
    # A lone surrogate cannot occur in a rollout; it must not stop a direct caller either.
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum((codes + np.uint64(1)) * _powers(_BASE, len(codes)))])
    inverse = pow(_BASE, -1, 2**64)
    windows: NDArray[np.uint64] = (sums[length:] - sums[:-length]) * _powers(inverse, len(codes) - length + 1)
    return windows


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    factors = np.full(count, base, np.uint64)
    factors[:1] = 1
    return np.cumprod(factors)
