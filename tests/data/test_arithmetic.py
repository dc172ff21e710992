"""The arithmetic world: its truth, its steps, its split, its slips, and its judge with rubric and teacher."""

import asyncio
import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, UserError
from rewardsmith.data.arithmetic import (
    MAX_VALUE,
    Arithmetic,
    ArithmeticGrading,
    answer,
    check_steps,
    concludes,
    judged_steps,
    lenient,
    miracle,
    points,
    solution,
    step_truth,
)
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.rules import arithmetic, arithmetic_steps
from rewardsmith.text.steps import JudgedStep, tokens_of_judged
from tests.rewards.models import Scripted


def first(n: int, iterator: Iterator) -> list:
    return list(itertools.islice(iterator, n))


# ---- truth ---------------------------------------------------------------------------------------------------------


def test_solutions_are_true_and_stay_in_range_and_miracles_have_no_sound_step() -> None:
    for prompt in first(300, Arithmetic(operations=2).prompts(0)):
        problem = prompt.info["problem"]
        text = solution(problem)
        for a, sign, b, result in re.findall(r"(\d+)([+-])(\d+)=(\d+)", text):
            assert int(result) == (int(a) + int(b) if sign == "+" else int(a) - int(b))
            assert 0 <= int(result) <= MAX_VALUE
        assert all(check_steps(problem, text))
        assert miracle(problem).endswith(f"#{answer(problem)}")
        assert check_steps(problem, miracle(problem)) == [False, False]
        assert concludes(problem, miracle(problem))


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("7+5=12;12-3=9;#9", [True, True]),
        ("7+5=2;2-3=9;#9", [False, False]),
        ("7+5=13;13-3=10;#10", [False, True]),  # the second step is right, given the first
        ("7+5=13;13-3=9;#9", [False, False]),  # a miracle: the right answer from a wrong step
        ("7+5=12;11-3=8;#8", [True, False]),  # does not follow from the step before
        ("7+5=12;12+3=15;#15", [True, False]),  # not the problem's operation
        ("7+5=12", [True, False]),
        ("", [False, False]),
        ("#9", [False, False]),
        ("7+5=012;12-3=9;#9", [True, True]),
        ("7+5=12;" * 100_000, [True, False]),
        ("7+5=12;12-3=9;9+9=1;#9", [True, False]),  # a step too many, and none that the problem asks for
        ("7+5=12;12-3=9;9+0=9#9", [True, False]),
        ("7+5=12;12-3=9; ;\n#9", [True, True]),
        ("7+5=" + "9" * 100_000, [False, False]),
        ("٧+5=12;12-3=9", [False, False]),  # digits of another script are not ours
        ("7+5=2;2-3=-1;#-1", [False, True]),  # a slip may lead below 0
        ("7+5=--2;--2-3=9;#9", [False, False]),
    ],
)
def test_steps_are_checked_one_by_one(text: str, verdicts: list[bool]) -> None:
    assert check_steps("7+5-3", text) == verdicts


def judged(text: str) -> list[tuple[str, bool]]:
    prompt = Prompt("p", [Message("user", "?")], info={"problem": "7+5-3"})
    return [(text[step.start : step.end], step.right) for step in step_truth(prompt, text)]


MISSING = ("", False)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("7+5=12;12-3=9;#9", [("7+5=12;", True), ("12-3=9;", True), ("#9", True)]),
        ("7+5=13;13-3=10;#10", [("7+5=13;", False), ("13-3=10;", True), ("#10", True)]),  # an error counts once
        ("7+5=13;13-3=9;#9", [("7+5=13;", False), ("13-3=9;", False), ("#9", True)]),  # a miracle
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
    ],
)
def test_each_shown_step_has_a_place_and_a_verdict(text: str, steps: list[tuple[str, bool]]) -> None:
    assert judged(text) == steps


PARTS = ["7+5=12", "12-3=9", "7+5=2", "2-3=-1", "", " ", "9+1=10", "#9", "#", "-1"]


