"""Two updates of one group: the angle between them, who gains and who changes sides."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rewardsmith.algorithms.update_directions import flipped, gains, rollout_means, scaled, update_cosine

NUMBER = st.floats(-5, 5).map(lambda x: round(x, 3))


@st.composite
def groups(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The advantages of the tokens of one to five rollouts on two sides, and how many tokens each has."""
    counts_N = np.array(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    tokens = int(counts_N.sum())
    sides = (np.array(draw(st.lists(NUMBER, min_size=tokens, max_size=tokens))) for _ in range(2))
    return (*sides, counts_N)


def test_the_cosine_counts_every_token() -> None:
    # Two rollouts of 1 and 3 tokens: (1·2 + 3·(-1)·1) / (√(1 + 3) · √(4 + 3))
    old_T, new_T = np.array([1.0, -1, -1, -1]), np.array([2.0, 1, 1, 1])
    assert update_cosine(old_T, new_T) == pytest.approx((2 - 3) / (math.sqrt(4) * math.sqrt(7)))
    assert update_cosine(old_T, -old_T) == -1
    assert math.isnan(update_cosine(old_T, np.zeros(4)))
    assert math.isnan(update_cosine(np.zeros(0), np.zeros(0)))
    tiny = np.array([1e-200, -1e-200])
    assert update_cosine(tiny, np.array([1e200, -1e200])) == pytest.approx(1)  # no square leaves the range of floats


@given(groups(), st.floats(0.01, 100), st.randoms())
def test_neither_a_factor_nor_the_order_of_tokens_turns_an_update(group: tuple, factor: float, random) -> None:
    old_T, new_T, counts_N = group
    assume(old_T.any() and new_T.any())
    expected = math.fsum(old_T * new_T) / math.sqrt(math.fsum(old_T**2) * math.fsum(new_T**2))
    order = list(range(len(old_T)))
    random.shuffle(order)
    assert update_cosine(old_T, new_T) == pytest.approx(expected, abs=1e-9)
    assert update_cosine(new_T[order], factor * old_T[order]) == pytest.approx(expected, abs=1e-9)
    all_N = counts_N > 0
    np.testing.assert_allclose(gains(old_T, factor * old_T, counts_N, all_N), 0, atol=1e-9)
    there, back = gains(old_T, new_T, counts_N, all_N), gains(new_T, factor * old_T, counts_N, all_N)
    np.testing.assert_allclose(there, -back, atol=1e-9)


@given(groups())
def test_both_sides_are_in_units_of_their_root_mean_square(group: tuple) -> None:
    old_T, new_T, counts_N = group
    for side in (old_T, new_T):
        assert np.mean(scaled(side) ** 2) == pytest.approx(1 if side.any() else 0)
    starts = np.cumsum(counts_N) - counts_N
    expected = [np.mean((scaled(new_T) - scaled(old_T))[i : i + n]) for i, n in zip(starts, counts_N, strict=True)]
    np.testing.assert_allclose(gains(old_T, new_T, counts_N, counts_N > 0), expected, atol=1e-12)


def test_a_rollout_without_an_advantage_on_one_side_has_no_gain_and_enters_no_unit() -> None:
    counts_N, both_N = np.array([1, 2, 3, 1]), np.array([True, False, True, False])
    old_T, new_T = np.array([2.0, 0, 0, -1, -1, -1, 5]), np.array([1.0, 7, 7, 3, 3, 3, 0])
    old_unit, new_unit = math.sqrt((4 + 3 * 1) / 4), math.sqrt((1 + 3 * 9) / 4)  # over the four tokens of both
    expected = [1 / new_unit - 2 / old_unit, math.nan, 3 / new_unit + 1 / old_unit, math.nan]
    np.testing.assert_allclose(gains(old_T, new_T, counts_N, both_N), expected)
    assert np.isnan(gains(old_T, new_T, counts_N, np.zeros(4, dtype=bool))).all()


def test_means_and_flips_by_hand() -> None:
    counts_N = np.array([2, 0, 1])
    assert rollout_means(np.array([1.0, 3.0, -1.0]), counts_N).tolist() == [2.0, 0.0, -1.0]
    old_N, new_N = np.array([1.0, -1.0, 0.0, 2.0, 1e-200]), np.array([-1.0, -2.0, 3.0, 0.0, -1e-200])
    assert flipped(old_N, new_N).tolist() == [True, False, False, False, True]
