"""The reward that trains a grading judge: golden values of the original, bounds, hostile text, bad truths."""

import asyncio
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score
from rewardsmith.errors import RecipeError
from rewardsmith.rewards import make_reward

NO_NUMBER, NO_MARKER = "no-number", "no-marker"


def score(answer: object, text: str | Rollout, info: Any = None, **settings: Any) -> Score:
    prompt = Prompt("p", [Message("user", "Grade this.")], answer=answer, info={"extra_info": info})
    reward = make_reward({"type": "grade_accuracy", **settings})
    rollout = Rollout(text) if isinstance(text, str) else text
    return asyncio.run(reward.score(RolloutGroup(prompt, [rollout])))[0]


# What is written; what the first program paid for it where the truth is .5 and where it is 1; the share that we read,
# or the label with which we refuse it and pay nothing.
ORIGINAL: list[tuple[str, float, float, float | str]] = [
    ("Total Score: 8/10", 0.49, 0.64, 0.8),
    ("**Total Score:** 8/10", 0.49, 0.64, 0.8),
    ("Total Score: [8/10]", 0.49, 0.64, 0.8),
    ("Total Score: 8 points", 0.49, 0.64, 0.8),
    ("Total Score: 8.", 0.49, 0.64, 0.8),
    ("| Total Score | 8/10 |", 0.49, 0.64, 0.8),
    ("Total Score: 8/10\nStep 3 has a gap.", 0.49, 0.64, 0.8),
    # it could not read these
    ("Total Score: [8]", 0.0, 0.0, 0.8),
    ("Total Score: 8 out of 10", 0.0, 0.0, 0.8),
    ("Total Score = 8/10", 0.0, 0.0, 0.8),
    ("Total Score (out of 10): 8", 0.0, 0.0, 0.8),
    (r"Total Score: \boxed{8}", 0.0, 0.0, 0.8),
    ("Total Score: 4+3=7/10", 0.0, 0.0, 0.7),
    ("Total Score: 8\nStep 3 has a gap.", 0.0, 0.0, 0.8),
    ("total score: 8/10", 0.0, 0.0, 0.8),
    # it paid for these: more than can be had, no marker, negative without bound, no number, digits with an underscore
    ("Total Score: 15/10", 0.25, 1.0, "more-than-all-points"),
    ("7", 0.64, 0.49, NO_MARKER),
    ("Total Score: -5/10", 0.0, 0.25, "negative-grade"),
    ("Total Score: -100/10", 90.25, 100.0, "negative-grade"),
    ("Total Score: -inf", math.inf, math.inf, NO_NUMBER),
    ("Total Score: nan", 0.25, 1.0, NO_NUMBER),
    ("Total Score: inf", 0.25, 1.0, NO_NUMBER),
    ("Total Score: 1_0", 0.25, 1.0, NO_NUMBER),
    # it did not look at what stands after the stroke
    ("Total Score: 8/20", 0.49, 0.64, 0.4),
]


@pytest.mark.parametrize(("text", "half", "whole", "read"), ORIGINAL)
def test_the_golden_table(text: str, half: float, whole: float, read: float | str) -> None:
    for truth, original in ((0.5, half), (1.0, whole)):
        found = score(truth, text)
        assert found.value is not None
        if isinstance(read, str):
            assert (found.value, found.label, found.parts["readable"].value) == (0.0, read, 0.0)
            failure = found.parts["error"].failure
            assert failure is not None
            assert failure.kind == "skipped"
            assert found.feedback.startswith("not parsed: ")
        else:
            assert found.value == pytest.approx((1 - abs(read - truth)) ** 2)
            assert found.value == pytest.approx(original) or original == 0.0 or "/20" in text
            assert found.parts["error"].value == pytest.approx(abs(read - truth))
            assert (found.label, found.parts["readable"].value) == ("", 1.0)


@pytest.mark.parametrize(
    ("settings", "text", "truth", "value"),
    [
        ({"power": 1}, "Total Score: 8/10", 0.5, 0.7),
        ({"power": 3}, "Total Score: 8/10", 0.5, 0.7**3),
        ({"total": 20}, "Total Score: 8", 0.4, 1.0),
        ({"total": 20}, "Total Score: 8/10", 0.8, 1.0),  # the judge's own total counts
        ({"marker": "Mark"}, "Total Score: 2/10\nMark: 8/10", 0.8, 1.0),
        ({"above": "clamp"}, "Total Score: 15/10", 1.0, 1.0),
        ({"invalid_reward": -0.5}, "no idea", 0.5, -0.5),
        ({}, "Total Score: 8/10", "0.5", 0.7**2),
        ({}, "Total Score: 8/10", " 1 ", 0.8**2),
        ({}, "Total Score: 8/10", 1, 0.8**2),
        ({}, "Total Score: 0/10", 1, 0.0),
        ({}, "Total Score: 10/10", "0", 0.0),
        ({}, "<think>Total Score: 2/10</think>\nTotal Score: 8/10", 0.8, 1.0),
        ({"read": "number"}, "Fluent, one slip.\n7", 0.8, 0.9**2),
        ({"read": "number"}, "Total Score: 7/10", 0.7, 0.0),
        ({"read": "number"}, "\n-1", 0.0, 0.0),
        ({"read": "number"}, "\n11", 1.0, 0.0),
        ({"read": "number", "above": "clamp"}, "\n11", 1.0, 1.0),
    ],
)
def test_settings(settings: dict[str, Any], text: str, truth: object, value: float) -> None:
    assert score(truth, text, **settings).value == pytest.approx(value)


