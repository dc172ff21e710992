"""How well a judge agrees with a teacher: the formulas beside loops over pairs, and their edges."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.algorithms.ranks import closeness, credit, margin_agreement

STEPS = (1.0, 0.6, 0.2)


@pytest.mark.parametrize(
    ("error", "power", "earned"),
    [
        (0.0, 2.0, 1.0),
        (0.3, 2.0, 0.7**2),
        (-0.3, 2.0, 0.7**2),
        (0.3, 1.0, 0.7),
        (0.3, 0.5, math.sqrt(0.7)),
        (1.0, 2.0, 0.0),
        (10.5, 2.0, 0.0),  # without a bound, 90.25
        (-1e300, 2.0, 0.0),
    ],
)
def test_closeness(error: float, power: float, earned: float) -> None:
    assert closeness(error, power=power) == pytest.approx(earned, abs=1e-15)


def test_credit_is_the_table_at_whole_points_and_linear_between() -> None:
    assert credit([0, 1, 2, 3, 4, 1e9], STEPS).tolist() == [1.0, 0.6, 0.2, 0.0, 0.0, 0.0]
    assert credit([-1, 0.5, 2.5], STEPS).tolist() == pytest.approx([0.6, 0.8, 0.1])
    assert credit(1.0000000000000002, STEPS) == pytest.approx(0.6)  # a rounding error is no step
    assert credit([0, 0.25, 1], (1.0,)).tolist() == [1.0, 0.75, 0.0]


def by_loops(true: list[float], guess: list[float], ties: str) -> float:
    earned = []
    for x, y in itertools.combinations(range(len(true)), 2):
        if ties == "ignore" and true[x] == true[y]:
            continue
        off = abs((true[x] - true[y]) - (guess[x] - guess[y]))
        earned.append({0: 1.0, 1: 0.6, 2: 0.2}.get(off, 0.0))
    return math.fsum(earned) / len(earned) if earned else math.nan


SCORES = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=2, max_size=8)


@given(SCORES, st.sampled_from(["strict", "half", "ignore"]), st.integers(-3, 3))
def test_margins_are_the_mean_over_pairs(pairs: list[tuple[int, int]], ties: str, offset: int) -> None:
    true, guess = ([float(pair[i]) for pair in pairs] for i in (0, 1))
    expected = by_loops(true, guess, ties)
    assert margin_agreement(true, guess, STEPS, ties=ties) == pytest.approx(expected, nan_ok=True)
    moved = [score + offset for score in guess]
    assert margin_agreement(true, moved, STEPS, ties=ties) == pytest.approx(expected, nan_ok=True)
    if not math.isnan(expected):
        assert margin_agreement(true, true, STEPS, ties=ties) == 1.0
