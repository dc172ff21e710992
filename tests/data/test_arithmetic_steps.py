"""What the arithmetic world knows about the steps of a solution."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.data.arithmetic import STEP_TRUTHS, check_steps, concludes, judged_steps
from rewardsmith.text.steps import JudgedStep, tokens_of_judged
from rewardsmith.types import Message, Prompt


def prompt(problem: object = "7+5-3", **info: Any) -> Prompt:
    return Prompt("p", [Message("user", "?")], info={"problem": problem, **info})


def shown(text: str, problem: str = "7+5-3") -> list[tuple[str, bool]]:
    judged = STEP_TRUTHS["arithmetic"](prompt(problem), text)
    return [(text[step.start : step.end], step.right) for step in judged]


MISSING = ("", False)
CASES = [
    ("7+5=12;12-3=9;#9", [("7+5=12;", True), ("12-3=9;", True), ("#9", True)]),
    ("7+5=13;13-3=10;#10", [("7+5=13;", False), ("13-3=10;", True), ("#10", True)]),  # an error counts once
    ("7+5=13;13-3=9;#9", [("7+5=13;", False), ("13-3=9;", False), ("#9", True)]),  # a miracle
    ("7+5=12;13-3=10;#10", [("7+5=12;", True), ("13-3=10;", False), ("#10", True)]),  # does not follow
    ("7+5=12;12-3=9;#8", [("7+5=12;", True), ("12-3=9;", True), ("#8", False)]),
    ("7+5=12;oops;#9", [("7+5=12;", True), ("oops;", False), ("#9", False)]),
    (" 7+5=12 ;\n12-3=9; # 9 ", [(" 7+5=12 ;", True), ("\n12-3=9;", True), ("# 9 ", True)]),
    ("7+5=12;12-3=9;9+1=10;#9", [("7+5=12;", True), ("12-3=9;", True), ("9+1=10;", False), ("#9", True)]),
    ("7+5=12;#12", [("7+5=12;", True), ("#12", False)]),  # a step is missing: the conclusion comes too early
    ("7+5=12;;12-3=9;#9", [("7+5=12;", True), (";", False), ("12-3=9;", False), ("#9", False)]),
    ("#9", [("#9", False)]),
    ("", [MISSING]),
    ("7+5=12;12-3", [("7+5=12;", True), ("12-3", False), MISSING]),
    ("7+5=12;12-3=9;", [("7+5=12;", True), ("12-3=9;", True), MISSING]),
    ("7+5=12;12-3=9", [("7+5=12;", True), ("12-3=9", True), MISSING]),
]


@pytest.mark.parametrize(("text", "steps"), CASES)
def test_each_shown_step_has_a_place_and_a_verdict(text: str, steps: list[tuple[str, bool]]) -> None:
    assert shown(text) == steps


TEXTS = st.one_of(
    st.text("0123456789+-=;# ", max_size=40),
    st.lists(
        st.sampled_from(["7+5=12", "12-3=9", "7+5=2", "2-3=-1", "", " ", "9+1=10", "#9", "#", "-1"]), max_size=6
    ).map(";".join),
)


@given(TEXTS)
def test_all_steps_are_right_when_nothing_is_wrong_and_only_then(text: str) -> None:
    judged = judged_steps("7+5-3", text)
    sound = all(check_steps("7+5-3", text)) and concludes("7+5-3", text)
    assert (len(judged) == 3 and all(step.right for step in judged)) == sound
    places = [0, *(place for step in judged for place in (step.start, step.end)), len(text)]
    assert places == sorted(places)
    assert len(judged) <= 4


def test_hostile_texts_have_few_steps() -> None:
    assert len(shown(";" * 1_000_000)) == 1
    assert len(shown("7+5=12;" * 300_000)) == 4
    assert len(shown("#" * 1_000_000)) == 1
    assert len(shown("7+5=" + "9" * 1_000_000)) == 2


def test_the_last_token_stands_for_what_is_missing() -> None:
    judged = [JudgedStep(0, 3, True), JudgedStep(3, 5, True)]
    ends = [1, 3, 4, 5, 5]
    assert tokens_of_judged(ends, judged).tolist() == [0, 0, 1, 1, 1]
    assert tokens_of_judged(ends, [*judged, JudgedStep(5, 5, False)]).tolist() == [0, 0, 1, 1, 2]
    assert tokens_of_judged([0], [JudgedStep(0, 0, False)]).tolist() == [0]
    assert tokens_of_judged([], [JudgedStep(0, 0, False)]).tolist() == []
    assert tokens_of_judged(np.array([2, 2]), []).tolist() == [0, 0]