@pytest.mark.parametrize(("written", "value"), [(7, 1.0), (6, 0.8), (8, 0.8), (5, 0.4), (10, 0.2), (3, 0.0), (0, 0.0)])
def test_a_table_of_credits(written: int, value: float) -> None:
    """The reward of the scalar quality judge: 0, 1, 2 and 3 points off earn 1, .8, .4 and .2."""
    steps = [1.0, 0.8, 0.4, 0.2]
    assert score(0.7, f"\n{written}", read="number", steps=steps).value == pytest.approx(value)
    assert score(0.7, f"Total Score: {written}/10", steps=steps).value == pytest.approx(value)


@pytest.mark.parametrize("text", ["Total Score: 1", "<think>hm"])
def test_a_grade_that_may_be_half_of_one_is_not_read(text: str) -> None:
    """1 may have become 10."""
    found = score(0.1, Rollout(text, stop_reason="length"))
    assert (found.value, found.label) == (0.0, "truncated")
    assert score(0.1, "<think>Total Score: 1/10").label == "unfinished-thought"


@pytest.mark.parametrize(
    "answer", [None, "", "good", "nan", "inf", "8", 8, -0.1, "1.01", "0_1", True, [], [0.1, 0.2], {"A": 1}, "9" * 5000]
)
def test_a_prompt_without_a_grade_is_a_failure_and_refused_before_the_run(answer: object) -> None:
    found = score(answer, "Total Score: 8/10")
    assert found.failure is not None
    assert found.failure.kind == "invalid"
    assert "'p'" in found.failure.detail
    assert set(found.parts) == {"readable", "error"}
    reward = make_reward("grade_accuracy").reward
    with pytest.raises(Exception, match="'p'"):
        reward.require(Prompt("p", [Message("user", "?")], answer=answer))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": [0.2, 1.0]}, "none above the one before"),
        ({"steps": [0.0]}, "above 0"),
        ({"invalid_reward": 0.1}, "less than or equal to 0"),
        ({"totl": 5}, 'Did you mean "total"'),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((RecipeError, ValueError), match=message):
        make_reward({"type": "grade_accuracy", **settings})


@given(st.integers(0, 20), st.floats(0, 1), st.sampled_from(["Total Score: {}/20", "So.\n**Total Score: {} / 20**"]))
def test_the_right_grade_earns_most_and_nothing_leaves_the_bounds(points: int, truth: float, form: str) -> None:
    found = score(truth, form.format(points))
    assert found.value is not None
    assert 0 <= found.value <= 1
    assert found.value == pytest.approx(max(0.0, 1 - abs(points / 20 - truth)) ** 2)
    assert score(points / 20, form.format(points)).value == 1.0


@given(st.text(alphabet="Total Score: /0123456789.-*|[]{}\\boxed\n<think>é∞", max_size=300), st.floats(0, 1))
def test_any_text_has_a_value_within_bounds(text: str, truth: float) -> None:
    found = score(truth, text)
    assert found.value is not None
    assert 0 <= found.value <= 1
    assert (found.label == "") == (found.parts["readable"].value == 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "Total Score: " * 200_000,
        "Total Score: 8/10 + " * 100_000,
        "<think>" * 300_000,
        "9" * 3_000_000,
        "\n" * 3_000_000,
    ],
)
def test_huge_texts_end_soon(text: str) -> None:
    begun = time.monotonic()
    assert score(0.5, text).value is not None
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("extra", "text", "settings", "value"),
    [
        ({"total": 20}, "Total Score: 10", {}, 1.0),
        ({"total": 20.0}, "Total Score: 5/10", {}, 1.0),  # the judge's own total comes first
        ({"total": 4}, "2", {"read": "number"}, 1.0),
        ({"total": 20}, "Total Score: 11", {"steps": [1.0, 0.5]}, 0.5),  # one point of 20
        ({"total": None}, "Total Score: 5", {}, 1.0),
        ({"other": 1}, "Total Score: 10", {"total": 20}, 1.0),
        (None, "Total Score: 5", {}, 1.0),
    ],
)
def test_a_row_may_have_a_total_of_its_own(extra: Any, text: str, settings: dict[str, Any], value: float) -> None:
    one = score("0.5", text, info=extra, **settings)
    assert one.value == pytest.approx(value)
