"""Strengths from comparisons: the Bradley-Terry model. No torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

STEPS = 100
"""Newton steps at most; a dozen are usual."""

SMALLEST_PRIOR = 1e-9
"""As a share of the comparisons of a pair: below this the prior is lost in rounding."""


def bradley_terry(wins_NN: ArrayLike, *, prior: float = 0.1) -> NDArray[np.float64]:
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
    if wins.ndim != 2 or wins.shape[0] != wins.shape[1]:
        raise ValueError(f"wins has shape {wins.shape}: it must be square, one row and one column per player")
    np.fill_diagonal(wins, 0.0)
    if not np.isfinite(wins).all() or (wins < 0).any():
        raise ValueError("wins holds a value that is negative or not finite: it counts comparisons")
    if not 0 < prior < np.inf:
        raise ValueError(f"prior is {prior}: it must be positive, or an unbeaten player is infinitely strong")
    games, theta = wins + wins.T, np.zeros(len(wins))
    if prior < SMALLEST_PRIOR * games.max(initial=0.0):
        raise ValueError(f"prior is {prior:g} for {games.max():g} comparisons of a pair: it is lost in rounding")
    # The gradient is a sum of counts: what is left of it after rounding grows with them.
    enough = 1e-12 * (1.0 + games.sum())
    for _ in range(STEPS):
        chance = chances(theta[:, None] - theta[None, :])
        gradient = (wins - games * chance).sum(axis=1) - prior * theta
        if float(np.abs(gradient).max(initial=0.0)) <= enough:
            break
        spread = games * chance * (1 - chance)
        hessian = np.diag(spread.sum(axis=1) + prior) - spread
        theta = _better(wins, prior, theta, np.linalg.solve(hessian, gradient))
    return theta - theta.mean() if len(theta) else theta


def chances(log_odds: ArrayLike) -> NDArray[np.float64]:
    """Return σ(x) = 1 / (1 + exp(-x)) without overflow."""
    return np.asarray((1 + np.tanh(np.asarray(log_odds, dtype=np.float64) / 2)) / 2)


def _better(
    wins: NDArray[np.float64], prior: float, theta: NDArray[np.float64], step: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return `theta` after a step, halved until it is no worse than before."""
    before = _objective(wins, prior, theta)
    for halvings in range(60):
        after = theta + step * 0.5**halvings
        if _objective(wins, prior, after) >= before:
            return after
    return theta


def _objective(wins: NDArray[np.float64], prior: float, theta: NDArray[np.float64]) -> float:
    likelihood = -np.logaddexp(0.0, theta[None, :] - theta[:, None])
    return float((wins * likelihood).sum() - prior / 2 * (theta * theta).sum())
