"""Calibration, thresholds, intervals and consistency: by hand, against scipy and brute force."""

import math
from itertools import combinations, product
from statistics import mean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from rewardsmith.algorithms.judge_statistics import (
    Flagged,
    best_threshold,
    bootstrap_interval,
    calibration_error,
    changed_best,
    changed_relations,
    flagged_below,
    mean_absolute_deviation,
    position_effects,
    repeat_consistency,
    roc_auc,
    within,
)
from rewardsmith.algorithms.ranks import pearson

TENTHS = st.integers(0, 10).map(lambda k: k / 10)


GRADES = st.lists(st.tuples(TENTHS, TENTHS), min_size=1, max_size=20)


FLAGS = st.lists(st.tuples(st.integers(0, 4).map(float), st.booleans()), min_size=1, max_size=12)


def test_deviations_by_hand() -> None:
    predicted, grades = [0.3, 0.8, 1.0], [0.1 + 0.2, 0.7, 0.5]
    assert mean_absolute_deviation(predicted, grades) == pytest.approx((0 + 0.1 + 0.5) / 3)
    assert within(predicted, grades).tolist() == [True, False, False]  # 0.1 + 0.2 is 0.3 but for a rounding error
    assert within(predicted, grades, 0.1).tolist() == [True, True, False]
    assert math.isnan(mean_absolute_deviation([], []))
    with pytest.raises(ValueError, match="1 and 0 values"):
        mean_absolute_deviation([1.0], [])
    with pytest.raises(ValueError, match="not finite"):
        within([math.nan], [1.0])


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=3, max_size=12))
def test_pearson_is_scipys(pairs: list[tuple[float, float]]) -> None:
    x, y = map(np.array, zip(*pairs, strict=True))
    if np.ptp(x) < 1e-3 or np.ptp(y) < 1e-3:
        return
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-9)
    assert pearson(2 * x + 1, y) == pytest.approx(pearson(x, y))
    assert pearson(-x, y) == pytest.approx(-pearson(x, y))


@given(GRADES)
def test_calibration_error_is_the_mean_distance_of_the_bands(pairs: list[tuple[float, float]]) -> None:
    predicted, grades = map(list, zip(*pairs, strict=True))
    bands = {round(10 * s): [] for s in predicted}
    for s, g in pairs:
        bands[round(10 * s)].append((s, g))
    by_hand = sum(len(b) / len(pairs) * abs(mean(s for s, _ in b) - mean(g for _, g in b)) for b in bands.values())
    assert calibration_error(predicted, grades) == pytest.approx(by_hand)
    assert calibration_error(predicted, grades) <= mean_absolute_deviation(predicted, grades) + 1e-12
    assert calibration_error(grades, grades) == pytest.approx(0)


@given(FLAGS)
def test_auc_is_the_share_of_pairs_in_the_right_order(items: list[tuple[float, bool]]) -> None:
    yes, no = ([score for score, flag in items if flag is wanted] for wanted in (True, False))
    scores, flags = map(list, zip(*items, strict=True))
    if not yes or not no:
        assert math.isnan(roc_auc(scores, flags))
        return
    by_hand = mean(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in product(yes, no))
    assert roc_auc(scores, flags) == pytest.approx(by_hand)
    assert roc_auc([3 * s - 1 for s in scores], flags) == pytest.approx(by_hand)
    assert roc_auc([-s for s in scores], flags) == pytest.approx(1 - by_hand)


def test_a_threshold_by_hand() -> None:
    predicted, unsound = [0.1, 0.4, 0.4, 0.7, 0.9], [True, True, False, False, True]
    found = flagged_below(predicted, unsound, 0.5)
    assert found == Flagged(0.5, flagged=3, caught=2, positive=3)
    assert (found.precision, found.recall) == pytest.approx((2 / 3, 2 / 3))
    assert found.f1 == pytest.approx(2 * (2 / 3) * (2 / 3) / (4 / 3))
    assert flagged_below(predicted, unsound, 0.4).flagged == 1  # the threshold itself is not below it
    assert flagged_below([0.3], [True], 0.1 + 0.2).flagged == 0  # nor is what differs by a rounding error
    nothing = flagged_below(predicted, unsound, 0.0)
    assert (nothing.flagged, nothing.f1, math.isnan(nothing.precision)) == (0, 0.0, True)


@given(FLAGS)
def test_the_best_threshold_has_the_largest_f1_of_all(items: list[tuple[float, bool]]) -> None:
    scores, flags = map(list, zip(*items, strict=True))
    best = best_threshold(scores, flags)
    if not any(flags):
        assert best is None
        assert math.isnan(flagged_below(scores, flags, 1.0).f1)
        return
    assert best is not None
    assert best == flagged_below(scores, flags, best.threshold)
    tried = [flagged_below(scores, flags, at / 2) for at in range(-1, 12)]
    assert best.f1 == pytest.approx(max(one.f1 for one in tried))
    assert best.flagged == min(one.flagged for one in tried if one.f1 == pytest.approx(best.f1))


VALUES = st.lists(st.floats(-5, 5), min_size=2, max_size=12)


@given(VALUES, st.integers(0, 5))
def test_the_same_seed_gives_the_same_interval_and_it_is_within_the_values(values: list[float], seed: int) -> None:
    low, high = bootstrap_interval(values, seed=seed, draws=50)
    assert (low, high) == bootstrap_interval(values, seed=seed, draws=50)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9


def test_a_ratio_weighs_items_by_their_counts() -> None:
    # 100 items of one rollout that are all wrong, and 100 of nine that are all right.
    totals, counts = [0.0] * 100 + [9.0] * 100, [1.0] * 100 + [9.0] * 100
    low, high = bootstrap_interval(totals, counts)
    assert low < 0.9 < high
    assert high - low < 0.1
    mean_low, mean_high = bootstrap_interval(np.array(totals) / counts)
    assert mean_low < 0.5 < mean_high


def test_a_share_has_the_interval_that_the_normal_distribution_gives() -> None:
    flags = np.repeat([0.0, 1.0], [600, 400])
    low, high = bootstrap_interval(flags, draws=4000)
    half = 1.96 * math.sqrt(0.4 * 0.6 / 1000)
    assert (low, high) == pytest.approx((0.4 - half, 0.4 + half), abs=0.004)


@pytest.mark.parametrize(("totals", "counts"), [([], None), ([1.0], None), ([0.0, 0.0], [0.0, 0.0])])
def test_without_two_items_there_is_no_interval(totals: list[float], counts: list[float] | None) -> None:
    assert all(map(math.isnan, bootstrap_interval(totals, counts)))


VERDICTS = hnp.arrays(
    np.float64, st.tuples(st.integers(2, 4), st.integers(2, 4)), elements=st.integers(0, 2).map(float)
)


def sign(a: float, b: float) -> int:
    return int(a > b) - int(a < b)


@given(VERDICTS)
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


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_a_rounding_error_is_no_other_verdict(scale: float) -> None:
    third = np.array([[scale / 3, scale], [float(np.float32(scale / 3)), scale]])
    assert repeat_consistency(third)[0] == 1.0
    assert repeat_consistency(third + np.array([[0, 0], [scale / 1_000, 0]]))[0] == 0.5
