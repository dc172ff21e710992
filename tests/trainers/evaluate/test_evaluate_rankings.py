"""Rewards on groups with true scores: values by hand, failures, orders, repeats, and what must not matter."""

import math
import random
from itertools import combinations
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.trainers.evaluate.evaluate_rankings import (
    RankedGroup,
    evaluate_rankings,
    measure_rankings,
    spread_orders,
)
from tests.trainers.evaluate.rewards import Fickle, ranking, scorer, settings, wait

NAN = math.nan


def group(truth: list[float], said: list[float], lengths: list[float] | None = None, **more: object) -> RankedGroup:
    sizes = np.array(lengths or range(1, len(truth) + 1), dtype=np.float64)
    return RankedGroup(np.array(truth, dtype=np.float64), sizes, np.array(said, dtype=np.float64), **more)  # type: ignore[arg-type]


def test_the_measures_by_hand() -> None:
    # The golden pair of the ranking reward: truth 8, 3, 3; said 8, 4, 2: two of three pairs have the true relation.
    metrics, _ = measure_rankings([group([8, 3, 3], [8, 4, 2]), group([1, 2], [1, 2])])
    assert metrics["accuracy"] == pytest.approx(mean([2 / 3, 1]))
    assert metrics["accuracy_half"] == pytest.approx(mean([2.5 / 3, 1]))
    assert metrics["accuracy_untied"] == 1.0
    assert metrics["accuracy_calibrated"] == pytest.approx(mean([2 / 3, 1]))  # a width of 2 would lose the second
    assert metrics["tie_width"] == 0.0
    assert metrics["chance"] == pytest.approx(mean([(2 / 3) / 2, 1 / 2]))
    assert metrics["top1"] == 1.0
    assert metrics["kendall"] == pytest.approx(mean([2 / math.sqrt(2 * 3), 1]))
    assert metrics["gain@2"] == pytest.approx(1.0)
    assert (metrics["failed"], metrics["groups"]) == (0.0, 2.0)


def test_a_gain_is_the_share_of_what_a_perfect_judge_gains() -> None:
    backwards, flat = group([0, 1, 5], [3, 2, 1]), group([2, 2], [1, 0])
    metrics, _ = measure_rankings([backwards, flat])
    # Pairs of (0, 1, 5): reversed 0, 0, 1 and perfect 1, 5, 5, each minus the mean of 2; a flat group gains nothing.
    assert metrics["gain@2"] == pytest.approx((1 / 3 - 2) / (11 / 3 - 2))
    assert "gain@4" not in metrics


def test_a_group_that_failed_is_in_no_measure_and_is_counted() -> None:
    good, lost = group([1, 2], [1, 2]), group([1, 2], [NAN, 5])
    metrics, tables = measure_rankings([good, good, good, lost])
    assert (metrics["accuracy"], metrics["failed"]) == (1.0, 0.25)
    assert metrics["accuracy_all"] == 0.75
    assert "1 of 4 groups could not be scored" in tables[0].note
    whole, shown = measure_rankings([good])
    assert whole["accuracy_all"] == whole["accuracy"]
    assert "accuracy all" not in [row[0] for row in shown[0].rows]  # it would be the same row again
    nothing, _ = measure_rankings([lost])
    assert "accuracy" not in nothing
    assert (nothing["failed"], nothing["accuracy_all"]) == (1.0, 0.0)


# ---- orders --------------------------------------------------------------------------------------------------------


@given(st.integers(2, 5), st.integers(1, 130), st.integers(0, 3))
def test_orders_are_distinct_and_spread_the_positions_evenly(n: int, count: int, seed: int) -> None:
    orders = spread_orders(n, count, random.Random(seed))
    assert len(orders) == len(set(orders)) == min(count, math.factorial(n))
    assert all(sorted(order) == list(range(n)) for order in orders)
    places = np.array([np.argsort(order) for order in orders[: len(orders) // n * n]])
    for candidate in range(n if len(places) else 0):
        assert set(np.bincount(places[:, candidate], minlength=n)) == {len(places) // n}


def test_a_liking_for_the_first_place_is_found() -> None:
    rows = [ranking([3, 2, 1], ["3", "2", "1.8"], number=i) for i in range(6)]
    found = wait(evaluate_rankings(rows, scorer("LikesFirst"), settings(orders=3)))
    (positions,) = [table for table in found.tables if table.title == "position bias"]
    assert [row[:2] for row in positions.rows] == [
        (1, pytest.approx(1 / 3)),
        (2, pytest.approx(-1 / 6)),
        (3, pytest.approx(-1 / 6)),
    ]
    assert found.metrics["order_bias"] == pytest.approx(1 / 3)
    # Of 2 and 1.8 the first of both is the better one; two of three pairs of orders disagree. 3 stays ahead.
    assert found.metrics["order_changed"] == pytest.approx((0 + 0 + 2 / 3) / 3)
    assert found.metrics["order_flipped"] == found.metrics["order_changed"]
    assert found.metrics["order_best_changed"] == 0.0


def test_repeats_ask_again_and_compare() -> None:
    Fickle.asked = 0
    found = wait(evaluate_rankings([ranking([1, 2], ["a", "b"])], scorer("Fickle"), settings(repeats=3)))
    assert Fickle.asked == 3
    assert found.metrics["repeat_same"] == 0.0
    assert found.metrics["repeat_spread"] == pytest.approx(1.0)  # of 1, 2 and 3
    assert found.metrics["repeat_changed"] == 0.0
    steady = wait(evaluate_rankings([ranking([1, 2], ["1", "2"])], scorer(), settings(repeats=2)))
    assert (steady.metrics["repeat_same"], steady.metrics["repeat_spread"]) == (1.0, 0.0)


def test_the_whole_way_from_nouns_to_an_evaluation() -> None:
    rows = [ranking([1, 2, 3], ["1", "3", "2"], i) for i in range(3)] + [ranking([1, 2], ["1", "none"], 3)]
    found = wait(evaluate_rankings(rows, scorer(), settings()))
    agree = mean(a[0] < b[0] and a[1] < b[1] for a, b in combinations([(1, 1), (2, 3), (3, 2)], 2))
    assert found.metrics["accuracy"] == pytest.approx(agree)
    assert found.metrics["failed"] == 0.25
    assert found.metrics["failures/reward/unparsable"] == pytest.approx(1 / 11)
    assert found.facts["details"] == {"reward unparsable": "'none' is no number"}
    assert found.facts["kind"] == "rankings"
    assert found.facts["main"][0] == "accuracy"
    assert set(found.facts["main"]) <= set(found.metrics)


def test_a_reward_gains_nothing_by_tying_what_it_is_unsure_of() -> None:
    ordered, tied, all_alike = group([1, 2, 3], [1, 2, 3]), group([1, 2, 3], [7, 7, 7]), group([2, 2], [1, 0])
    metrics, tables = measure_rankings([ordered, tied, all_alike])
    assert (metrics["kendall"], metrics["spearman"]) == (0.5, 0.5)  # the third has no order to find
    assert "The reward is the same for all candidates in 1 of 3 groups." in tables[0].note
