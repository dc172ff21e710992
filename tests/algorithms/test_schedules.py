"""Learning-rate schedules: exact at the corners, monotone between them."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.algorithms.schedules import SCHEDULES, constant, cosine, linear

every_schedule = pytest.mark.parametrize("name", SCHEDULES)


@every_schedule
def test_the_warm_up_is_a_straight_line_from_zero_to_the_peak(name: str) -> None:
    factors = [SCHEDULES[name](step, total=100, warmup=4, floor=0.3) for step in range(5)]
    assert factors == pytest.approx([0, 1 / 4, 2 / 4, 3 / 4, 1], abs=1e-15)


@pytest.mark.parametrize("floor", [0.0, 0.2, 1.0])
def test_schedules_follow_their_formula_after_the_warm_up(floor: float) -> None:
    for step in (10, 11, 35, 60, 109, 110, 500):
        progress = min(1, (step - 10) / 100)
        settings = {"total": 110, "warmup": 10, "floor": floor}
        assert constant(step, **settings) == 1
        assert linear(step, **settings) == pytest.approx((1 - progress) * 1 + progress * floor, abs=1e-12)
        half_cosine = (1 + math.cos(math.pi * progress)) / 2
        assert cosine(step, **settings) == pytest.approx(floor + (1 - floor) * half_cosine, abs=1e-12)


@every_schedule
@settings(max_examples=40)
@given(total=st.integers(1, 50), warmup=st.integers(0, 20), floor=st.floats(0, 1))
def test_a_schedule_rises_to_the_peak_and_then_never_rises_again(
    name: str, total: int, warmup: int, floor: float
) -> None:
    total += warmup
    factors = [SCHEDULES[name](step, total=total, warmup=warmup, floor=floor) for step in range(total + 3)]
    assert factors[warmup] == pytest.approx(1)
    assert factors[: warmup + 1] == sorted(factors[: warmup + 1])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
    assert min(factors[warmup:]) >= floor - 1e-12
