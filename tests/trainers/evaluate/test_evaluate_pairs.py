"""Rewards on pairs: ties, failures, subsets and sections, and pairs whose order must not matter."""

import math

import pytest

from rewardsmith.console import Table
from rewardsmith.trainers.evaluate.evaluate_pairs import JudgedPair, evaluate_pairs, measure_pairs, subset_of
from tests.trainers.evaluate.rewards import Fickle, pair, prompt, scorer, settings, wait

NAN = math.nan


def named(tables: list[Table], title: str) -> Table:
    return next(table for table in tables if table.title == title)


EXAMPLE = [
    JudgedPair("math-prm", 1.0, longer=5),
    JudgedPair("math-prm", 0.0, longer=-3),
    JudgedPair("hep-go", -2.0, longer=-1),
    JudgedPair("donotanswer", 3.0, longer=4),
    JudgedPair("donotanswer", NAN),
]


def test_ties_and_failures_are_counted_apart() -> None:
    metrics, tables = measure_pairs(EXAMPLE)
    assert metrics["accuracy"] == pytest.approx(2 / 4)
    assert metrics["accuracy_half"] == pytest.approx(2.5 / 4)
    assert metrics["accuracy_all"] == pytest.approx(2 / 5)
    assert metrics["ties"] == pytest.approx(1 / 4)
    assert metrics["failed"] == pytest.approx(1 / 5)
    assert metrics["margin"] == pytest.approx(2 / 4)
    assert "1 of 5 pairs could not be scored" in tables[0].note


def test_subsets_sections_and_score() -> None:
    metrics, tables = measure_pairs(EXAMPLE)
    assert named(tables, "by subset").rows == [
        ("donotanswer", 2, 1.0, 0, 1),
        ("hep-go", 1, 0.0, 0, 0),
        ("math-prm", 2, 0.5, 1, 0),
    ]
    reasoning = (0.5 * 984 + 0.0 * 164) / (984 + 164)
    assert metrics["section/reasoning"] == pytest.approx(reasoning)
    assert metrics["section/safety"] == 1.0
    assert metrics["score"] == pytest.approx((reasoning + 1.0) / 2)
    assert named(tables, "RewardBench").rows == [
        ("Safety", 1.0, 1, 5),
        ("Reasoning", pytest.approx(reasoning), 2, 7),
    ]


def test_pairs_without_a_better_answer_are_left_out() -> None:
    metrics, tables = measure_pairs([JudgedPair("x", 1.0), JudgedPair("x", -5.0, tied=True)])
    assert metrics["accuracy"] == 1.0
    assert "1 pairs without a better answer" in tables[0].note
    assert measure_pairs([JudgedPair("x", 0.0, tied=True)])[0] == {"pairs": 1.0, "failed": 0.0}


def test_the_subset_is_the_column_or_else_the_source() -> None:
    assert subset_of(prompt(subset="hep-go", source="other")) == "hep-go"
    assert subset_of(prompt(source="mine")) == "mine"
    assert subset_of(prompt()) == "all"
    assert subset_of(prompt(subset=3)) == "all"


def test_a_judge_that_likes_the_first_place_gains_nothing_from_the_data() -> None:
    rows = [pair("1", "1") for _ in range(60)]
    found = wait(evaluate_pairs(rows, scorer("LikesFirst"), settings(orders=2)))
    assert 0.3 < found.metrics["accuracy"] < 0.7  # the sides are drawn
    assert found.metrics["order_flipped"] == 1.0
    assert found.metrics["order_bias"] == pytest.approx(0.5)  # half a point for the first, none for the second
    honest = wait(evaluate_pairs([pair("2", "1"), pair("5", "1")], scorer(), settings(orders=2)))
    assert (honest.metrics["order_changed"], honest.metrics["order_bias"]) == (0.0, 0.0)
    assert honest.metrics["accuracy"] == 1.0


def test_the_whole_way_from_nouns_to_an_evaluation() -> None:
    rows = [pair("2", "1", "hep-go"), pair("1", "2", "hep-go"), pair("2", "2", "mine"), pair("2", "?", "mine")]
    found = wait(evaluate_pairs(rows, scorer(), settings()))
    assert found.metrics["accuracy"] == pytest.approx(1 / 3)
    assert found.metrics["failed"] == 0.25
    assert found.metrics["section/reasoning"] == 0.5
    assert (found.facts["kind"], found.facts["main"][0]) == ("pairs", "score")
    Fickle.asked = 0
    again = wait(evaluate_pairs([pair("a", "b")], scorer("Fickle"), settings(repeats=2)))
    assert Fickle.asked == 2
    assert again.metrics["repeat_same"] == 0.0
