"""Rewards on graded answers: values by hand, bands, thresholds, and answers about which little is known."""

import math

import pytest

from rewardsmith.console import Table
from rewardsmith.trainers.evaluate.evaluate_grades import GradedAnswer, evaluate_grades, measure_grades
from tests.trainers.evaluate.rewards import Fickle, graded, scorer, settings, wait


def named(tables: list[Table], title: str) -> Table:
    return next(table for table in tables if table.title == title)


EXAMPLE = [
    GradedAnswer(1.0, 1.0, right=True, sound=True),
    GradedAnswer(1.0, 0.8, right=True, sound=True),
    GradedAnswer(0.2, 0.8, right=True, sound=False),
    GradedAnswer(0.3, 0.3, right=True, sound=False),
    GradedAnswer(0.0, 0.1, right=False, sound=False),
    GradedAnswer(0.5, 0.3),
]


def test_deviations_by_hand() -> None:
    metrics, _ = measure_grades(EXAMPLE)
    assert metrics["mad"] == pytest.approx((0 + 0.2 + 0.6 + 0 + 0.1 + 0.2) / 6)
    assert metrics["bias"] == pytest.approx((0 - 0.2 + 0.6 + 0 + 0.1 - 0.2) / 6)
    assert metrics["exact"] == pytest.approx(2 / 6)
    assert metrics["within_0.1"] == pytest.approx(3 / 6)
    # Bands 1, 0.8 (said .8, .8; grades 1, .2), 0.3 (grades .3, .5) and 0.1.
    assert metrics["calibration_error"] == pytest.approx((0 + 2 * 0.2 + 2 * 0.1 + 0.1) / 6)
    assert (metrics["failed"], metrics["answers"]) == (0.0, 6.0)


def test_the_table_by_score_has_the_share_of_the_unsound_among_right_answers() -> None:
    _, tables = measure_grades(EXAMPLE)
    rows = {row[0]: row for row in named(tables, "by score").rows}
    assert list(rows) == [0.1, 0.3, 0.8, 1.0]
    _, count, said, grade, deviation, right, unsound = rows[0.8]
    assert (count, said, grade, deviation) == (2, pytest.approx(0.8), pytest.approx(0.6), pytest.approx(0.4))
    assert (right, unsound) == (2, 0.5)
    assert rows[0.3][5:] == (1, 1.0)  # one of the two has no truth about its steps
    assert rows[0.1][5] == 0  # a wrong answer is no false discovery
    assert math.isnan(rows[0.1][6])
    assert rows[1.0][5:] == (1, 0.0)


def test_catching_right_answers_with_unsound_steps_by_hand() -> None:
    metrics, tables = measure_grades(EXAMPLE, threshold=0.5)
    # Right answers with known steps: said 1, .8 (sound), .8, .3 (unsound).
    assert metrics["unsound"] == 0.5
    assert metrics["auc"] == pytest.approx((1 + 1 + 1 + 0.5) / 4)
    assert (metrics["precision"], metrics["recall"]) == (1.0, 0.5)
    assert metrics["f1"] == pytest.approx(2 / 3)
    # Below 0.9: three flagged, both unsound among them.
    assert metrics["f1_best"] == pytest.approx(2 * (2 / 3) * 1 / (5 / 3))
    assert metrics["threshold_best"] == pytest.approx(0.9)
    rows = named(tables, "by threshold, over right answers").rows
    assert [row[0] for row in rows] == pytest.approx([k / 10 for k in range(1, 11)])
    marks = {round(float(row[0]), 2): row[5] for row in rows if row[5]}
    assert marks == {0.5: "given", 0.9: "best"}


def test_what_failed_is_counted_and_is_no_number() -> None:
    metrics, tables = measure_grades([*EXAMPLE, GradedAnswer(0.0, math.nan, True, False)])
    assert metrics["failed"] == pytest.approx(1 / 7)
    assert metrics["mad"] == pytest.approx(measure_grades(EXAMPLE)[0]["mad"])
    assert "1 of 7 answers could not be scored" in tables[0].note
    nothing, _ = measure_grades([GradedAnswer(0.5, math.nan)])
    assert nothing == {"failed": 1.0, "answers": 1.0}


def test_the_whole_way_from_nouns_to_an_evaluation() -> None:
    rows = [graded(1.0, "0.9", True, True), graded(0.1, "0.2", True, False), graded(0.5, "well")]
    found = wait(evaluate_grades(rows, scorer(), settings()))
    assert found.metrics["mad"] == pytest.approx(0.1)
    assert found.metrics["failed"] == pytest.approx(1 / 3)
    assert found.metrics["f1"] == 1.0
    assert found.metrics["failures/reward/unparsable"] == pytest.approx(1 / 3)
    Fickle.asked = 0
    again = wait(evaluate_grades([graded(1.0, "x")], scorer("Fickle"), settings(repeats=2)))
    assert (again.metrics["repeat_same"], again.metrics["repeat_spread"]) == (0.0, pytest.approx(math.sqrt(0.5)))
