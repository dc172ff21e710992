"""Calibration of grades, detection of right answers with unsound reasoning, and bootstrap intervals. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .ranks import average_ranks, score_pair

SLACK = 1e-9
"""Grades are shares such as 7/10: what differs by a rounding error does not differ."""


def mean_absolute_deviation(predicted: ArrayLike, grades: ArrayLike) -> float:
    r"""Return $\frac1n \sum_i |p_i - g_i|$; NaN without items."""
    p, g = score_pair(predicted, grades)
    return float(np.abs(p - g).mean()) if len(p) else math.nan


def within(predicted: ArrayLike, grades: ArrayLike, width: float = 0.0) -> NDArray[np.bool_]:
    """Return which predictions are at most `width` away from the grade, [n]."""
    p, g = score_pair(predicted, grades)
    return np.asarray(np.abs(p - g) <= width + SLACK)


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Return the linear correlation, in [-1, 1]; NaN when one side is constant."""
    a, b = score_pair(x, y)
    if len(a) < 2 or a.min() == a.max() or b.min() == b.max():
        return math.nan
    # Scaled by the largest deviation, so that squares neither overflow nor vanish.
    a, b = (v / np.abs(v).max() for v in (a - a.mean(), b - b.mean()))
    return max(-1.0, min(1.0, float((a * b).sum() / math.sqrt(float((a * a).sum()) * float((b * b).sum())))))


def levels_of_scores(predicted: ArrayLike, levels: int) -> NDArray[np.int64]:
    """Return the nearest of the levels 0, 1/levels, …, 1 of each score, as a whole number 0 to `levels`.

    A judge that grades out of 10 gives such levels itself; scores beyond 0 and 1 belong to the outermost.
    """
    p = np.asarray(predicted, dtype=np.float64)
    return np.rint(p.clip(0, 1) * levels + SLACK).astype(np.int64)


def calibration_error(predicted: ArrayLike, grades: ArrayLike, levels: int = 10) -> float:
    r"""Return the expected calibration error $\sum_b \frac{n_b}{n} |\bar p_b - \bar g_b|$ over bands b of scores.

    Naeini, Cooper and Hauskrecht 2015 (AAAI), with the bands of `levels_of_scores` and grades in [0, 1] in the place of
    outcomes. 0 when the mean grade of each band is its mean prediction; NaN without items.
    """
    p, g = score_pair(predicted, grades)
    if not len(p):
        return math.nan
    band = levels_of_scores(p, levels)
    return float(np.abs(np.bincount(band, weights=p - g)).sum() / len(p))


def roc_auc(scores: ArrayLike, positive: ArrayLike) -> float:
    """Return the chance that a positive item scores above a negative one, a tie counting one half.

    The Mann-Whitney statistic divided by the number of such pairs (Hanley and McNeil 1982); NaN when one kind is
    missing.
    """
    values, is_positive = _flagged(scores, positive)
    count = int(is_positive.sum())
    others = len(values) - count
    if not count or not others:
        return math.nan
    ranks = average_ranks(values)
    return float((ranks[is_positive].sum() - count * (count + 1) / 2) / (count * others))


@dataclass(frozen=True)
class Flagged:
    """How well a threshold catches the positive items."""

    threshold: float  # items that score below it are flagged
    flagged: int
    caught: int  # flagged and positive
    positive: int

    @property
    def precision(self) -> float:
        """Share of the flagged that are positive; NaN when nothing is flagged."""
        return self.caught / self.flagged if self.flagged else math.nan

    @property
    def recall(self) -> float:
        """Share of the positive that are flagged; NaN when there is none."""
        return self.caught / self.positive if self.positive else math.nan

    @property
    def f1(self) -> float:
        """2 · caught / (flagged + positive), the harmonic mean of both; NaN when there is no positive item."""
        return 2 * self.caught / (self.flagged + self.positive) if self.positive else math.nan


def flagged_below(scores: ArrayLike, positive: ArrayLike, threshold: float) -> Flagged:
    """Return how well flagging the scores [n] below a threshold catches the positive items, which are booleans [n]."""
    values, is_positive = _flagged(scores, positive)
    below = values < threshold - SLACK
    return Flagged(threshold, int(below.sum()), int((below & is_positive).sum()), int(is_positive.sum()))


def best_threshold(scores: ArrayLike, positive: ArrayLike) -> Flagged | None:
    """Return the threshold with the largest F1, midway between two scores that occur; None without a positive item.

    Of several the lowest. It is chosen on the data that it is measured on, so it flatters a little.
    """
    values, is_positive = _flagged(scores, positive)
    if not is_positive.any():
        return None
    distinct, level = np.unique(values, return_inverse=True)
    flagged = np.cumsum(np.bincount(level))
    caught = np.cumsum(np.bincount(level, weights=is_positive))
    best = int(np.argmax(2 * caught / (flagged + is_positive.sum())))
    above = distinct[best + 1] if best + 1 < len(distinct) else distinct[best] + 1
    at = float((distinct[best] + above) / 2)
    return Flagged(at, int(flagged[best]), round(float(caught[best])), int(is_positive.sum()))


def false_discovery_rate(sound: ArrayLike) -> float:
    """Return FP / (FP + TP): the share of right answers, [n] booleans, that are unsound; NaN without any."""
    flags = np.asarray(sound, dtype=bool)
    return float((~flags).mean()) if flags.size else math.nan


def _flagged(scores: ArrayLike, positive: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values, flags = score_pair(scores, np.asarray(positive, dtype=bool))
    return values, flags.astype(bool)


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
    independent of each other: groups, not the rollouts within them. NaN and NaN for fewer than two items, or when every
    draw has a count of 0.
    """
    t, c = score_pair(totals, np.ones_like(totals, dtype=np.float64) if counts is None else counts)
    if len(t) < 2:
        return math.nan, math.nan
    rng, ratios = np.random.default_rng(seed), []
    per_block = max(1, BLOCK // len(t))
    for start in range(0, draws, per_block):
        chosen = rng.integers(len(t), size=(min(per_block, draws - start), len(t)))
        over = c[chosen].sum(1)
        ratios.append(t[chosen].sum(1)[over > 0] / over[over > 0])
    every = np.concatenate(ratios)
    if not len(every):
        return math.nan, math.nan
    low, high = np.quantile(every, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
