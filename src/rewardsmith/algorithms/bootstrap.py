"""Percentile bootstrap intervals of means over groups."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from .ranks import score_pair

BLOCK = 2**21
"""Indices drawn at a time, which bounds the memory."""


def bootstrap_interval(
    totals: ArrayLike,
    counts: ArrayLike | None = None,
    *,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    r"""Return the percentile interval of $\sum_i t_i / \sum_i c_i$ when the items i are drawn with replacement.

    Efron 1979, The Annals of Statistics 7(1). With all counts 1 it is the interval of a mean. Items are what is
    independent of each other: groups, not the rollouts within them.

    Args:
        totals: [n] one number per item.
        counts: [n] what each total is a sum over; all 1 when left out.
        level: share of the draws that lie within the interval.
        draws: how many times n items are drawn.
        seed: of the draws.

    Returns:
        The lower and the upper end; NaN and NaN for fewer than two items, or when every draw has a count of 0.
    """
    t, c = score_pair(totals, np.ones_like(totals, dtype=np.float64) if counts is None else counts)
    if not 0 < level < 1 or draws < 1:
        raise ValueError(f"level is {level} and draws {draws}: needs 0 < level < 1 and at least one draw")
    if len(t) < 2:
        return math.nan, math.nan
    rng, ratios = np.random.default_rng(seed), []
    per_block = max(1, BLOCK // len(t))
    for start in range(0, draws, per_block):
        chosen = rng.integers(len(t), size=(min(per_block, draws - start), len(t)))
        over = c[chosen].sum(1)
        ratios.append(t[chosen].sum(1)[over > 0] / over[over > 0])
    found = np.concatenate(ratios)
    if not len(found):
        return math.nan, math.nan
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