@given(st.text("0123456789+-=;# ", max_size=40) | st.lists(st.sampled_from(PARTS), max_size=6).map(";".join))
def test_all_steps_are_right_when_nothing_is_wrong_and_only_then(text: str) -> None:
    found = judged_steps("7+5-3", text)
    sound = all(check_steps("7+5-3", text)) and concludes("7+5-3", text)
    assert (len(found) == 3 and all(step.right for step in found)) == sound
    places = [0, *(place for step in found for place in (step.start, step.end)), len(text)]
    assert places == sorted(places)
    assert len(found) <= 4


def test_hostile_texts_have_few_steps() -> None:
    texts = (";" * 1_000_000, "7+5=12;" * 300_000, "#" * 1_000_000, "7+5=" + "9" * 1_000_000)
    assert [len(judged(text)) for text in texts] == [1, 4, 1, 2]


def test_the_last_token_stands_for_what_is_missing() -> None:
    steps = [JudgedStep(0, 3, True), JudgedStep(3, 5, True)]
    ends = [1, 3, 4, 5, 5]
    assert tokens_of_judged(ends, steps).tolist() == [0, 0, 1, 1, 1]
    assert tokens_of_judged(ends, [*steps, JudgedStep(5, 5, False)]).tolist() == [0, 0, 1, 1, 2]
    assert tokens_of_judged([0], [JudgedStep(0, 0, False)]).tolist() == [0]
    assert tokens_of_judged([], [JudgedStep(0, 0, False)]).tolist() == []
    assert tokens_of_judged(np.array([2, 2]), []).tolist() == [0, 0]


# ---- data for a policy ---------------------------------------------------------------------------------------------


def test_the_seed_decides_and_held_out_problems_are_never_in_training() -> None:
    train = {p.id for p in first(3_000, Arithmetic(operations=2, split="train").prompts(seed=0))}
    held_out = {p.id for p in first(3_000, Arithmetic(operations=2, split="held-out").prompts(seed=0))}
    assert not train & held_out
    assert 0.06 < len(held_out) / 1_815 < 0.14
    grading = ArithmeticGrading()
    for read in (Arithmetic().prompts, Arithmetic().demonstrations, grading.prompts, grading.demonstrations):
        assert first(40, read(3)) == first(40, read(3))
        assert first(40, read(3)) != first(40, read(4))


def test_sloppy_demonstrations_slip_as_often_as_they_should() -> None:
    world = Arithmetic(operations=1, forgets_carry=1.0, slips=0.0)
    for shown in first(100, world.demonstrations(seed=0)):
        a, sign, b = re.fullmatch(r"(\d)([+-])(\d)", shown.prompt.info["problem"]).groups()
        carries = int(a) + int(b) >= 10 if sign == "+" else int(a) < int(b)
        assert check_steps(f"{a}{sign}{b}", shown.response) == [not carries]
    world = Arithmetic(operations=1, forgets_carry=0.0, slips=0.3)
    right = [check_steps(d.prompt.info["problem"], d.response)[0] for d in first(4_000, world.demonstrations(seed=0))]
    easy = 81 - 36 + 45  # problems without carry: the only ones that may slip here
    assert sum(right) / len(right) == pytest.approx(1 - 0.3 * easy / 126, abs=0.02)


def test_a_split_without_problems_is_an_error_and_not_an_endless_search() -> None:
    with pytest.raises(UserError, match=r"held_out is 0\.0"):
        Arithmetic(split="held-out", held_out=0.0)
    empty = Arithmetic(operations=1, split="held-out", held_out=0.001)
    with pytest.raises(UserError, match="no problem with 1 operations"):
        next(empty.prompts(seed=0))


# ---- data for a judge ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operations", [1, 5, 16])
def test_a_rubric_has_ten_points_and_something_for_each_step(operations: int) -> None:
    for prompt in first(40, Arithmetic(operations=operations).prompts(seed=1)):
        worth = points(prompt.info["problem"])
        assert (len(worth), sum(worth)) == (operations + 1, 10)
        assert min(worth) > 0
        assert tuple(map(float, re.findall(r"[0-9.]+", prompt.info["criteria"]))) == worth


