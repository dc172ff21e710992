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


def test_half_way_a_cosine_is_half_way_and_at_the_end_at_the_floor() -> None:
    assert cosine(50, total=100, floor=0.2) == pytest.approx(0.6, abs=1e-12)
    assert cosine(25, total=100) == pytest.approx((1 + math.sqrt(0.5)) / 2, abs=1e-12)
    assert [schedule(100, total=100, floor=0.2) for schedule in (linear, cosine)] == pytest.approx([0.2, 0.2])


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


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_steps_beyond_the_end_stay_where_the_end_was(name: str) -> None:
    schedule = SCHEDULES[name]
    assert schedule(10, total=10, warmup=10) == schedule(11, total=10, warmup=10)
    assert schedule(10, total=10, warmup=20) == schedule(15, total=10, warmup=20) == 0.5


@every_schedule
@pytest.mark.parametrize(("step", "total", "warmup"), [(-1, 10, 0), (0, 0, 0), (0, 10, -1)])
def test_impossible_steps_are_named(name: str, step: int, total: int, warmup: int) -> None:
    with pytest.raises(ValueError, match=f"step {step}, total {total}, warmup {warmup}"):
        SCHEDULES[name](step, total=total, warmup=warmup)


@every_schedule
@pytest.mark.parametrize("floor", [-0.1, 1.1, math.nan])
def test_a_floor_is_a_share_of_the_peak(name: str, floor: float) -> None:
    with pytest.raises(ValueError, match=f"floor is {floor}"):
        SCHEDULES[name](0, total=10, floor=floor)
