"""Consistency of a judge over repeats and over orders of the candidates. No torch.

Shape suffixes: K verdicts on the same group, N candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

SLACK = 1e-6
"""Share of the largest score by which equal verdicts may differ: a model in float32 does not round alike twice."""


def position_effects(
    scores: Sequence[ArrayLike], places: Sequence[ArrayLike]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    r"""Return how much each position adds to a score, and how many scores stood there.

    Least squares for $s_{gkn} = a_{gn} + b_{p(g,k,n)} + \text{noise}$: every candidate of every group has a level of
    its own, so that good candidates that happen to stand first do not count as a liking for the first place. Where
    every candidate stands in every position once, $b_p$ is the mean score at p minus the mean of all.

    `scores` are, per group, [K, N], candidate n in verdict k, and `places` the position from 0 at which it stood; K and
    N may differ between groups. Returns [P] effects, whose mean over all scores is 0, and [P] counts.
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
    """Return the chance that two of the K verdicts, drawn at random, name another best candidate or tie others for it.

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

    The first is the chance that two of the K verdicts, drawn at random, are equal, but for a rounding error of `SLACK`
    times the largest score; the second is the standard deviation (with K - 1) of a candidate's scores. Both are means
    over the candidates; NaN with fewer than two verdicts.
    """
    scores = _matrix(scores_KN)
    k, n = scores.shape
    if k < 2 or not n:
        return math.nan, math.nan
    apart_KKN = np.abs(scores[:, None, :] - scores[None, :, :])
    near = (apart_KKN <= SLACK * np.abs(scores).max()).sum((0, 1)) - k  # a verdict is near itself
    return float(np.mean(near) / (k * (k - 1))), float(scores.std(0, ddof=1).mean())


def _matrix(scores_KN: ArrayLike) -> NDArray[np.float64]:
    scores = np.asarray(scores_KN, dtype=np.float64)
    if scores.ndim != 2 or not np.isfinite(scores).all():
        raise ValueError(f"scores of shape {scores.shape} must be finite and [verdicts, candidates]")
    return scores
