"""Steps of a text, and the tokens of each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.steps import AnswerStep, split_steps, steps_of_tokens

CASES = [
    ("", ";", []),
    ("a", ";", ["a"]),
    ("a;", ";", ["a;"]),
    ("a;b", ";", ["a;", "b"]),
    ("a;;b;", ";", ["a;;", "b;"]),  # empty steps are none
    ("a; ;b", ";", ["a;", " ;", "b"]),  # a space is something
    (";", ";", [";"]),
    (";;;", ";", [";;;"]),
    (";;a;b", ";", [";;a;", "b"]),
    ("7+5=12;12-3=9;#9", ";", ["7+5=12;", "12-3=9;", "#9"]),
    ("one\n\ntwo\nthree\n\n\nfour", "\n", ["one\n\n", "two\n", "three\n\n\n", "four"]),
    ("one\n\ntwo\nthree\n\n\nfour", "\n\n", ["one\n\n", "two\nthree\n\n", "\nfour"]),
    ("aXYbXYXYcX", "XY", ["aXY", "bXYXY", "cX"]),
    ("aaa", "aa", ["aaa"]),
    ("🙂\n漢字", "\n", ["🙂\n", "漢字"]),
]


@pytest.mark.parametrize(("text", "separator", "shown"), CASES)
def test_a_step_includes_the_separators_that_end_it(text: str, separator: str, shown: list[str]) -> None:
    assert [text[step.start : step.end] for step in split_steps(text, separator)] == shown


@given(st.text("ab;\n", max_size=40), st.sampled_from([";", "\n", ";;", "a;"]))
def test_steps_lie_side_by_side_and_each_has_something_in_it(text: str, separator: str) -> None:
    steps = split_steps(text, separator)
    assert "".join(text[step.start : step.end] for step in steps) == text
    assert [step.start for step in steps] == [0, *(step.end for step in steps)][: len(steps)]
    pieces = [piece for piece in text.split(separator) if piece]
    assert len(steps) == max(len(pieces), bool(text))


def test_megabytes_are_no_matter() -> None:
    assert len(split_steps(";" * 4_000_000, ";")) == 1
    assert len(split_steps("a;" * 200_000, ";")) == 200_000
    assert len(split_steps("a" * 4_000_000, "ab")) == 1
    steps = split_steps("a;" * 300_000, ";")
    assert steps_of_tokens(np.arange(1, 600_001), steps)[-1] == 299_999


def test_a_token_belongs_to_the_step_of_its_last_character() -> None:
    text = "ab;cd;e"
    steps = split_steps(text, ";")
    pieces = ["", "a", "b;", "", "c", "d;e", "", ""]  # special tokens say nothing, the last ones behind the end
    ends = np.cumsum([len(piece) for piece in pieces])
    assert steps_of_tokens(ends, steps).tolist() == [0, 0, 0, 0, 1, 2, 2, 2]


def test_tokens_behind_the_last_step_belong_to_it() -> None:
    assert steps_of_tokens([1, 2, 5, 9], [AnswerStep(0, 1), AnswerStep(1, 4)]).tolist() == [0, 1, 1, 1]
    assert steps_of_tokens([0, 0, 3], []).tolist() == [0, 0, 0]
    assert steps_of_tokens([], [AnswerStep(0, 1)]).tolist() == []
    assert steps_of_tokens([1], [AnswerStep(0, 1)]).dtype == np.int64


@given(st.text("ab;", max_size=30), st.lists(st.integers(0, 4), max_size=30))
def test_numbers_never_fall_and_every_token_has_a_step(text: str, widths: list[int]) -> None:
    ends = np.minimum(np.cumsum(widths, dtype=np.int64), len(text))
    steps = split_steps(text, ";")
    numbers = steps_of_tokens(ends, steps)
    assert (np.diff(numbers) >= 0).all()
    for end, number in zip(ends, numbers, strict=True):
        if steps:  # the first step that reaches so far
            assert steps[number].end >= end
            assert number == 0 or steps[number - 1].end < end
