"""The letter of an option."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.choices import choice
from tests.rewards.hostile import hostile, megabytes

# Labelled texts over the options A to E: those that choose B, those that choose B in a way that is not read on purpose
# (it is too close to a way of not choosing B), and those that choose none or several.
READINGS = json.loads(Path(__file__).with_name("choice_readings.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(C)", "C"),
        ("**D**", "D"),
        ("\\boxed{B}", "B"),
        ("\\boxed{\\text{B}}", "B"),
        ("\\boxed{\\textbf{(B)}\\ 42}", "B"),
        ("\\boxed{B. 42}", "B"),
        ("It is not (A). The answer is (B).", "B"),
        ("The answer is B", "B"),
        ("The answer is **B**.", "B"),
        ("The correct answer is option C, as shown.", "C"),
        ("Answer: E", "E"),
        ("Answer: b", "B"),
        ("answer is A.", "A"),
        ("The answer is A because it is.", "A"),
        ("The answer is A: it is.", "A"),
        ("The answer is A.\nOn reflection, the answer is C.", "C"),
        ("Let us see.\nB.", "B"),
        ("Let us see.\n\n**(B)**\n", "B"),
        ("B. Paris", "B"),
        ("(B) Paris", "B"),
        ("We choose **B** here.", None),
        ("Hence **B. Paris** it is.", None),
        ("Option C is the right one.", "C"),
        ("A. 1\nB. 2\nThe answer is B.", "B"),
        ("", None),
        ("A dog is an animal.", None),
        ("I think so. A dog barks.", None),
        ("The answer is A matter of taste", None),
        ("The answer is a matter of taste", None),
        ("The answer is I do not know", None),
        ("The answer is E = mc^2", None),
        ("The answer is B or C", None),
        ("The answer is (B), (C)", None),
        ("\\boxed{A, C}", None),
        ("\\boxed{42}", None),
        ("(A) 1 (B) 2", None),
        ("(A) is wrong\n(B) is right\nas I said", None),
        ("F", None),
        ("The answer is Both", None),
        ("Vitamin B12 and E.coli", None),
        ("It's C's turn", None),
    ],
)
def test_choice(text: str, letter: str | None) -> None:
    assert choice(text) == letter


@pytest.mark.parametrize("text", READINGS["B"])
def test_a_text_that_chooses_one_option_is_read(text: str) -> None:
    assert choice(text) == "B"


@pytest.mark.parametrize("text", READINGS["none"] + READINGS["unread"])
def test_a_text_that_chooses_none_or_several_is_not_taken_for_one(text: str) -> None:
    assert choice(text) is None


def test_hostile_texts() -> None:
    for text in [*hostile(), *megabytes().values()]:
        assert choice(text) in {None, "A", "B", "C", "D", "E"}


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert choice(text) in {None, "A", "B", "C", "D", "E"}
