r"""How two sets of advantages over the same rollouts differ as updates of the policy. No torch.

At the policy that sampled them, the gradient of a group is $\sum_t A_t \nabla \log \pi(y_t)$ over all tokens t of its
rollouts. The approximation here is that the gradients of different tokens are orthogonal and of equal length. Then the
advantages of the tokens are the coordinates of the update: a rollout counts with each of its tokens, and clipping,
reductions and importance weights, which both sides share, are left out. A rollout that could not be scored has no part
in the update: its coordinates are 0 in the cosine. It has no gain.

    N  rollouts of a group       T  tokens of all rollouts of a group, one rollout after the other
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def update_cosine(old_T: Vector, new_T: Vector) -> float:
    r"""Return the cosine of two updates, $\frac{\sum_t A_t A'_t}{\|A\| \, \|A'\|}$; NaN where one of them is 0."""
    old_T, new_T = scaled(old_T), scaled(new_T)
    if not (old_T.any() and new_T.any()):
        return math.nan
    return float(np.clip(np.mean(old_T * new_T), -1.0, 1.0))


def scaled(values_T: Vector) -> Vector:
    r"""Return $A_t / \sqrt{\frac{1}{T} \sum_s A_s^2}$, and zeros as they are: a common factor is no change."""
    largest = float(np.abs(values_T).max(initial=0.0))
    if not largest:
        return np.zeros_like(values_T)
    values_T = values_T / largest  # squares of very small or large numbers leave the range of floats
    return values_T / math.sqrt(float(np.mean(values_T**2)))


def rollout_means(values_T: Vector, counts_N: NDArray[np.int64]) -> Vector:
    """Return the mean over the tokens of each rollout; 0 for one without tokens."""
    rows_T = np.repeat(np.arange(len(counts_N)), counts_N)
    return np.bincount(rows_T, weights=values_T, minlength=len(counts_N)) / np.maximum(counts_N, 1)


def gains(old_T: Vector, new_T: Vector, counts_N: NDArray[np.int64], both_N: NDArray[np.bool_]) -> Vector:
    """Return by how much the mean advantage of each rollout rises; NaN for one that has no advantage on one side.

    Both sides are in units of their root mean square over the tokens of the rollouts that have an advantage on both
    (`both_N`): what could not be scored enters no unit either.
    """
    both_T = np.repeat(both_N, counts_N)
    gains_N = np.full(len(counts_N), np.nan)
    gains_N[both_N] = rollout_means(scaled(new_T[both_T]) - scaled(old_T[both_T]), counts_N[both_N])
    return gains_N


def flipped(old_N: Vector, new_N: Vector) -> NDArray[np.bool_]:
    """Return which rollouts are encouraged by one side and discouraged by the other."""
    return np.sign(old_N) * np.sign(new_N) < 0
