"""The Bradley-Terry fit, against a general optimiser, closed forms and what must not change it."""

import math

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rewardsmith.algorithms.bradley_terry import bradley_terry, chances

COUNT = st.integers(0, 4).map(float) | st.floats(0, 50, allow_subnormal=False)


@st.composite
def tables(draw: st.DrawFn, least: int = 2, most: int = 6) -> NDArray[np.float64]:
    n = draw(st.integers(least, most))
    rows = draw(st.lists(st.lists(COUNT, min_size=n, max_size=n), min_size=n, max_size=n))
    return np.array(rows)


def optimised(wins: NDArray[np.float64], prior: float) -> NDArray[np.float64]:
    """Return the maximum that a general optimiser finds of the objective, written out pair by pair."""

    def loss(theta: NDArray[np.float64]) -> float:
        pairs = ((i, j) for i in range(len(wins)) for j in range(len(wins)) if i != j)
        likelihood = sum(wins[i, j] * -math.log1p(math.exp(theta[j] - theta[i])) for i, j in pairs)
        return -likelihood + prior / 2 * sum(t * t for t in theta)

    return scipy.optimize.minimize(loss, np.zeros(len(wins)), method="BFGS", options={"gtol": 1e-7}).x


@settings(max_examples=25, deadline=None)
@given(tables(), st.sampled_from([0.03, 0.1, 1.0]))
def test_it_agrees_with_a_general_optimiser(wins: NDArray[np.float64], prior: float) -> None:
    np.testing.assert_allclose(bradley_terry(wins, prior=prior), optimised(wins, prior), atol=2e-4)


@pytest.mark.parametrize(("won", "lost"), [(1, 1), (3, 1), (1, 9), (0.75, 0.25), (40, 2)])
def test_two_players_have_the_log_odds_of_their_wins(won: float, lost: float) -> None:
    first, second = bradley_terry([[0, won], [lost, 0]], prior=1e-7)
    assert first - second == pytest.approx(math.log(won / lost), abs=1e-5)


def test_an_unbeaten_player_is_as_strong_as_the_prior_allows() -> None:
    # the gradient of the two-player problem: w σ(-2t) = λ t
    for prior in (0.01, 0.1, 1.0):
        t, _ = bradley_terry([[0, 5], [0, 0]], prior=prior)
        assert 5 / (1 + math.exp(2 * t)) == pytest.approx(prior * t)
    assert bradley_terry([[0, 5], [0, 0]], prior=0.01)[0] > bradley_terry([[0, 5], [0, 0]], prior=0.1)[0]


def test_a_round_robin_is_ordered_by_wins() -> None:
    # with every pair met equally often, the number of wins says all (Bradley and Terry 1952)
    wins = np.array([[0, 2, 3, 1], [1, 0, 3, 2], [0, 0, 0, 3], [2, 1, 0, 0]], dtype=float)
    strengths, total = bradley_terry(wins), wins.sum(axis=1)
    assert total.tolist() == [6, 6, 3, 3]
    assert strengths[0] == pytest.approx(strengths[1])
    assert strengths[2] == pytest.approx(strengths[3])
    assert strengths[0] > strengths[2]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
@pytest.mark.parametrize("prior", [2e-6, 1.0, 1e6])
def test_it_ends_at_a_maximum_for_any_counts(scale: float, prior: float) -> None:
    wins = scale * np.array([[0, 1, 1, 0], [0, 0, 1, 0], [0, 0.5, 0, 0], [0, 0, 0, 0]])
    strengths = bradley_terry(wins, prior=prior)
    assert np.isfinite(strengths).all()
    chance = chances(strengths[:, None] - strengths[None, :])
    gradient = (wins - (wins + wins.T) * chance).sum(axis=1) - prior * strengths
    assert np.abs(gradient).max() <= 1e-6 * (1 + wins.sum())
    assert strengths[3] == pytest.approx(0, abs=1e-6)  # it met nobody


def test_wrong_input_is_named() -> None:
    with pytest.raises(ValueError, match="must be square"):
        bradley_terry([[0, 1]])
    with pytest.raises(ValueError, match="negative or not finite"):
        bradley_terry([[0, -1], [1, 0]])
    with pytest.raises(ValueError, match="negative or not finite"):
        bradley_terry([[0, math.nan], [1, 0]])
    with pytest.raises(ValueError, match="prior is 0"):
        bradley_terry([[0, 1], [1, 0]], prior=0.0)
    with pytest.raises(ValueError, match="lost in rounding"):
        bradley_terry([[0, 1], [1e12, 0]], prior=1e-6)
    assert bradley_terry(np.empty((0, 0))).shape == (0,)
