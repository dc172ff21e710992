"""Order and repeat statistics against counting, and a bias that was put in and is found again."""

import math
from itertools import combinations
from statistics import mean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rewardsmith.algorithms.consistency import (
    changed_best,
    changed_relations,
    position_effects,
    repeat_consistency,
)

SCORES = hnp.arrays(np.float64, st.tuples(st.integers(2, 4), st.integers(2, 4)), elements=st.integers(0, 2).map(float))


def sign(a: float, b: float) -> int:
    return int(a > b) - int(a < b)


@given(SCORES)
def test_changes_are_what_counting_pairs_of_verdicts_gives(scores: np.ndarray) -> None:
    changed, flipped, best, same = [], [], [], []
    for one, two in combinations(scores, 2):
        for i, j in combinations(range(scores.shape[1]), 2):
            first, second = sign(one[i], one[j]), sign(two[i], two[j])
            changed.append(first != second)
            flipped.append(first * second == -1)
        best.append(set(np.flatnonzero(one == one.max())) != set(np.flatnonzero(two == two.max())))
        same += [bool(a == b) for a, b in zip(one, two, strict=True)]
    assert changed_relations(scores) == pytest.approx((mean(changed), mean(flipped)))
    assert changed_best(scores) == pytest.approx(mean(best))
    spread = mean(stdev(column) for column in scores.T.tolist())
    assert repeat_consistency(scores) == pytest.approx((mean(same), spread))


@pytest.mark.parametrize("scores", [np.ones((1, 3)), np.ones((0, 3))])
def test_one_verdict_cannot_be_compared(scores: np.ndarray) -> None:
    assert all(map(math.isnan, (*changed_relations(scores), changed_best(scores), *repeat_consistency(scores))))
    with pytest.raises(ValueError, match="finite"):
        repeat_consistency([[math.nan, 1.0], [1.0, 1.0]])


def rotations(n: int, count: int) -> np.ndarray:
    """Return where each candidate stands in the first rotations of n."""
    return np.array([[(candidate - shift) % n for candidate in range(n)] for shift in range(count)])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_bias_for_positions_is_found_whatever_the_candidates_are_worth(count: int) -> None:
    rng = np.random.default_rng(count)
    bias = np.array([0.6, 0.1, -0.2, -0.5])
    places = [rotations(4, count) for _ in range(30)]
    worth = [np.sort(rng.normal(size=4))[::-1] * 5 for _ in places]  # the best stands first in the first order
    scores = [quality + bias[place] for quality, place in zip(worth, places, strict=True)]
    effects, counts = position_effects(scores, places)
    assert effects == pytest.approx(bias - bias.mean())
    assert counts.tolist() == [30 * count] * 4


def test_in_a_balanced_design_it_is_the_mean_at_a_position_minus_the_mean_of_all() -> None:
    rng = np.random.default_rng(0)
    places = [rotations(3, 3) for _ in range(5)]
    scores = [rng.normal(size=(3, 3)) for _ in places]
    effects, _ = position_effects(scores, places)
    every, where = np.stack(scores).ravel(), np.stack(places).ravel()
    assert effects == pytest.approx([every[where == p].mean() - every.mean() for p in range(3)])


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_a_rounding_error_is_no_other_verdict(scale: float) -> None:
    third = np.array([[scale / 3, scale], [float(np.float32(scale / 3)), scale]])
    assert repeat_consistency(third)[0] == 1.0
    assert repeat_consistency(third + np.array([[0, 0], [scale / 1_000, 0]]))[0] == 0.5
