"""What choosing by a score brings: the quality of the best of n. Numpy only, no torch."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .ranks import score_pair


def best_of_n(reference: ArrayLike, prediction: ArrayLike, n: int) -> float:
    r"""Return the expected true score of the best-predicted of n items that are drawn from m without replacement.

    Exact, over all C(m, n) draws: with the levels of the prediction in rising order, of which the first k hold $N_k$
    items with the mean true score $\bar r_k$ in level k,

    $$E = \sum_k \bar r_k \, \frac{C(N_k, n) - C(N_{k-1}, n)}{C(m, n)}.$$

    Ties of the prediction are broken at random. With the prediction equal to the reference it is what a perfect judge
    would reach; with n = 1 it is the mean.

    Args:
        reference: [m] true scores, higher is better.
        prediction: [m] scores to choose by.
        n: how many are drawn, 1 to m.
    """
    true, guess = score_pair(reference, prediction)
    if not 1 <= n <= len(true):
        raise ValueError(f"n is {n} of {len(true)} items: needs 1 <= n <= the number of items")
    ways, below = math.comb(len(true), n), 0
    expected = []
    for mean, upto in _levels(true, guess):
        expected.append(mean * ((math.comb(upto, n) - math.comb(below, n)) / ways))
        below = upto
    return math.fsum(expected)


def gain(reference: ArrayLike, prediction: ArrayLike, n: int) -> tuple[float, float]:
    """Return what choosing the best of n adds to the mean true score, and what a perfect judge would add."""
    true, guess = score_pair(reference, prediction)
    if len(true) and true.min() == true.max():  # no choice adds anything: not even a rounding error
        true = np.zeros_like(true)
    elif len(true):
        true = true - true.mean()
    return best_of_n(true, guess, n), best_of_n(true, true, n)


def _levels(true: NDArray[np.float64], guess: NDArray[np.float64]) -> list[tuple[float, int]]:
    """Return, for each level of the prediction from the lowest, its mean true score and how many items are up to it."""
    _, level, counts = np.unique(guess, return_inverse=True, return_counts=True)
    means = np.bincount(level, weights=true) / counts
    return list(zip(means.tolist(), np.cumsum(counts).tolist(), strict=True))
