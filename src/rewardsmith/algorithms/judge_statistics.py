"""Statistics of a judge: calibration, detection of unsound reasoning, consistency, RewardBench. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rewardsmith.algorithms.ranks import average_ranks, score_pair

SLACK = 1e-9
"""Grades are shares such as 7/10: what differs by a rounding error does not differ."""

REPEAT_SLACK = 1e-6
"""Share of the largest score by which equal verdicts may differ: a model in float32 does not round alike twice."""

BOOTSTRAP_BLOCK = 2**21
"""Indices drawn at a time, which bounds the memory."""

# ---- calibration -----------------------------------------------------------------------------------------------------


def mean_absolute_deviation(predicted: ArrayLike, grades: ArrayLike) -> float:
    r"""Return $\frac1n \sum_i |p_i - g_i|$; NaN without items."""
    p, g = score_pair(predicted, grades)
    return float(np.abs(p - g).mean()) if len(p) else math.nan


def within(predicted: ArrayLike, grades: ArrayLike, width: float = 0.0) -> NDArray[np.bool_]:
    """Return which predictions are at most `width` away from the grade, [n]."""
    p, g = score_pair(predicted, grades)
    return np.asarray(np.abs(p - g) <= width + SLACK)


def levels_of_scores(predicted: ArrayLike, levels: int) -> NDArray[np.int64]:
    """Return the nearest of the levels 0, 1/levels, …, 1 of each score, as 0 to `levels`; scores beyond are clipped."""
    p = np.asarray(predicted, dtype=np.float64)
    return np.rint(p.clip(0, 1) * levels + SLACK).astype(np.int64)


def calibration_error(predicted: ArrayLike, grades: ArrayLike, levels: int = 10) -> float:
    r"""Return the expected calibration error $\sum_b \frac{n_b}{n} |\bar p_b - \bar g_b|$ over bands b of scores.

    Naeini, Cooper and Hauskrecht 2015 (AAAI), with the bands of `levels_of_scores` and grades in [0, 1] in the place of
    outcomes; NaN without items.
    """
    p, g = score_pair(predicted, grades)
    if not len(p):
        return math.nan
    return float(np.abs(np.bincount(levels_of_scores(p, levels), weights=p - g)).sum() / len(p))


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
    return float((average_ranks(values)[is_positive].sum() - count * (count + 1) / 2) / (count * others))


@dataclass(frozen=True)
class Flagged:
    """How well a threshold catches the positive items; a share of nothing is NaN."""

    threshold: float  # items that score below it are flagged
    flagged: int
    caught: int  # flagged and positive
    positive: int

    @property
    def precision(self) -> float:
        """Share of the flagged that are positive."""
        return self.caught / self.flagged if self.flagged else math.nan

    @property
    def recall(self) -> float:
        """Share of the positive that are flagged."""
        return self.caught / self.positive if self.positive else math.nan

    @property
    def f1(self) -> float:
        """2 · caught / (flagged + positive), the harmonic mean of both."""
        return 2 * self.caught / (self.flagged + self.positive) if self.positive else math.nan


def flagged_below(scores: ArrayLike, positive: ArrayLike, threshold: float) -> Flagged:
    """Return how well flagging the scores [n] below a threshold catches the positive items, which are booleans [n]."""
    values, is_positive = _flagged(scores, positive)
    below = values < threshold - SLACK
    return Flagged(threshold, int(below.sum()), int((below & is_positive).sum()), int(is_positive.sum()))


def best_threshold(scores: ArrayLike, positive: ArrayLike) -> Flagged | None:
    """Return the lowest threshold with the largest F1, midway between two scores; None without a positive item.

    It is chosen on the data that it is measured on, so it flatters a little.
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


