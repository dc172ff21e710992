"""Strengths from pairs and panels: against a general optimiser, closed forms, least squares."""

import math

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rewardsmith.algorithms.strengths import bradley_terry, chances, connected, largest, without_offsets

COUNT = st.integers(0, 4).map(float) | st.floats(0, 50, allow_subnormal=False)


@st.composite
def tables(draw: st.DrawFn, minimum: int = 2, maximum: int = 6) -> NDArray[np.float64]:
    n = draw(st.integers(minimum, maximum))
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
    with pytest.raises(ValueError, match="prior is 0"):
        bradley_terry([[0, 1], [1, 0]], prior=0.0)
    with pytest.raises(ValueError, match="rounding"):
        bradley_terry([[0, 1], [1e12, 0]], prior=1e-6)
    assert bradley_terry(np.empty((0, 0))).shape == (0,)


SCORE = st.floats(-10, 10)


X = math.nan


@st.composite
def panels(draw: st.DrawFn) -> NDArray[np.float64]:
    """Return scores of overlapping panels: each shares an item with the one before."""
    n, count = draw(st.integers(2, 7)), draw(st.integers(1, 4))
    scores = np.full((count, n), X)
    for p in range(count):
        seen = draw(st.sets(st.integers(0, n - 1), min_size=1)) | {0}
        seen |= set(range(n)) if p == 0 and draw(st.booleans()) else set()
        for item in seen:
            scores[p, item] = draw(SCORE)
    return scores[:, ~np.isnan(scores).all(axis=0)]


def test_levels_are_removed_by_what_two_panels_share() -> None:
    # the second panel grades 4 lower; item 1 was seen by both
    scores = [[9, 6, X], [X, 2, 1]]
    found = without_offsets(scores)
    assert found[0] - found[1] == pytest.approx(3)
    assert found[1] - found[2] == pytest.approx(1)
    assert np.isclose(found - found[1], [3, 0, -1]).all()


def test_true_scores_come_back_exactly_when_panels_only_differ_in_level() -> None:
    true, levels = np.array([3.0, 8.0, 5.0, 1.0, 6.0]), [2.0, -1.0, -1.0]
    seen = [[0, 1, 2], [2, 3], [3, 4, 0]]
    scores = np.full((3, 5), X)
    for p, items in enumerate(seen):
        scores[p, items] = true[items] + levels[p]
    found = without_offsets(scores)
    np.testing.assert_allclose(found - found[0], true - true[0], atol=1e-9)
    # the condition on the levels: weighted by the sizes of the panels they sum to 0
    shift = (3 * 2.0 - 2 * 1.0 - 3 * 1.0) / 8
    np.testing.assert_allclose(found, true + shift, atol=1e-9)


@settings(max_examples=50, deadline=None)
@given(panels())
def test_it_is_the_least_squares_solution(scores: NDArray[np.float64]) -> None:
    found = without_offsets(scores)
    level = np.nanmean(scores - found, axis=1)  # the best level of each panel for these items
    rest = scores - found - level[:, None]
    # at the minimum the residuals of every item and of every panel sum to 0
    np.testing.assert_allclose(np.nansum(rest, axis=0), 0, atol=1e-7)
    sizes = (~np.isnan(scores)).sum(axis=1)
    assert (sizes * level).sum() == pytest.approx(0, abs=1e-7)


def test_who_is_connected() -> None:
    seen = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0], [0, 1, 1, 0, 0, 0]], dtype=bool)
    assert connected(seen).tolist() == [0, 0, 0, 3, 3, -1]
    assert largest(connected(seen)).tolist() == [True, True, True, False, False, False]
    # through a chain in the wrong order
    chain = np.array([[0, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 0]], dtype=bool)
    assert connected(chain).tolist() == [0, 0, 0, 0]
    # the first of two as large
    assert largest(connected(np.array([[0, 0, 1, 1], [1, 1, 0, 0]], dtype=bool))).tolist() == [True, True, False, False]
    assert not largest(connected(np.zeros((2, 3), dtype=bool))).any()
    assert connected(np.zeros((0, 2), dtype=bool)).tolist() == [-1, -1]


def test_separate_sets_have_no_common_level() -> None:
    for scores in ([[1, 2, X, X], [X, X, 3, 4]], [[1, 2, X]]):
        with pytest.raises(ValueError, match="do not connect"):
            without_offsets(scores)
