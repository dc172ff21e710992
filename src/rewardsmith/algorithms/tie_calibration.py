"""Accuracy over pairs when a judge that never ties is compared with truth that does. Numpy only, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .ranks import score_pair


def tie_calibrated_agreement(references: Sequence[ArrayLike], predictions: Sequence[ArrayLike]) -> tuple[float, float]:
    r"""Return the pairwise accuracy with the best tie width, and that width.

    Deutsch, Foster and Freitag 2023 (Ties Matter, arXiv 2305.14324): scores that differ by at most $\epsilon$ count as
    tied, a pair is right when the relation (better, tied, worse) is that of the reference, accuracy is the mean over
    groups of the share of right pairs, and one $\epsilon$ for all groups is chosen to maximise it. It is chosen on the
    data that it is measured on, so it flatters a little. With $\epsilon = 0$ it is `pairwise_agreement`.

    Args:
        references: per group [n] true scores.
        predictions: per group [n] scores to judge.

    Returns:
        The accuracy in [0, 1] and the smallest $\epsilon \ge 0$ that reaches it; NaN and 0 when there is no pair.
    """
    parts = [_pairs(true, guess) for true, guess in zip(references, predictions, strict=True)]
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return math.nan, 0.0
    widths, untied, tied, weights = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    weights = weights / len(parts)
    # A pair is worth `untied` while its width is above ε and `tied` from there on: the sum changes at widths only.
    start = float((weights * np.where(widths > 0, untied, tied)).sum())
    order = np.argsort(widths, kind="stable")
    changes = (weights * (tied - untied))[order][widths[order] > 0]
    steps = widths[order][widths[order] > 0]
    last = np.flatnonzero(np.append(np.diff(steps) > 0, True)) if len(steps) else np.empty(0, np.int64)
    reached = start + np.cumsum(changes)[last] if len(steps) else np.empty(0)
    best = int(np.argmax(reached)) if len(reached) else -1
    if best < 0 or reached[best] <= start + 1e-12:  # rounding errors must not choose a width
        return start, 0.0
    best = int(np.flatnonzero(reached >= reached[best] - 1e-12)[0])
    return float(reached[best]), float(steps[last][best])


def _pairs(
    reference: ArrayLike, prediction: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return of each pair how far apart the prediction is, what it earns untied and tied, and its weight."""
    true, guess = score_pair(reference, prediction)
    first, second = np.triu_indices(len(true), k=1)
    sign, apart = np.sign(true[first] - true[second]), guess[first] - guess[second]
    right = (np.sign(apart) == sign).astype(np.float64)
    return np.abs(apart), right, (sign == 0).astype(np.float64), np.full(len(first), 1 / max(1, len(first)))
