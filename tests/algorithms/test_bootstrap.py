"""Bootstrap intervals: what they cover, what they depend on, and where there is none."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.algorithms.calibration import bootstrap_interval

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
