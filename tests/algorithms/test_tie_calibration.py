"""Accuracy with the best tie width, against trying every width."""

from itertools import combinations
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.algorithms.ranks import tie_calibrated_agreement

GROUP = st.lists(st.tuples(st.integers(0, 2).map(float), st.integers(0, 6).map(float)), min_size=2, max_size=5)
GROUPS = st.lists(GROUP, min_size=1, max_size=4)


def at_width(groups: list[list[tuple[float, float]]], width: float) -> float:
    def right(a: tuple[float, float], b: tuple[float, float]) -> bool:
        true = (a[0] > b[0]) - (a[0] < b[0])
        guess = 0 if abs(a[1] - b[1]) <= width else (a[1] > b[1]) - (a[1] < b[1])
        return true == guess

    return mean(mean(right(a, b) for a, b in combinations(group, 2)) for group in groups)


def ask(groups: list[list[tuple[float, float]]]) -> tuple[float, float]:
    return tie_calibrated_agreement([[t for t, _ in g] for g in groups], [[p for _, p in g] for g in groups])


@given(GROUPS)
def test_it_is_the_best_of_all_widths_and_the_smallest_that_reaches_it(groups: list) -> None:
    accuracy, width = ask(groups)
    tried = {w / 2: at_width(groups, w / 2) for w in range(14)}
    assert accuracy == pytest.approx(max(tried.values()))
    assert at_width(groups, width) == pytest.approx(accuracy)
    assert width == min(w for w, reached in tried.items() if reached == pytest.approx(accuracy))


def test_values_by_hand() -> None:
    # The truth ties B and C; the judge sets them 0.1 apart, and A one above: a width of 0.1 mends the one pair.
    assert tie_calibrated_agreement([[8, 3, 3]], [[2.0, 1.1, 1.0]]) == pytest.approx((1.0, 0.1))
    # A truth that ties everything is met by tying everything.
    assert tie_calibrated_agreement([[1, 1, 1]], [[0.0, 2.0, 5.0]]) == (1.0, 5.0)
    # One that ties nothing needs no width.
    assert tie_calibrated_agreement([[1, 2, 3]], [[1.0, 2.0, 3.0]]) == (1.0, 0.0)
    # Groups count alike, whatever their size: one of one pair, one of three.
    assert tie_calibrated_agreement([[1, 2], [1, 2, 3]], [[2, 1], [1, 2, 3]])[0] == pytest.approx((0 + 1) / 2)
