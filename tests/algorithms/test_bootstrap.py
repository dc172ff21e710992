"""Bootstrap intervals: what they cover, what they depend on, and where there is none."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.algorithms import calibration
from rewardsmith.algorithms.calibration import bootstrap_interval

VALUES = st.lists(st.floats(-5, 5), min_size=2, max_size=12)


@given(VALUES, st.integers(0, 5))
def test_the_same_seed_gives_the_same_interval_and_it_is_within_the_values(values: list[float], seed: int) -> None:
    low, high = bootstrap_interval(values, seed=seed, draws=50)
    assert (low, high) == bootstrap_interval(values, seed=seed, draws=50)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9


@given(VALUES, st.floats(0.5, 3), st.floats(-4, 4))
def test_scale_and_shift_move_the_interval_along(values: list[float], scale: float, shift: float) -> None:
    low, high = bootstrap_interval(values, draws=50)
    moved = bootstrap_interval([scale * v + shift for v in values], draws=50)
    assert moved == pytest.approx((scale * low + shift, scale * high + shift), abs=1e-6)


def test_a_mean_is_covered_about_as_often_as_the_level_says() -> None:
    rng = np.random.default_rng(0)
    inside = [
        low <= 0.0 <= high
        for low, high in (bootstrap_interval(rng.normal(size=60), seed=i, draws=300) for i in range(300))
    ]
    assert 0.90 < np.mean(inside) < 0.98


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


def test_blocks_do_not_matter_to_the_number_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "BLOCK", 25)
    low, high = bootstrap_interval([0.0, 0.0, 0.0, 1.0], draws=4000, level=0.5)
    assert (low, high) == (0.0, 0.5)  # the quartiles of a binomial share: 0, 1/4, 1/2 and so on
    assert bootstrap_interval([1.0, 1.0]) == (1.0, 1.0)


@pytest.mark.parametrize(("totals", "counts"), [([], None), ([1.0], None), ([0.0, 0.0], [0.0, 0.0])])
def test_without_two_items_there_is_no_interval(totals: list[float], counts: list[float] | None) -> None:
    assert all(map(math.isnan, bootstrap_interval(totals, counts)))