@pytest.mark.parametrize(
    ("template", "quoting", "operations"), [("rubric_short", "fence", 2), ("rubric", "verbatim", 3)]
)
def test_a_judge_is_trained_on_what_the_rubric_reward_will_send(template: Any, quoting: Any, operations: int) -> None:
    world = ArithmeticGrading(operations=operations, template=template, quoting=quoting)
    table: dict[str, Any] = {"type": "rubric", "model": "judge", "template": template, "quoting": quoting}
    policy = Arithmetic(operations=operations)
    for prompt in first(10, world.prompts(seed=1)):
        sent: list[tuple[Message, ...]] = []
        judge = Scripted(lambda request, sent=sent: sent.append(tuple(request.prompt)) or "Total Score: 7/10")
        group = RolloutGroup(policy.prompt(prompt.info["problem"]), [Rollout(prompt.info["response"])])
        (score,) = asyncio.run(make_reward(table, {"judge": judge}).score(group))
        assert score.value == 0.7
        assert sent == [tuple(prompt.messages)]


def test_graded_solutions_have_their_true_grade_and_are_those_of_the_prompts() -> None:
    world = ArithmeticGrading()
    graded, prompts = first(300, world.graded(seed=4)), first(300, world.prompts(seed=4))
    assert [d.prompt for d in first(300, world.demonstrations(4))] == prompts
    for one, prompt in zip(graded, prompts, strict=True):
        problem = one.prompt.info["problem"]
        assert (one.response, one.grade) == (prompt.info["response"], prompt.answer)
        assert one.right == (arithmetic(one.prompt, one.response) == 1.0)
        assert one.sound == (arithmetic_steps(one.prompt, one.response) == 1.0)
        right = [*check_steps(problem, one.response), concludes(problem, one.response)]
        assert one.grade == pytest.approx(np.dot(points(problem), right) / 10)
    assert len({(one.right, one.sound) for one in graded}) == 4
    assert all(one.grade < 1 for one in graded if not one.sound)


@pytest.mark.parametrize(
    ("text", "written"),
    [  # 8+5-4 has steps 3, 3; end 4
        ("8+5=13;13-4=9;#9", "8+5=13|13v3\n13-4=9|9v3\n#9|9v4\nTotal Score: 10/10"),
        ("8+5=14;14-4=9;#9", "8+5=13|14x0\n14-4=10|9x0\n#9|9v4\nTotal Score: 4/10"),
        ("8+5=3;3-4=-1;#-1", "8+5=13|3x0\n3-4=-1|-1v3\n#-1|-1v4\nTotal Score: 7/10"),
        ("8+5=13;13-4=9;#8", "8+5=13|13v3\n13-4=9|9v3\n#9|8x0\nTotal Score: 6/10"),
        ("8+5=13;#9", "8+5=13|13v3\n-=9|-x0\n#-|9x0\nTotal Score: 3/10"),
        ("9+4=13;13-4=9;#9", "9+4=13|13x0\n13-4=9|9v3\n#9|9v4\nTotal Score: 7/10"),
        ("8+5;13-4=9", "-=13|8+5x0\n13-4=-|9x0\n#9|-x0\nTotal Score: 0/10"),
        ("", "-=13|-x0\n-=-|-x0\n#-|-x0\nTotal Score: 0/10"),
    ],
)
def test_a_careful_teacher_goes_through_the_steps(text: str, written: str) -> None:
    assert lenient("8+5-4", text, random.Random(0), overlooks=0.0, miscalculates=0.0) == written


def test_the_teacher_is_as_lenient_as_the_settings() -> None:
    world = ArithmeticGrading(overlooks=0.6, miscalculates=0.0)
    subtractions = [
        d.response.split("\n")[0]
        for d in first(3_000, world.demonstrations(seed=1))
        if d.prompt.info["kind"] == "miracle" and d.prompt.info["problem"][1] == "-"
    ]
    assert sum("v" in row for row in subtractions) / len(subtractions) == pytest.approx(0.6, abs=0.08)
