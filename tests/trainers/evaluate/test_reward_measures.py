"""Rewards on rankings, grades and pairs: values by hand, failures, orders, repeats, and what must not matter."""

import math
import random
from dataclasses import replace
from itertools import combinations
from statistics import mean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.console import Table
from rewardsmith.trainers.evaluate.evaluate_reward import spread_orders
from rewardsmith.trainers.evaluate.reward_measures import (
    Verdicts,
    measure_grades,
    measure_pairs,
    measure_rankings,
    subset_of,
)
from rewardsmith.types import Graded, Preference, Ranking
from tests.trainers.evaluate.rewards import Fickle, evaluate, graded, pair, prompt, ranking

NAN = math.nan


def table(tables: Any, title: str) -> Table:
    return next(one for one in tables if one.title == title)


# ---- rankings -------------------------------------------------------------------------------------------------------


def group(truth: list[float], scores: list[float]) -> Verdicts[Ranking]:
    texts = ["x" * (i + 1) for i in range(len(truth))]
    return Verdicts(ranking(truth, texts), np.array(scores, dtype=np.float64))


def test_rankings_by_hand() -> None:
    # The golden pair of the ranking reward: truth 8, 3, 3; scores 8, 4, 2: two of three pairs have the true relation.
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
    # Lengths 1, 2, 3 against scores 8, 4, 2 and 1, 2 against 1, 2; truths 8, 3, 3 and 1, 2.
    assert metrics["length"] == pytest.approx(mean([-1, 1]))
    assert metrics["length_truth"] == pytest.approx(mean([-math.sqrt(3) / 2, 1]))


def test_a_gain_is_the_share_of_what_a_perfect_judge_gains() -> None:
    metrics, _ = measure_rankings([group([0, 1, 5], [3, 2, 1]), group([2, 2], [1, 0])])
    # Pairs of (0, 1, 5): reversed 0, 0, 1 and perfect 1, 5, 5, each minus the mean of 2; a flat group gains nothing.
    assert metrics["gain@2"] == pytest.approx((1 / 3 - 2) / (11 / 3 - 2))
    assert "gain@4" not in metrics


def test_a_group_that_failed_is_in_no_measure_and_is_counted() -> None:
    good, lost = group([1, 2], [1, 2]), group([1, 2], [NAN, 5])
    metrics, tables = measure_rankings([good, good, good, lost])
    assert (metrics["accuracy"], metrics["failed"], metrics["accuracy_all"]) == (1.0, 0.25, 0.75)
    assert "1 of 4 groups could not be scored" in tables[0].note
    nothing, _ = measure_rankings([lost])
    assert "accuracy" not in nothing
    assert (nothing["failed"], nothing["accuracy_all"]) == (1.0, 0.0)


def test_a_reward_gains_nothing_by_tying_what_it_is_unsure_of() -> None:
    ordered, tied, all_equal = group([1, 2, 3], [1, 2, 3]), group([1, 2, 3], [7, 7, 7]), group([2, 2], [1, 0])
    metrics, tables = measure_rankings([ordered, tied, all_equal])
    assert (metrics["kendall"], metrics["spearman"]) == (0.5, 0.5)  # the third has no order to find
    assert "The reward is the same for all candidates in 1 of 3 groups." in tables[0].note


def test_rankings_from_items_to_a_result() -> None:
    rows = [ranking([1, 2, 3], ["1", "3", "2"], i) for i in range(3)] + [ranking([1, 2], ["1", "none"], 3)]
    found = evaluate("rankings", rows)
    agree = mean(a[0] < b[0] and a[1] < b[1] for a, b in combinations([(1, 1), (2, 3), (3, 2)], 2))
    assert found.metrics["accuracy"] == pytest.approx(agree)
    assert found.metrics["failed"] == found.failed == 0.25
    assert found.metrics["failures/reward/unparsable"] == pytest.approx(1 / 11)
    assert found.facts["details"] == {"reward unparsable": "none is no number"}
    assert (found.facts["kind"], found.facts["main"][0]) == ("rankings", "accuracy")
    assert set(found.facts["main"]) <= set(found.metrics)


# ---- orders and repeats ---------------------------------------------------------------------------------------------


