"""Statistics of orderings, for judging reward models and policies. Numpy only, no torch."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

TiePolicy = Literal["strict", "half", "ignore"]


def pairwise_agreement(reference: ArrayLike, prediction: ArrayLike, *, ties: TiePolicy = "strict") -> float:
    """Return the share of the n(n-1)/2 pairs that both score lists order alike.

    Args:
        reference: [n] true scores.
        prediction: [n] scores to judge.
        ties: "strict": a tie agrees only with a tie (group_ranking's accuracy). "half": a tie on one side only earns
            one half. "ignore": pairs that are tied in the reference are left out; a predicted tie is wrong.

    Returns:
        A number in [0, 1]; NaN when there is no pair to judge (n < 2, or all tied under "ignore").
    """
    true, guess = _pair(reference, prediction)
    upper = np.triu_indices(len(true), k=1)
    true_sign = np.sign(true[:, None] - true[None, :])[upper]
    guess_sign = np.sign(guess[:, None] - guess[None, :])[upper]
    credit = (true_sign == guess_sign).astype(float)
    if ties == "half":
        credit[(true_sign == 0) != (guess_sign == 0)] = 0.5
    elif ties == "ignore":
        credit = credit[true_sign != 0]
    elif ties != "strict":
        raise ValueError(f"ties is {ties!r}: it must be one of strict, half, ignore")
    return float(credit.mean()) if credit.size else math.nan


def kendall_tau_b(x: ArrayLike, y: ArrayLike) -> float:
    """Return Kendall's τ_b = (C - D) / sqrt((P - T_x)(P - T_y)), in [-1, 1]; NaN when one side is all tied.

    C and D count concordant and discordant pairs, P all pairs, T the tied ones (Kendall 1945).
    """
    first, second = _pair(x, y)
    upper = np.triu_indices(len(first), k=1)
    first_sign = np.sign(first[:, None] - first[None, :])[upper]
    second_sign = np.sign(second[:, None] - second[None, :])[upper]
    untied = math.sqrt(float(np.count_nonzero(first_sign)) * float(np.count_nonzero(second_sign)))
    return float((first_sign * second_sign).sum()) / untied if untied else math.nan


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Return Spearman's ρ, the correlation of the (average) ranks; NaN when one side is all tied."""
    first, second = _pair(x, y)
    if len(first) < 2:
        return math.nan
    a, b = average_ranks(first), average_ranks(second)
    a, b = a - a.mean(), b - b.mean()
    spread = math.sqrt(float((a * a).sum()) * float((b * b).sum()))
    return max(-1.0, min(1.0, float((a * b).sum()) / spread)) if spread else math.nan


def average_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Return the rank of each value, 1 for the smallest; equal values share the mean of their ranks."""
    vector = _vector("values", values)
    _, inverse, counts = np.unique(vector, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse].astype(np.float64)


def top1(reference: ArrayLike, prediction: ArrayLike) -> float:
    """Return the chance that a best-predicted item is truly best; ties of the prediction are broken at random."""
    true, guess = _pair(reference, prediction)
    if not len(true):
        return math.nan
    return float((true == true.max())[guess == guess.max()].mean())


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of pass@k from n samples of which `correct` are right: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021 (Codex), arXiv 2107.03374, eq. 1, as a product that neither overflows nor cancels.
    """
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"n {n}, correct {correct}, k {k}: needs 0 <= correct <= n and 1 <= k <= n")
    if n - correct < k:
        return 1.0
    return 0.0 - math.expm1(sum(math.log1p(-k / i) for i in range(n - correct + 1, n + 1)))


def _vector(name: str, values: ArrayLike) -> NDArray[np.float64]:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1:
        raise ValueError(f"{name} has shape {vector.shape}: it must have one dimension")
    if not np.isfinite(vector).all():
        raise ValueError(f"{name} holds a value that is not finite: leave out what could not be scored")
    return vector


def _pair(x: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    first, second = _vector("the first list", x), _vector("the second list", y)
    if len(first) != len(second):
        raise ValueError(f"the lists have {len(first)} and {len(second)} values: one score per item in both")
    return first, second
