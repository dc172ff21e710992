"""The best of n against all draws, closed forms, and what must not matter."""

import math
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


@given(PAIRS)
def test_one_is_the_mean_and_all_is_the_best_predicted(pairs: list[tuple[float, float]]) -> None:
    true, guess = map(list, zip(*pairs, strict=True))
    assert best_of_n(true, guess, 1) == pytest.approx(mean(true))
    top = [t for t, g in pairs if g == max(guess)]
    assert best_of_n(true, guess, len(pairs)) == pytest.approx(mean(top))


@given(PAIRS, st.data())
def test_the_order_of_the_items_and_the_scale_of_the_prediction_do_not_matter(
    pairs: list[tuple[float, float]], data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, len(pairs)))
    true, guess = map(list, zip(*pairs, strict=True))
    shuffled = data.draw(st.permutations(pairs))
    other, scaled = [t for t, _ in shuffled], [7 * g - 3 for _, g in shuffled]
    assert best_of_n(other, scaled, n) == pytest.approx(best_of_n(true, guess, n))
    moved = best_of_n([2 * t + 10 for t in true], guess, n)
    assert moved == pytest.approx(2 * best_of_n(true, guess, n) + 10)


@given(PAIRS, st.data())
def test_nobody_chooses_better_than_the_truth(pairs: list[tuple[float, float]], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(pairs)))
    true, guess = map(list, zip(*pairs, strict=True))
    reached, possible = gain(true, guess, n)
    assert reached <= possible + 1e-9
    assert gain(true, true, n) == pytest.approx((possible, possible))


def test_a_large_group_has_no_rounding_trouble() -> None:
    m, n = 3000, 1500
    true = list(range(m))
    assert best_of_n(true, true, n) == pytest.approx((m + 1) * n / (n + 1) - 1)  # the largest of n out of 0 … m-1


@pytest.mark.parametrize(("true", "n"), [([1.0], 0), ([1.0], 2), ([], 1)])
def test_what_cannot_be_drawn_is_refused(true: list[float], n: int) -> None:
    with pytest.raises(ValueError, match="n is"):
        best_of_n(true, true, n)
    with pytest.raises(ValueError, match="2 and 1 values"):
        best_of_n([1.0, 2.0], [1.0], 1)
    assert math.isfinite(best_of_n([1e300, -1e300], [0, 0], 1))


@given(st.floats(-1e9, 1e9), st.lists(st.floats(-9, 9), min_size=2, max_size=9))
def test_where_all_are_equally_good_no_choice_gains(value: float, guess: list[float]) -> None:
    assert gain([value] * len(guess), guess, 2) == (0.0, 0.0)
