"""The best of n against all draws, closed forms, and what must not matter."""

from itertools import combinations
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.algorithms.ranks import best_of_n, gain

PAIRS = st.lists(
    st.tuples(st.integers(-3, 3).map(float), st.integers(0, 3).map(float)), min_size=1, max_size=7
)  # few levels, so that ties are frequent


def by_hand(true: list[float], guess: list[float], n: int) -> float:
    """Return the mean over all draws of the mean true score of those that are predicted best."""
    draws = []
    for chosen in combinations(range(len(true)), n):
        top = max(guess[i] for i in chosen)
        draws.append(mean(true[i] for i in chosen if guess[i] == top))
    return mean(draws)


@given(PAIRS, st.data())
def test_it_is_the_mean_over_all_draws(pairs: list[tuple[float, float]], data: st.DataObject) -> None:
    true, guess = map(list, zip(*pairs, strict=True))
    n = data.draw(st.integers(1, len(pairs)))
    assert best_of_n(true, guess, n) == pytest.approx(by_hand(true, guess, n))


def test_values_by_hand() -> None:
    # Of the pairs of (0, 1, 5), predicted in reverse, the lower true score is chosen: 0, 0, 1.
    assert best_of_n([0, 1, 5], [3, 2, 1], 2) == pytest.approx(1 / 3)
    assert best_of_n([0, 1, 5], [1, 2, 3], 2) == pytest.approx((1 + 5 + 5) / 3)
    assert best_of_n([0, 1, 5], [1, 1, 1], 2) == pytest.approx(2)
    assert gain([0, 1, 5], [3, 2, 1], 2) == pytest.approx((1 / 3 - 2, 11 / 3 - 2))


def test_a_large_group_has_no_rounding_trouble() -> None:
    m, n = 3000, 1500
    true = list(range(m))
    assert best_of_n(true, true, n) == pytest.approx((m + 1) * n / (n + 1) - 1)  # the largest of n out of 0 … m-1


@given(st.floats(-1e9, 1e9), st.lists(st.floats(-9, 9), min_size=2, max_size=9))
def test_where_all_are_equally_good_no_choice_gains(value: float, guess: list[float]) -> None:
    assert gain([value] * len(guess), guess, 2) == (0.0, 0.0)