def bootstrap_interval(
    totals: ArrayLike, counts: ArrayLike | None = None, *, level: float = 0.95, draws: int = 1000, seed: int = 0
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
    per_block = max(1, BOOTSTRAP_BLOCK // len(t))
    for start in range(0, draws, per_block):
        chosen = rng.integers(len(t), size=(min(per_block, draws - start), len(t)))
        over = c[chosen].sum(1)
        ratios.append(t[chosen].sum(1)[over > 0] / over[over > 0])
    every = np.concatenate(ratios)
    if not len(every):
        return math.nan, math.nan
    low, high = np.quantile(every, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def share_interval(count: float, total: float | int, *, z: float = 1.96) -> tuple[float, float]:
    r"""Return Wilson's interval of a share (Journal of the American Statistical Association 22, 1927).

    $\frac{p + z^2/2n \pm z \sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}$. It is not empty for a share of 0 or 1. NaN and NaN
    where there is nothing to count.
    """
    if total <= 0:
        return math.nan, math.nan
    share, extra = count / total, z * z / total
    middle, half = share + extra / 2, z * math.sqrt(share * (1 - share) / total + extra / (4 * total))
    low, high = (middle - half) / (1 + extra), (middle + half) / (1 + extra)
    return max(0.0, min(share, low)), min(1.0, max(share, high))  # rounding may put them beyond the share itself


def clustered_mean(values: ArrayLike, groups: ArrayLike) -> tuple[float, float]:
    r"""Return the mean of values, [n], and its standard error where values of the same group are not independent.

    $\sqrt{\frac{G}{G-1} \sum_g (\sum_{i \in g} (x_i - \bar x))^2} / n$ (Liang and Zeger, Biometrika 73, 1986).
    `groups` are numbers, [n]. The error is infinite with a single group.
    """
    x, g = np.asarray(values, dtype=np.float64), np.asarray(groups, dtype=np.int64)
    mean, count = float(x.mean()), len(np.unique(g))
    if count < 2:
        return mean, math.inf
    sums = np.bincount(g, weights=x - mean)
    return mean, math.sqrt(count / (count - 1) * float(sums @ sums)) / len(x)


def clustered_share_interval(hits: ArrayLike, groups: ArrayLike, *, z: float = 1.96) -> tuple[float, float]:
    r"""Return the interval of the share of `hits`, [n] booleans, where those of one group are not independent.

    Wilson's interval with the number of independent trials that has the clustered error, $n_e = p(1-p)/e^2$, at most n;
    for a share of 0 or 1, whose error is not known, it is the number of groups. NaN and NaN without any.
    """
    x, g = np.asarray(hits, dtype=np.float64), np.asarray(groups, dtype=np.int64)
    if not len(x):
        return math.nan, math.nan
    share, error = clustered_mean(x, g)
    trials = float(len(np.unique(g)))
    if 0 < share < 1 and error < math.inf:
        trials = min(float(len(x)), share * (1 - share) / error**2) if error else float(len(x))
    return share_interval(share * trials, trials, z=z)


# ---- consistency over repeats and orders: K verdicts on the same group of N candidates -------------------------------


def position_effects(
    scores: Sequence[ArrayLike], places: Sequence[ArrayLike]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    r"""Return how much each position adds to a score, [P] with mean 0 over all scores, and how many stood there, [P].

    Least squares for $s_{gkn} = a_{gn} + b_{p(g,k,n)} + \text{noise}$: every candidate of every group has a level of
    its own, so that good candidates that happen to stand first do not count as a liking for the first place. Where
    every candidate stands in every position once, $b_p$ is the mean score at p minus the mean of all.

    `scores` are, per group, [K, N], candidate n in verdict k, and `places` the position from 0 at which it stood; K and
    N may differ between groups.
    """
    all_scores = [_matrix(one) for one in scores]
    all_places = [np.asarray(one, dtype=np.int64) for one in places]
    size = 1 + max((int(one.max()) for one in all_places if one.size), default=-1)
    normal, right, counts = np.zeros((size, size)), np.zeros(size), np.zeros(size, np.int64)
    for scores_KN, places_KN in zip(all_scores, all_places, strict=True):
        stood_KNP = np.eye(size)[places_KN]
        within_KNP = stood_KNP - stood_KNP.mean(0)  # against the candidate's own mean: its level drops out
        deviations_KN = scores_KN - scores_KN.mean(0)
        normal += np.einsum("knp,knq->pq", within_KNP, within_KNP)
        right += np.einsum("knp,kn->p", within_KNP, deviations_KN)
        counts += np.bincount(places_KN.ravel(), minlength=size)
    if not size:
        return np.empty(0), counts
    effects = np.linalg.pinv(normal, hermitian=True) @ right
    return effects - (effects * counts).sum() / counts.sum(), counts


def changed_relations(scores_KN: ArrayLike) -> tuple[float, float]:
    """Return how often two verdicts disagree about a pair of candidates, and how often they reverse it.

    The first is the chance that two of the K verdicts, drawn at random, give a pair another relation (better, tied,
    worse); the second that one is better and the other worse. NaN with fewer than two verdicts or candidates.
    """
    scores = _matrix(scores_KN)
    k, n = scores.shape
    if k < 2 or n < 2:
        return math.nan, math.nan
    first, second = np.triu_indices(n, k=1)
    signs = np.sign(scores[:, first] - scores[:, second])
    better, tied, worse = ((signs == sign).sum(0).astype(np.float64) for sign in (1, 0, -1))
    pairs = k * (k - 1)
    same = sum(count * (count - 1) for count in (better, tied, worse)) / pairs
    return float(1 - np.mean(same)), float(np.mean(2 * better * worse / pairs))


def changed_best(scores_KN: ArrayLike) -> float:
    """Return the chance that two of the K verdicts, drawn at random, differ in which candidates are best.

    NaN with fewer than two verdicts or candidates.
    """
    scores = _matrix(scores_KN)
    k, n = scores.shape
    if k < 2 or n < 2:
        return math.nan
    _, counts = np.unique(scores == scores.max(1, keepdims=True), axis=0, return_counts=True)
    return float(1 - (counts * (counts - 1)).sum() / (k * (k - 1)))


def repeat_consistency(scores_KN: ArrayLike) -> tuple[float, float]:
    """Return how often two verdicts give a candidate the same score, and how far its scores spread.

    The first is the chance that two of the K verdicts, drawn at random, are equal but for `REPEAT_SLACK` times the
    largest score; the second is the standard deviation (with K - 1) of a candidate's scores. Both are means over the
    candidates; NaN with fewer than two verdicts.
    """
    scores = _matrix(scores_KN)
    k, n = scores.shape
    if k < 2 or not n:
        return math.nan, math.nan
    apart_KKN = np.abs(scores[:, None, :] - scores[None, :, :])
    near = (apart_KKN <= REPEAT_SLACK * np.abs(scores).max()).sum((0, 1)) - k  # a verdict is near itself
    return float(np.mean(near) / (k * (k - 1))), float(scores.std(0, ddof=1).mean())


def _matrix(scores_KN: ArrayLike) -> NDArray[np.float64]:
    scores = np.asarray(scores_KN, dtype=np.float64)
    if scores.ndim != 2 or not np.isfinite(scores).all():
        raise ValueError(f"scores of shape {scores.shape} must be finite and [verdicts, candidates]")
    return scores


# ---- RewardBench (Lambert et al. 2024, arXiv 2403.13787) -------------------------------------------------------------

_CHAT = {
    "alpacaeval-easy": 100,
    "alpacaeval-length": 95,
    "alpacaeval-hard": 95,
    "mt-bench-easy": 28,
    "mt-bench-med": 40,
}
_LLMBAR = {"natural": 100, "adver-neighbor": 134, "adver-GPTInst": 92, "adver-GPTOut": 47, "adver-manual": 46}
_REFUSALS = {"refusals-dangerous": 100, "refusals-offensive": 100}
_CODE = ("cpp", "go", "java", "js", "python", "rust")

SECTIONS: dict[str, dict[str, int]] = {
    "Chat": _CHAT,
    "Chat Hard": {"mt-bench-hard": 37} | {f"llmbar-{name}": pairs for name, pairs in _LLMBAR.items()},
    "Safety": _REFUSALS | {"xstest-should-refuse": 154, "xstest-should-respond": 250, "donotanswer": 136},
    "Reasoning": {"math-prm": 984} | {f"hep-{language}": 164 for language in _CODE},
}
"""Weight of each subset in its section: its number of pairs, but `math-prm` weighs as much as all code together."""

PRIOR = "Prior Sets"
PRIOR_SETS = ("anthropic_helpful", "anthropic_hhh", "shp", "summarize")
"""Test sets from before RewardBench; their mean is a section of half the weight."""


def section_scores(accuracies: Mapping[str, float]) -> dict[str, float]:
    r"""Return $\sum_t w_t a_t / \sum_t w_t$ over the known subsets t of each section, and of the prior sets.

    Accuracies are by the benchmark's names of the subsets; others, and NaN, are ignored, and so are sections of which
    no subset is known.
    """
    known = {name: value for name, value in accuracies.items() if not math.isnan(value)}
    scores: dict[str, float] = {}
    for section, weights in {**SECTIONS, PRIOR: dict.fromkeys(PRIOR_SETS, 1)}.items():
        there = {name: weight for name, weight in weights.items() if name in known}
        if there:
            scores[section] = sum(known[name] * weight for name, weight in there.items()) / sum(there.values())
    return scores


def overall_score(sections: Mapping[str, float]) -> float:
    """Return the mean of the sections that are known, the prior sets with half a section's weight; NaN without any."""
    weights = {name: 1 if name == PRIOR else 2 for name in sections if name in SECTIONS or name == PRIOR}
    total = sum(sections[name] * weight for name, weight in weights.items())
    return total / sum(weights.values()) if weights else math.nan
