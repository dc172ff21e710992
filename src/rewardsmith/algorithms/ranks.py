"""Statistics of orderings, for judging reward models and policies. Numpy only, no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, get_args

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
    if ties not in get_args(TiePolicy):
        raise ValueError(f"ties is {ties!r}: it must be one of {', '.join(get_args(TiePolicy))}")
    credit = pairs = 0.0
    for true, guess in _pair_signs(*score_pair(reference, prediction)):
        counted = true != 0 if ties == "ignore" else np.ones_like(true, dtype=bool)
        half = ((true == 0) != (guess == 0)) & (ties == "half")
        credit += float(((true == guess) & counted).sum()) + 0.5 * float(half.sum())
        pairs += float(counted.sum())
    return credit / pairs if pairs else math.nan


def kendall_tau_b(x: ArrayLike, y: ArrayLike) -> float:
    """Return Kendall's τ_b = (C - D) / sqrt((P - T_x)(P - T_y)), in [-1, 1]; NaN when one side is all tied.

    C and D count concordant and discordant pairs, P all pairs, T the tied ones (Kendall 1945).
    """
    # Ranks, 0 for the smallest.
    first, second = (np.unique(values, return_inverse=True)[1] for values in score_pair(x, y))
    both = first * (len(second) + 1) + second  # one number per pair of ranks, in the order of x and then of y
    pairs = len(first) * (len(first) - 1) // 2
    untied_x, untied_y = pairs - _tied_pairs(first), pairs - _tied_pairs(second)
    # With x in order, and y in order among equal x, a pair is discordant where y goes down.
    discordant = _inversions(second[np.argsort(both)])
    agreement = untied_x + untied_y - pairs + _tied_pairs(both) - 2 * discordant
    return agreement / math.sqrt(untied_x * untied_y) if untied_x and untied_y else math.nan


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Return Spearman's ρ, the correlation of the (average) ranks; NaN when one side is all tied."""
    first, second = score_pair(x, y)
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
    true, guess = score_pair(reference, prediction)
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


def score_pair(x: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return two lists of scores of the same items as float64 [n]; ValueError unless they are finite and as long."""
    first, second = _vector("the first list", x), _vector("the second list", y)
    if len(first) != len(second):
        raise ValueError(f"the lists have {len(first)} and {len(second)} values: one score per item in both")
    return first, second


def _tied_pairs(ranks: NDArray[np.int64]) -> int:
    counts = np.unique(ranks, return_counts=True)[1].astype(np.int64)
    return int((counts * (counts - 1) // 2).sum())


def _inversions(ranks: NDArray[np.int64]) -> int:
    """Return how many pairs i < j have ranks_i > ranks_j: a merge sort that does all merges of one width at once."""
    places = np.arange(len(ranks))
    total, width = 0, 1
    while width < len(ranks):
        blocks = places // (2 * width)
        # Both halves of a block are in order already; of equal ranks the left one comes first.
        order = np.argsort(blocks * (len(ranks) + 1) + ranks, kind="stable")
        left = order % (2 * width) < width
        smaller = np.cumsum(left) - blocks * width  # left ones of the same block that are not larger
        total += int((width - smaller)[~left].sum())
        ranks = ranks[order]
        width *= 2
    return total


def _pair_signs(x: NDArray[np.float64], y: NDArray[np.float64]) -> Iterator[tuple[NDArray[np.int8], NDArray[np.int8]]]:
    """Yield sign(x_i - x_j) and sign(y_i - y_j) over all pairs i < j, a block of rows at a time: memory stays flat."""
    block = max(1, 2**22 // max(1, len(x)))
    columns = np.arange(len(x))
    for start in range(0, len(x), block):
        rows = np.arange(start, min(start + block, len(x)))
        later = columns[None, :] > rows[:, None]
        yield tuple(  # type: ignore[misc]
            ((v[rows, None] > v[None, :]).astype(np.int8) - (v[rows, None] < v[None, :]))[later] for v in (x, y)
        )