@given(st.integers(2, 5), st.integers(1, 130), st.integers(0, 3))
def test_orders_are_distinct_and_spread_the_positions_evenly(n: int, count: int, seed: int) -> None:
    orders = spread_orders(n, count, random.Random(seed))
    assert len(orders) == len(set(orders)) == min(count, math.factorial(n))
    assert all(sorted(order) == list(range(n)) for order in orders)
    places = np.array([np.argsort(order) for order in orders[: len(orders) // n * n]])
    for candidate in range(n if len(places) else 0):
        assert set(np.bincount(places[:, candidate], minlength=n)) == {len(places) // n}


def test_a_bias_for_the_first_position_is_measured() -> None:
    rows = [ranking([3, 2, 1], ["3", "2", "1.8"], number=i) for i in range(6)]
    found = evaluate("rankings", rows, "LikesFirst", orders=3)
    assert [row[:2] for row in table(found.tables, "position bias").rows] == [
        (1, pytest.approx(1 / 3)),
        (2, pytest.approx(-1 / 6)),
        (3, pytest.approx(-1 / 6)),
    ]
    assert found.metrics["order_bias"] == pytest.approx(0.5)
    # Of 2 and 1.8 the first of both is the better one; two of three pairs of orders disagree. 3 stays ahead.
    assert found.metrics["order_changed"] == pytest.approx((0 + 0 + 2 / 3) / 3)
    assert found.metrics["order_flipped"] == found.metrics["order_changed"]
    assert found.metrics["order_best_changed"] == 0.0


def test_a_bias_for_the_first_position_gains_nothing_from_the_order_of_the_data() -> None:
    found = evaluate("pairs", [pair("1", "1") for _ in range(60)], "LikesFirst", orders=2)
    assert 0.3 < found.metrics["accuracy"] < 0.7  # the order is drawn
    assert (found.metrics["order_flipped"], found.metrics["order_bias"]) == (1.0, pytest.approx(0.5))
    honest = evaluate("pairs", [pair("2", "1"), pair("5", "1")], orders=2)
    assert (honest.metrics["order_changed"], honest.metrics["order_bias"]) == (0.0, 0.0)
    assert honest.metrics["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("kind", "item"), [("rankings", ranking([1, 2], ["1", "2"])), ("pairs", pair("2", "1")), ("grades", graded(1, "1"))]
)
def test_repeats_are_further_verdicts(kind: str, item: Any) -> None:
    Fickle.calls = 0
    found = evaluate(kind, [item], "Fickle", repeats=3)
    assert Fickle.calls == 3
    assert (found.metrics["repeat_same"], found.metrics["repeat_spread"]) == (0.0, pytest.approx(1.0))  # of 1, 2, 3
    assert found.metrics.get("repeat_changed", 0.0) == 0.0
    steady = evaluate(kind, [item], repeats=2)
    assert (steady.metrics["repeat_same"], steady.metrics["repeat_spread"]) == (1.0, 0.0)


# ---- grades ---------------------------------------------------------------------------------------------------------


def answer(grade: float, score: float, right: bool | None = None, sound: bool | None = None) -> Verdicts[Graded]:
    return Verdicts(graded(grade, "x", right, sound), np.array([score]))


GRADES = [
    answer(1.0, 1.0, right=True, sound=True),
    answer(1.0, 0.8, right=True, sound=True),
    answer(0.2, 0.8, right=True, sound=False),
    answer(0.3, 0.3, right=True, sound=False),
    answer(0.0, 0.1, right=False, sound=False),
    answer(0.5, 0.3),
]


def test_grades_by_hand() -> None:
    metrics, tables = measure_grades(GRADES)
    assert metrics["mad"] == pytest.approx((0 + 0.2 + 0.6 + 0 + 0.1 + 0.2) / 6)
    assert metrics["bias"] == pytest.approx((0 - 0.2 + 0.6 + 0 + 0.1 - 0.2) / 6)
    assert (metrics["exact"], metrics["within_0.1"]) == (pytest.approx(2 / 6), pytest.approx(3 / 6))
    # Bands 1, 0.8 (scores .8, .8; grades 1, .2), 0.3 (grades .3, .5) and 0.1.
    assert metrics["calibration_error"] == pytest.approx((0 + 2 * 0.2 + 2 * 0.1 + 0.1) / 6)
    assert (metrics["failed"], metrics["answers"]) == (0.0, 6.0)
    # Mean grades .0, .4, .6, 1; unsound of the right 1, .5, 0.
    assert (metrics["grade_rises"], metrics["unsound_falls"]) == (1.0, 1.0)
    rows = {row[0]: row for row in table(tables, "by score").rows}
    assert list(rows) == [0.1, 0.3, 0.8, 1.0]
    assert rows[0.8][1:] == (2, pytest.approx(0.8), pytest.approx(0.6), pytest.approx(0.4), 2, 0.5)
    assert rows[0.3][5:] == (1, 1.0)  # of the other nothing is known
    assert rows[0.1][5] == 0  # a wrong answer is no false discovery
    assert math.isnan(rows[0.1][6])


def test_detecting_right_answers_with_unsound_reasoning_by_hand() -> None:
    metrics, _ = measure_grades(GRADES, threshold=0.5)
    # Right answers with known reasoning: 1, .8 (sound), .8, .3 (unsound).
    assert metrics["unsound"] == 0.5
    assert metrics["auc"] == pytest.approx((1 + 1 + 1 + 0.5) / 4)
    assert (metrics["precision"], metrics["recall"]) == (1.0, 0.5)
    assert metrics["f1"] == pytest.approx(2 / 3)
    # Below 0.9: three flagged, both unsound among them.
    assert metrics["f1_best"] == pytest.approx(2 * (2 / 3) * 1 / (5 / 3))
    assert metrics["threshold_best"] == pytest.approx(0.9)


def test_a_failed_grade_is_counted_and_is_no_number() -> None:
    metrics, tables = measure_grades([*GRADES, answer(0.0, NAN, True, False)])
    assert metrics["failed"] == pytest.approx(1 / 7)
    assert metrics["mad"] == pytest.approx(measure_grades(GRADES)[0]["mad"])
    assert "1 of 7 answers could not be scored" in tables[0].note
    assert measure_grades([answer(0.5, NAN)])[0] == {"failed": 1.0, "answers": 1.0}
    found = evaluate("grades", [graded(1.0, "0.9", True, True), graded(0.1, "0.2", True, False), graded(0.5, "well")])
    assert (found.metrics["mad"], found.metrics["f1"]) == (pytest.approx(0.1), 1.0)
    assert found.metrics["failures/reward/unparsable"] == pytest.approx(1 / 3)


# ---- pairs ----------------------------------------------------------------------------------------------------------


def judged(subset: str, margin: float, *, tied: bool = False) -> Verdicts[Preference]:
    return Verdicts(pair("a", "b", subset, tied=tied), np.array([margin, 0.0]))


PAIRS = [
    judged("math-prm", 1.0),
    judged("math-prm", 0.0),
    judged("hep-go", -2.0),
    judged("donotanswer", 3.0),
    judged("donotanswer", NAN),
]


def test_pairs_by_hand() -> None:
    metrics, tables = measure_pairs(PAIRS)
    assert (metrics["accuracy"], metrics["accuracy_half"]) == (pytest.approx(2 / 4), pytest.approx(2.5 / 4))
    assert (metrics["accuracy_all"], metrics["failed"]) == (pytest.approx(2 / 5), pytest.approx(1 / 5))
    assert (metrics["ties"], metrics["margin"]) == (pytest.approx(1 / 4), pytest.approx(2 / 4))
    assert "1 of 5 pairs could not be scored" in tables[0].note
    assert table(tables, "by subset").rows == [
        ("donotanswer", 2, 1.0, 0, 1),
        ("hep-go", 1, 0.0, 0, 0),
        ("math-prm", 2, 0.5, 1, 0),
    ]
    reasoning = (0.5 * 984 + 0.0 * 164) / (984 + 164)
    assert (metrics["section/reasoning"], metrics["section/safety"]) == (pytest.approx(reasoning), 1.0)
    assert metrics["score"] == pytest.approx((reasoning + 1.0) / 2)
    rows = table(tables, "RewardBench").rows
    assert rows == [("Safety", 1.0, 1, 5), ("Reasoning", pytest.approx(reasoning), 2, 7)]
    lengths = [("22", "1"), ("1", "22"), ("33", "1")]
    found = evaluate("pairs", [pair(*texts) for texts in lengths])
    assert table(found.tables, "length").rows == [("longer", 2, 1.0), ("shorter", 1, 0.0)]
    assert (found.facts["kind"], found.facts["main"][0]) == ("pairs", "accuracy")


def test_pairs_without_a_better_answer_are_left_out() -> None:
    metrics, tables = measure_pairs([judged("x", 1.0), judged("x", -5.0, tied=True)])
    assert metrics["accuracy"] == 1.0
    assert "1 pairs without a better answer" in tables[0].note
    assert measure_pairs([judged("x", 0.0, tied=True)])[0] == {"pairs": 1.0, "failed": 0.0}


@pytest.mark.parametrize(
    ("kind", "items", "expected"),
    [
        (
            "rankings",
            [ranking([1, 2], ["1", "2"]), ranking([1, 2], ["2", "1"]), ranking([2, 1], ["2", "1"])],
            {"a": {"groups": 2.0, "accuracy": 0.5, "failed": 0.0}, "b_c": {"groups": 1.0, "accuracy": 1.0}},
        ),
        (
            "grades",
            [graded(1.0, "0.5"), graded(1.0, "?"), graded(0.25, "0.5")],
            {"a": {"answers": 2.0, "mad": 0.5, "failed": 0.5}, "b_c": {"answers": 1.0, "mad": 0.25, "bias": 0.25}},
        ),
        (
            "pairs",
            [pair("2", "1"), pair("1", "2"), pair("3", "1")],
            {"a": {"pairs": 2.0, "accuracy": 0.5}, "b_c": {"pairs": 1.0, "accuracy": 1.0, "failed": 0.0}},
        ),
    ],
)
def test_each_source_has_its_own_figures(kind: str, items: list[Any], expected: dict[str, dict[str, float]]) -> None:
    sources = ["a", "a", "b/c"]
    named = [replace(item, prompt=prompt(i, source=sources[i])) for i, item in enumerate(items)]
    result = evaluate(kind, named)
    figures = {f"sources/{source}/{name}": v for source, some in expected.items() for name, v in some.items()}
    assert {name: result.metrics[name] for name in figures} == pytest.approx(figures)
    (table,) = [table for table in result.tables if table.title in ("by source", "by subset")]
    assert [row[0] for row in table.rows] == ["a", "b/c" if kind == "pairs" else "b_c"]


def test_the_subset_is_the_column_or_else_the_source() -> None:
    assert subset_of(prompt(subset="hep-go", source="other")) == "hep-go"
    assert subset_of(prompt(source="mine")) == "mine"
    assert subset_of(prompt()) == subset_of(prompt(subset=3)) == "all"
