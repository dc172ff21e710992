"""Statistics of orderings, for evaluating rewards and policies, and accuracy rewards of judges. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

TiePolicy = Literal["strict", "half", "ignore"]
Vector = NDArray[np.float64]


def pairwise_agreement(reference: ArrayLike, prediction: ArrayLike, *, ties: TiePolicy = "strict") -> float:
    """Return the share of the n(n-1)/2 pairs that both score lists order alike; NaN when there is no pair to judge.

    Ties: "strict": a tie agrees only with a tie (group_ranking's accuracy). "half": a tie on one side only earns one
    half. "ignore": pairs that are tied in the reference are left out; a predicted tie is wrong.
    """
    if ties not in get_args(TiePolicy):
        raise ValueError(f"ties is {ties!r}: it must be one of {', '.join(get_args(TiePolicy))}")
    x, y = score_pair(reference, prediction)
    credit = pairs = 0.0
    for i in range(len(x) - 1):  # row by row, so that memory is linear in n
        true, guess = ((v[i] > v[i + 1 :]).astype(np.int8) - (v[i] < v[i + 1 :]) for v in (x, y))
        counted = true != 0 if ties == "ignore" else np.ones(len(true), dtype=bool)
        half = ((true == 0) != (guess == 0)) & (ties == "half")
        credit += float(((true == guess) & counted).sum()) + 0.5 * float(half.sum())
        pairs += float(counted.sum())
    return credit / pairs if pairs else math.nan


def tie_calibrated_agreement(references: Sequence[ArrayLike], predictions: Sequence[ArrayLike]) -> tuple[float, float]:
    r"""Return the pairwise accuracy with the best tie width, and that width.

    Deutsch, Foster and Freitag 2023 (Ties Matter, arXiv 2305.14324): scores that differ by at most $\epsilon$ count as
    tied, a pair is right when the relation (better, tied, worse) is that of the reference, accuracy is the mean over
    groups of the share of right pairs, and one $\epsilon$ for all groups is chosen to maximise it on the same data.
    With $\epsilon = 0$ it is `pairwise_agreement`. Without any pair the result is NaN and 0.
    """
    parts = [_pair_widths(true, guess) for true, guess in zip(references, predictions, strict=True)]
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return math.nan, 0.0
    widths, untied, tied, weights = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    weights = weights / len(parts)
    # A pair earns `untied` while its width is above ε and `tied` from there on: the sum changes at widths only.
    start = float((weights * np.where(widths > 0, untied, tied)).sum())
    order = np.argsort(widths, kind="stable")
    order = order[widths[order] > 0]
    if not len(order):
        return start, 0.0
    steps = widths[order]
    last = np.flatnonzero(np.append(np.diff(steps) > 0, True))
    reached = start + np.cumsum((weights * (tied - untied))[order])[last]
    if reached.max() <= start + 1e-12:  # rounding errors must not choose a width
        return start, 0.0
    best = int(np.flatnonzero(reached >= reached.max() - 1e-12)[0])
    return float(reached[best]), float(steps[last][best])


def _pair_widths(reference: ArrayLike, prediction: ArrayLike) -> tuple[Vector, Vector, Vector, Vector]:
    """Return for each pair the width of the prediction, what it earns untied and tied, and its weight."""
    true, guess = score_pair(reference, prediction)
    first, second = np.triu_indices(len(true), k=1)
    sign, apart = np.sign(true[first] - true[second]), guess[first] - guess[second]
    right = (np.sign(apart) == sign).astype(np.float64)
    return np.abs(apart), right, (sign == 0).astype(np.float64), np.full(len(first), 1 / max(1, len(first)))


def kendall_tau_b(x: ArrayLike, y: ArrayLike) -> float:
    """Return Kendall's τ_b (Kendall 1945), in [-1, 1]; NaN when one side is all tied."""
    first, second = score_pair(x, y)
    if len(first) < 2:
        return math.nan
    from scipy.stats import kendalltau  # type: ignore[import-untyped]  # noqa: PLC0415 takes a second to import

    return float(kendalltau(first, second).statistic)


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Return Spearman's ρ, the correlation of the (average) ranks; NaN when one side is all tied."""
    return pearson(average_ranks(x), average_ranks(y))


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Return the linear correlation, in [-1, 1]; NaN when one side is constant."""
    a, b = score_pair(x, y)
    if len(a) < 2 or a.min() == a.max() or b.min() == b.max():
        return math.nan
    # Scaled by the largest deviation, so that squares neither overflow nor vanish.
    a, b = (v / np.abs(v).max() for v in (a - a.mean(), b - b.mean()))
    return max(-1.0, min(1.0, float((a * b).sum() / math.sqrt(float((a * a).sum()) * float((b * b).sum())))))


def average_ranks(values: ArrayLike) -> Vector:
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


def best_of_n(reference: ArrayLike, prediction: ArrayLike, n: int) -> float:
    r"""Return the expected true score of the best-predicted of n items that are drawn from m without replacement.

    Exact, over all C(m, n) draws: with the levels of the prediction in rising order, of which the first k hold $N_k$
    items with the mean true score $\bar r_k$ in level k,

    $$E = \sum_k \bar r_k \, \frac{C(N_k, n) - C(N_{k-1}, n)}{C(m, n)}.$$

    Ties of the prediction are broken at random. With n = 1 it is the mean.
    """
    true, guess = score_pair(reference, prediction)
    if not 1 <= n <= len(true):
        raise ValueError(f"n is {n} of {len(true)} items: needs 1 <= n <= the number of items")
    _, level, counts = np.unique(guess, return_inverse=True, return_counts=True)
    means = np.bincount(level, weights=true) / counts
    chosen = [0, *(math.comb(upto, n) for upto in np.cumsum(counts).tolist())]
    ways = math.comb(len(true), n)
    return math.fsum(mean * ((chosen[k + 1] - chosen[k]) / ways) for k, mean in enumerate(means.tolist()))


def gain(reference: ArrayLike, prediction: ArrayLike, n: int) -> tuple[float, float]:
    """Return what choosing the best of n adds to the mean true score, and what a perfect judge would add."""
    true, guess = score_pair(reference, prediction)
    if len(true) and true.min() == true.max():  # no choice adds anything: not even a rounding error
        true = np.zeros_like(true)
    elif len(true):
        true = true - true.mean()
    return best_of_n(true, guess, n), best_of_n(true, true, n)


def _vector(name: str, values: ArrayLike) -> Vector:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1:
        raise ValueError(f"{name} has shape {vector.shape}: it must have one dimension")
    if not np.isfinite(vector).all():
        raise ValueError(f"{name} holds a value that is not finite: leave out what could not be scored")
    return vector


def score_pair(x: ArrayLike, y: ArrayLike) -> tuple[Vector, Vector]:
    """Return two lists of scores of the same items as float64 [n]; ValueError unless they are finite and as long."""
    first, second = _vector("the first list", x), _vector("the second list", y)
    if len(first) != len(second):
        raise ValueError(f"the lists have {len(first)} and {len(second)} values: one score per item in both")
    return first, second


# ---- accuracy rewards of a judge that learns from a teacher's grades or group scores ---------------------------------


def closeness(error: float, *, power: float = 2.0) -> float:
    r"""Return $\max(0, 1 - |e|)^p$: 1 for no error, 0 for an error of 1 or more (RRM, arXiv 2510.07774, has p = 2).

    The bound of the base matters: without it an even power would reward an error far above 1.
    """
    return math.pow(max(0.0, 1.0 - abs(error)), power)


def credit(errors: ArrayLike | float, steps: Sequence[float]) -> Vector:
    """Return what errors earn by a table: steps[k] for an error of ±k, linear between, 0 from len(steps) on."""
    table = [*steps, 0.0]
    return np.asarray(np.interp(np.abs(errors), np.arange(len(table)), table), dtype=np.float64)


def margin_agreement(
    reference: ArrayLike, prediction: ArrayLike, steps: Sequence[float], *, ties: TiePolicy = "strict"
) -> float:
    r"""Return the mean over the pairs x, y of $f(|(r_x - r_y) - (p_x - p_y)|)$: whether distances are right.

    GRRM's margin term (arXiv 2602.14028), with `credit` as f. A constant that is added to all scores changes nothing.
    "ignore" leaves out pairs that are tied in the reference. NaN when there is no pair to judge.
    """
    true, guess = np.asarray(reference, dtype=np.float64), np.asarray(prediction, dtype=np.float64)
    first, second = np.triu_indices(len(true), k=1)
    margins = true[first] - true[second]
    earned = credit(margins - (guess[first] - guess[second]), steps)
    earned = earned[margins != 0] if ties == "ignore" else earned
    return float(earned.mean()) if len(earned) else math.nan
