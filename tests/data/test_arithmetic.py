"""The arithmetic world: its size, its truth, its split and its slips."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import UserError
from rewardsmith.data.arithmetic import (
    MAX_VALUE,
    Arithmetic,
    answer,
    check_steps,
    concludes,
    miracle,
    points,
    problems,
    solution,
)


def first(n: int, iterator):
    return list(itertools.islice(iterator, n))


@given(st.sampled_from(list(problems(2))))
def test_solutions_are_true_and_stay_in_range(problem: str) -> None:
    text = solution(problem)
    for a, sign, b, result in re.findall(r"(\d+)([+-])(\d+)=(\d+)", text):
        assert int(result) == (int(a) + int(b) if sign == "+" else int(a) - int(b))
        assert 0 <= int(result) <= MAX_VALUE
    assert all(check_steps(problem, text))


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


def test_held_out_problems_are_never_in_training() -> None:
    train = {p.id for p in first(3_000, Arithmetic(operations=2, split="train").prompts(seed=0))}
    held_out = {p.id for p in first(3_000, Arithmetic(operations=2, split="held-out").prompts(seed=0))}
    assert not train & held_out
    assert 0.06 < len(held_out) / 1_815 < 0.14


def test_the_same_seed_gives_the_same_prompts() -> None:
    world = Arithmetic()
    assert first(50, world.prompts(seed=3)) == first(50, world.prompts(seed=3))
    assert first(50, world.prompts(seed=3)) != first(50, world.prompts(seed=4))
    assert first(50, world.demonstrations(seed=3)) == first(50, world.demonstrations(seed=3))


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


# ---- miracles ------------------------------------------------------------------------------------------------------


@given(st.sampled_from(list(problems(2))))
def test_a_miracle_is_right_and_has_no_sound_step(problem: str) -> None:
    text = miracle(problem)
    assert text.endswith(f"#{answer(problem)}")
    assert check_steps(problem, text) == [False, False]
    assert concludes(problem, text)


# ---- the rubric ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operations", [1, 5, 16])
def test_a_rubric_has_ten_points_and_something_for_each_step(operations: int) -> None:
    for prompt in first(40, Arithmetic(operations=operations).prompts(seed=1)):
        worth = points(prompt.info["problem"])
        assert len(worth) == operations + 1
        assert sum(worth) == 10
        assert min(worth) > 0
        named = [float(number) for number in re.findall(r"[0-9.]+", prompt.info["criteria"])]
        assert tuple(named) == worth
