"""Strengths of candidates from pairs (Bradley-Terry) or from panels that do not share a yardstick. No torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_NEWTON_STEPS = 100

SMALLEST_PRIOR = 1e-9
"""As a share of the comparisons of a pair: below this the prior is lost in rounding."""

Vector = NDArray[np.float64]


def bradley_terry(wins_NN: ArrayLike, *, prior: float = 0.1) -> Vector:
    r"""Return the log-strengths of N players, whose differences are the log-odds that one beats another.

    $$\hat\theta = \arg\max_\theta \sum_{i \ne j} w_{ij} \log \sigma(\theta_i - \theta_j)
      - \frac{\lambda}{2} \sum_i \theta_i^2$$

    Bradley and Terry 1952, Biometrika 39, with a normal prior of variance 1 / λ on each log-strength. Without it
    a player that was never beaten would be infinitely strong (Ford 1957). The prior also centres them: they sum to 0.
    The function is strictly concave, so that Newton's method with halved steps finds its one maximum.

    `wins_NN` counts how often the player of the row beat that of the column; a tie is one half for both, and the
    diagonal is ignored. λ must be at least 1e-9 of the comparisons of a pair. Players without a comparison have 0.
    """
    wins = np.array(wins_NN, dtype=np.float64)
    np.fill_diagonal(wins, 0.0)
    games, theta = wins + wins.T, np.zeros(len(wins))
    if not SMALLEST_PRIOR * games.max(initial=0.0) <= prior < np.inf or prior <= 0:
        raise ValueError(f"prior is {prior:g}: it must be positive, and not be lost in the rounding of the counts")
    # The gradient is a sum of counts: what is left of it after rounding grows with them.
    enough = 1e-12 * (1.0 + games.sum())
    for _ in range(MAX_NEWTON_STEPS):
        chance = chances(theta[:, None] - theta[None, :])
        gradient = (wins - games * chance).sum(axis=1) - prior * theta
        if float(np.abs(gradient).max(initial=0.0)) <= enough:
            break
        spread = games * chance * (1 - chance)
        hessian = np.diag(spread.sum(axis=1) + prior) - spread
        theta = _better(wins, prior, theta, np.linalg.solve(hessian, gradient))
    return theta - theta.mean() if len(theta) else theta


def chances(log_odds: ArrayLike) -> Vector:
    """Return σ(x) = 1 / (1 + exp(-x)) without overflow."""
    return np.asarray((1 + np.tanh(np.asarray(log_odds, dtype=np.float64) / 2)) / 2)


def _better(wins: Vector, prior: float, theta: Vector, step: Vector) -> Vector:
    """Return `theta` after a step, halved until it is no worse than before."""

    def objective(theta: Vector) -> float:
        likelihood = -np.logaddexp(0.0, theta[None, :] - theta[:, None])
        return float((wins * likelihood).sum() - prior / 2 * (theta * theta).sum())

    before = objective(theta)
    for halvings in range(60):
        after = theta + step * 0.5**halvings
        if objective(after) >= before:
            return after
    return theta


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


def without_offsets(scores_PN: ArrayLike) -> Vector:
    r"""Return the scores of N items, from panels that each saw some of them and each have a level of their own.

    $$y_{pi} = \theta_i + b_p + \varepsilon_{pi}, \qquad
      \hat\theta, \hat b = \arg\min \sum_{p,\, i \in p} (y_{pi} - \theta_i - b_p)^2
      \quad\text{with}\quad \sum_p |p|\, b_p = 0$$

    A judge who sees strong candidates together grades them lower than one who sees them among weak ones: b is that
    level, and candidates that two panels share determine it. This is the additive two-way layout of analysis of
    variance. Where every panel saw every item, the result is the mean over panels. The condition keeps the mean of all
    scores. `scores_PN` is NaN where a panel did not see an item. All items must have been seen, and be connected.
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
