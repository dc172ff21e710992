"""Scores from several panels that do not share a yardstick. No torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def connected(seen_PN: ArrayLike) -> NDArray[np.int64]:
    """Return int64 [N]: items with the same number can be compared, directly or through others.

    `seen_PN` is which of the N items each of the P panels has seen. An item that no panel has seen has -1. The number
    of a set is the index of its first item.
    """
    seen = np.asarray(seen_PN, dtype=bool)
    labels = np.where(seen.any(axis=0), np.arange(seen.shape[1]), -1)
    changed = True
    while changed:
        before = labels.copy()
        for panel in seen:
            if panel.any():
                labels[panel] = labels[panel].min()
        changed = not np.array_equal(before, labels)
    return labels.astype(np.int64)


def largest(labels_N: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the items of the largest connected set, the first of several as large; none when no item was seen."""
    sets, counts = np.unique(labels_N[labels_N >= 0], return_counts=True)
    if not len(sets):
        return np.zeros(len(labels_N), dtype=np.bool_)
    return np.asarray(labels_N == sets[np.argmax(counts)], dtype=np.bool_)


def without_offsets(scores_PN: ArrayLike) -> NDArray[np.float64]:
    r"""Return the scores of N items, from panels that each saw some of them and each have a level of their own.

    $$y_{pi} = \theta_i + b_p + \varepsilon_{pi}, \qquad
      \hat\theta, \hat b = \arg\min \sum_{p,\, i \in p} (y_{pi} - \theta_i - b_p)^2
      \quad\text{with}\quad \sum_p |p|\, b_p = 0$$

    A judge who sees strong candidates together grades them lower than one who sees them among weak ones: b is that
    level, and candidates that two panels share tell it. This is the additive two-way layout of analysis of variance.
    Where every panel saw every item, the result is the mean over panels. The condition keeps the mean of all scores.
    `scores_PN` is NaN where a panel did not see an item. All items must have been seen, and be connected.
    """
    scores = np.asarray(scores_PN, dtype=np.float64)
    panels, items = np.nonzero(~np.isnan(scores))
    labels = connected(~np.isnan(scores))
    if labels.size and (labels != 0).any():
        raise ValueError("the panels do not connect all items: scores of separate sets have no common level")
    count, width = scores.shape
    design = np.zeros((len(items), width + count))
    design[np.arange(len(items)), items] = 1.0
    design[np.arange(len(items)), width + panels] = 1.0
    # The level that may be moved between items and panels is settled below: lstsq picks any of the solutions.
    solution = np.linalg.lstsq(design, scores[panels, items], rcond=None)[0]
    sizes = np.bincount(panels, minlength=count)
    return np.asarray(solution[:width] + (sizes @ solution[width:]) / max(1, len(items)), dtype=np.float64)
