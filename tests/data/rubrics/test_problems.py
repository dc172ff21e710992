"""Rows as problems and solutions: what is read, and what is wrong with those that cannot be."""

from typing import Any

import pytest

from rewardsmith import Message, Prompt
from rewardsmith.data.rows import Layout, RowError
from rewardsmith.data.rubrics.problems import (
    ProblemRows,
    SolutionRows,
    answers_of,
    digest_of,
    truths_of,
)

CRITERIA = [{"name": "right", "points": 6.0, "text": "It is right."}, {"name": "shown", "points": 4, "text": "Shown."}]
PROBLEM = {"prompt": "6 · 7?", "reward_model": {"ground_truth": "42"}, "extra_info": {"solution": "6 · 7 = 42"}}
SOLVED = {"prompt": "6 · 7?", "extra_info": {"criteria": CRITERIA}, "responses": ["42", "41"]}


def problem(row: dict[str, Any], **settings: Any) -> Any:
    return ProblemRows(Layout(), **settings).read(row, "file", 3)


def solutions(row: dict[str, Any], **settings: Any) -> Any:
    return SolutionRows(Layout(), **settings).read(row, "file", 3)


def test_a_problem() -> None:
    found = problem(PROBLEM)
    assert (found.question, found.answers, found.solution) == ("6 · 7?", ("42",), "6 · 7 = 42")
    assert (found.prompt.id, found.row) == ("file-3", PROBLEM)
    assert problem({"prompt": "?"}).answers == ()
    assert problem({"prompt": "?", "solution": "top"} | {"extra_info": {"solution": "in"}}).solution == "top"
    assert problem({"prompt": "?", "proof": "this"}, solution="proof").solution == "this"
    chat = [{"role": "system", "content": "Box it."}, {"role": "user", "content": "6 · 7?"}]
    assert problem({"prompt": chat}).question == "6 · 7?"
    assert problem({"prompt": chat, "extra_info": {"question": "raw"}}).question == "raw"


BAD_PROBLEMS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"question": "?"}, {}, "there is no prompt"),
    ({"prompt": "  "}, {}, "prompt is blank"),
    ({"prompt": 7}, {}, "prompt is 7"),
    ({"prompt": "?", "extra_info": "x"}, {}, 'extra_info is "x": it must be a table'),
    ({"prompt": "?", "criteria": "be right"}, {}, "the row has criteria already: add --replace"),
    ({"prompt": "?", "extra_info": {"criteria": CRITERIA}}, {}, "the row has criteria already"),
    ({"prompt": "?", "proof": 7}, {"solution": "proof"}, "proof is 7: a reference solution is text"),
    ({"prompt": "?", "prof": "x"}, {"solution": "proof"}, 'Did you mean "prof"?'),
]


@pytest.mark.parametrize(("row", "settings", "message"), BAD_PROBLEMS)
def test_rows_that_are_no_problem(row: dict[str, Any], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RowError) as caught:
        problem(row, **settings)
    assert message in str(caught.value)


def test_criteria_may_be_replaced() -> None:
    assert problem({"prompt": "?", "criteria": "x", "extra_info": None}, replace=True).question == "?"


@pytest.mark.parametrize(
    ("answer", "truths", "answers"),
    [
        (None, (), ()),
        ("72", ("72",), ("72",)),
        (72, ("72",), ("72",)),
        (["1/2", "0.5", None], ("1/2", "0.5"), ("1/2", "0.5")),
        ("48/2 = 24\n#### 72", ("48/2 = 24\n#### 72",), ("72",)),
        ({"a": 1}, (), ()),
        (["", "  "], ("", ""), ()),
    ],
)
def test_answers(answer: object, truths: tuple[str, ...], answers: tuple[str, ...]) -> None:
    prompt = Prompt("p", [Message("user", "?")], answer=answer)
    assert truths_of(prompt) == truths
    assert answers_of(prompt) == answers


def test_solutions() -> None:
    first, second = solutions(SOLVED)
    assert (first.response, second.response, second.number) == ("42", "41", 1)
    assert first.shown == "1. (points: 6) It is right.\n2. (points: 4) Shown."
    assert first.total == 10
    assert first.criteria == [{**CRITERIA[0]}, {**CRITERIA[1], "points": 4.0}]
    assert (first.right, first.sound) == (None, None)
    assert first.prompt == second.prompt
    assert "responses" not in first.prompt.info


def test_what_a_row_says_of_its_solutions() -> None:
    found = solutions({**SOLVED, "right": [True, None], "sound": [0, 1]})
    assert [(one.right, one.sound) for one in found] == [(True, False), (None, True)]
    (one,) = solutions({"prompt": "?", "criteria": "be right", "response": "42", "right": False})
    assert (one.right, one.shown, one.total, one.criteria) == (False, "be right", 10.0, "be right")
    assert solutions({"prompt": "?", "criteria": "be right", "response": "42"}, total=5)[0].total == 5
    assert solutions({"prompt": "?", "rubric": "a", "said": ["42"]}, field="rubric", responses="said")[0].shown == "a"


BAD_SOLUTIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "?", "criteria": "x"}, "there is no responses and no response: --response-column says where"),
    ({**SOLVED, "responses": []}, "responses is an empty list"),
    ({**SOLVED, "responses": ["a", 3]}, "responses[1] is 3: a solution is text"),
    ({**SOLVED, "responses": None, "response": {"a": 1}}, "response is a table: a solution is text"),
    ({**SOLVED, "right": [True]}, "right is a list of 1: beside 2 solutions it must be a list of as many"),
    ({**SOLVED, "right": True}, "right is true: beside 2 solutions"),
    ({**SOLVED, "sound": ["yes", True]}, 'sound[0] is "yes": it must be true or false'),
    (
        {**SOLVED, "extra_info": {}},
        "the row has no 'criteria': text, or a list of criteria. `rewardsmith prepare rubric`",
    ),
    ({**SOLVED, "criteria": [{"text": "a", "points": -1}, "b"]}, "criteria has negative points"),
    ({**SOLVED, "criteria": [{"points": 1}]}, "entry 1 of 'criteria' of the row has no text"),
    ({"responses": ["a"], "criteria": "x"}, "there is no prompt"),
]


@pytest.mark.parametrize(("row", "message"), BAD_SOLUTIONS)
def test_rows_that_have_no_solutions(row: dict[str, Any], message: str) -> None:
    with pytest.raises(RowError) as caught:
        solutions(row)
    assert message in str(caught.value)


def test_a_digest_depends_on_every_part() -> None:
    parts = ["a", ("b", 1), [Message("user", "x")]]
    assert digest_of(*parts) == digest_of("a", ["b", 1], (Message("user", "x"),))
    others = [["a", ("b", 2), parts[2]], ["ab", (1,), parts[2]], ["a", ("b", 1), [Message("system", "x")]]]
    assert len({digest_of(*parts), *(digest_of(*other) for other in others)}) == 4
    assert digest_of("\ud83d\ude00") != digest_of("😀")  # two halves are not the letter
