"""Deviations, calibration and thresholds: values by hand, against scipy and brute force, and what must not matter."""

import math
from itertools import product
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rewardsmith.algorithms.calibration import (
    Flagged,
    best_threshold,
    calibration_error,
    flagged_below,
    levels_of_scores,
    mean_absolute_deviation,
    pearson,
    roc_auc,
    within,
)

TENTHS = st.integers(0, 10).map(lambda k: k / 10)
GRADES = st.lists(st.tuples(TENTHS, TENTHS), min_size=1, max_size=20)
FLAGS = st.lists(st.tuples(st.integers(0, 4).map(float), st.booleans()), min_size=1, max_size=12)


def test_deviations_by_hand() -> None:
    said, grades = [0.3, 0.8, 1.0], [0.1 + 0.2, 0.7, 0.5]
    assert mean_absolute_deviation(said, grades) == pytest.approx((0 + 0.1 + 0.5) / 3)
    assert within(said, grades).tolist() == [True, False, False]  # 0.1 + 0.2 is 0.3 but for a rounding error
    assert within(said, grades, 0.1).tolist() == [True, True, False]
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


def test_every_score_belongs_to_the_nearest_level() -> None:
    assert levels_of_scores([k / 10 for k in range(11)], 10).tolist() == list(range(11))
    assert levels_of_scores([-3.0, 0.04, 0.05, 0.951, 7.0], 10).tolist() == [0, 0, 1, 10, 10]
    assert levels_of_scores([0.2, 0.5, 0.8], 1).tolist() == [0, 1, 1]


@given(GRADES)
def test_calibration_error_is_the_mean_distance_of_the_bands(pairs: list[tuple[float, float]]) -> None:
    said, grades = map(list, zip(*pairs, strict=True))
    bands = {round(10 * s): [] for s in said}
    for s, g in pairs:
        bands[round(10 * s)].append((s, g))
    by_hand = sum(len(b) / len(pairs) * abs(mean(s for s, _ in b) - mean(g for _, g in b)) for b in bands.values())
    assert calibration_error(said, grades) == pytest.approx(by_hand)
    assert calibration_error(said, grades) <= mean_absolute_deviation(said, grades) + 1e-12
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
    said, unsound = [0.1, 0.4, 0.4, 0.7, 0.9], [True, True, False, False, True]
    found = flagged_below(said, unsound, 0.5)
    assert found == Flagged(0.5, flagged=3, caught=2, positive=3)
    assert (found.precision, found.recall) == pytest.approx((2 / 3, 2 / 3))
    assert found.f1 == pytest.approx(2 * (2 / 3) * (2 / 3) / (4 / 3))
    assert flagged_below(said, unsound, 0.4).flagged == 1  # the threshold itself is not below it
    assert flagged_below([0.3], [True], 0.1 + 0.2).flagged == 0  # nor is what differs by a rounding error
    nothing = flagged_below(said, unsound, 0.0)
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
