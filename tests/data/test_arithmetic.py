"""The arithmetic world: its size, its truth, its split and its slips."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import UserError
from rewardsmith.data.arithmetic import LARGEST, Arithmetic, check_steps, problems, solution


def first(n: int, iterator):
    return list(itertools.islice(iterator, n))


@pytest.mark.parametrize(("operations", "count"), [(1, 126), (2, 1_815), (3, 25_992)])
def test_the_number_of_problems(operations: int, count: int) -> None:
    every = list(problems(operations))
    assert len(every) == len(set(every)) == count


def test_the_solution_shows_every_step() -> None:
    assert solution("7+5-3") == "7+5=12;12-3=9;#9"


@given(st.sampled_from(list(problems(2))))
def test_solutions_are_true_and_stay_in_range(problem: str) -> None:
    text = solution(problem)
    for a, sign, b, result in re.findall(r"(\d+)([+-])(\d+)=(\d+)", text):
        assert int(result) == (int(a) + int(b) if sign == "+" else int(a) - int(b))
        assert 0 <= int(result) <= LARGEST
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
        ("7+5=" + "9" * 100_000, [False, False]),
        ("٧+5=12;12-3=9", [False, False]),  # digits of another script are not ours
    ],
)
def test_steps_are_checked_one_by_one(text: str, verdicts: list[bool]) -> None:
    assert check_steps("7+5-3", text) == verdicts


@given(st.text(max_size=200))
def test_any_text_can_be_checked(text: str) -> None:
    assert len(check_steps("7+5-3", text)) == 2


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


def test_a_prompt_holds_its_truth() -> None:
    prompt = Arithmetic().prompt("7+5-3")
    assert prompt.messages[0].content == "7+5-3?"
    assert (prompt.answer, prompt.source, prompt.info["problem"]) == ("9", "arithmetic", "7+5-3")


def test_careful_demonstrations_are_right() -> None:
    world = Arithmetic(forgets_carry=0.0, slips=0.0)
    for shown in first(100, world.demonstrations(seed=0)):
        assert shown.response == solution(shown.prompt.info["problem"])


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


@pytest.mark.parametrize("problem", ["", "7", "7+", "12+3", "7*5", "7+5?", "٧+5"])
def test_what_is_not_a_problem_is_refused(problem: str) -> None:
    with pytest.raises(ValueError, match="not a problem"):
        solution(problem)


def test_a_split_without_problems_is_an_error_and_not_an_endless_search() -> None:
    with pytest.raises(UserError, match=r"held_out is 0\.0"):
        Arithmetic(split="held-out", held_out=0.0)
    empty = Arithmetic(operations=1, split="held-out", held_out=0.001)
    with pytest.raises(UserError, match="no problem with 1 operations"):
        next(empty.prompts(seed=0))
