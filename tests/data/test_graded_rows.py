"""Answers with grades from files: shares, points, what is known of the answer, and what is refused."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewardsmith import Graded, Message, Prompt, UserError
from rewardsmith.data import Jsonl
from tests.data.rows import BOTH, write, write_lines, wrong


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Jsonl]:
    return functools.partial(write_lines, tmp_path)


GRADED = {"prompt": "7+5?", "response": "12", "grade": 0.75}


@BOTH
def test_a_row_becomes_a_graded_answer(kind: type, tmp_path: Path) -> None:
    criteria = [{"name": "sum", "points": 10}]
    row = GRADED | {"id": "x", "right": True, "sound": False, "extra_info": {"criteria": criteria}}
    source = kind(path=str(write(kind, tmp_path, [row])))
    source.check(of="graded")
    prompt = Prompt("x", [Message("user", "7+5?")], info={"extra_info": {"criteria": criteria}})
    assert list(source.graded(0)) == [Graded(prompt, "12", 0.75, right=True, sound=False)]


@pytest.mark.parametrize(
    ("row", "settings", "grade"),
    [
        ({"grade": 0}, {}, 0.0),
        ({"grade": 1}, {}, 1.0),
        ({"model": {"is_correct": False}}, {"columns": {"grade": "model.is_correct"}}, 0.0),
        ({"points": 7, "out_of": 10}, {}, 0.7),
        ({"points": 7}, {"out_of": 10}, 0.7),
        ({"points": 7, "out_of": 14}, {"out_of": 10}, 0.5),
        ({"grade": 0.25, "points": 7, "out_of": 10}, {}, 0.25),
        ({"grade": 7}, {"columns": {"points": "grade"}, "out_of": 10}, 0.7),
        ({"grade": 1}, {"columns": {"points": "grade"}, "out_of": 10}, 0.1),
        ({"grade": 1, "marks": 3, "total": 4}, {"columns": {"points": "marks", "out_of": "total"}}, 0.75),
        ({"grade": 1, "marks": 3}, {"columns": {"points": "marks", "grade": "grade"}}, 1.0),
        ({"grade": 1}, {"columns": {"points": "marks"}}, 1.0),
        ({"marks": 3, "total": 4}, {"columns": {"points": "marks", "out_of": "total"}}, 0.75),
        ({"teacher": {"share": 0.5}}, {"columns": {"grade": "teacher.share"}}, 0.5),
    ],
)
def test_grades_and_points(jsonl: Callable[..., Jsonl], row: dict, settings: dict, grade: float) -> None:
    source = jsonl({"prompt": "q", "response": "r", **row}, **settings)
    source.check(of="graded")
    (graded,) = source.graded(0)
    assert graded.grade == grade


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"prompt": "q", "grade": 1},
        "there is no response: response_column says where a row has the answer that was graded",
    ),
    (
        {"prompt": "q", "response": "r", "grad": 1},
        "there is no grade and no points: columns.grade says where a row has a",
    ),
    ({"response": "r", "grade": 1}, "there is no prompt and no messages"),
    (GRADED | {"response": ["r"]}, "response is a list of 1: it must be text"),
    (GRADED | {"response": "\ud800"}, "response: Graded.response has a lone surrogate"),
    (GRADED | {"grade": 7}, 'grade is 7: from 0 to 1. For points, set columns.points = "grade" and out_of'),
    (GRADED | {"grade": -0.1}, "grade is -0.1: from 0 to 1"),
    (GRADED | {"grade": "A"}, 'grade is "A": it must be a number'),
    (GRADED | {"right": "yes"}, 'right is "yes": it must be true or false'),
    (GRADED | {"sound": 2}, "sound is 2: it must be true or false"),
    (GRADED | {"grade": None, "points": 3}, "there is no out_of for points: out_of says how many points there are"),
    (GRADED | {"grade": None, "points": 11, "out_of": 10}, "points is 11 out of 10: from 0 to the points that there"),
    (GRADED | {"grade": None, "points": -1, "out_of": 10}, "points is -1 out of 10"),
    (GRADED | {"grade": None, "points": 0, "out_of": 0}, "points is 0 out of 0"),
]


@pytest.mark.parametrize(("row", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_a_bad_grade_is_named_with_its_line(jsonl: Callable[..., Jsonl], row: dict[str, Any], message: str) -> None:
    source = jsonl(GRADED, row, shuffle=False)
    told = wrong(source, of="graded")
    assert told.startswith("1 of 2 rows cannot be used:")
    assert "line 2" in told
    assert message in told
    with pytest.raises(UserError, match="line 2"):
        list(source.graded(0))
