"""The letter of an option."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.text.choices import choice
from tests.rewards.hostile import hostile, megabytes

# Labelled texts over the options A to E: those that choose B, those that choose B in a way that is not read on purpose
# (it is too close to a way of not choosing B), and those that choose none or several.
READINGS = json.loads(Path(__file__).with_name("choice_readings.json").read_text(encoding="utf-8"))


CHOICES: dict[str | None, list[str]] = {
    "B": [
        *("B", "b", "\\boxed{B}", "\\boxed{\\text{B}}", "\\boxed{\\textbf{(B)}\\ 42}", "\\boxed{B. 42}"),
        *("It is not (A). The answer is (B).", "The answer is B", "The answer is **B**.", "Answer: b"),
        *("Let us see.\nB.", "Let us see.\n\n**(B)**\n", "B. Paris", "(B) Paris", "A. 1\nB. 2\nThe answer is B."),
    ],
    "C": [
        *("(C)", "The correct answer is option C, as shown.", "The answer is A.\nOn reflection, the answer is C."),
        "Option C is the right one.",
    ],
    "D": [
        "**D**",
    ],
    "E": [
        "Answer: E",
    ],
    "A": [
        *("answer is A.", "The answer is A because it is.", "The answer is A: it is."),
    ],
    None: [
        *("We choose **B** here.", "Hence **B. Paris** it is.", "", "A dog is an animal."),
        *("I think so. A dog barks.", "The answer is A matter of taste", "The answer is a matter of taste"),
        *("The answer is I do not know", "The answer is E = mc^2", "The answer is B or C"),
        *("The answer is (B), (C)", "\\boxed{A, C}", "\\boxed{42}", "(A) 1 (B) 2"),
        *("(A) is wrong\n(B) is right\nas I said", "F", "The answer is Both", "Vitamin B12 and E.coli"),
        "It's C's turn",
    ],
}


def test_choice() -> None:
    for letter, texts in CHOICES.items():
        assert {text: choice(text) for text in texts} == dict.fromkeys(texts, letter)


def test_labelled_texts() -> None:
    assert {text: choice(text) for text in READINGS["B"]} == dict.fromkeys(READINGS["B"], "B")
    none = READINGS["none"] + READINGS["unread"]
    assert {text: choice(text) for text in none} == dict.fromkeys(none)


def test_hostile_texts() -> None:
    for text in [*hostile(), *megabytes().values()]:
        assert choice(text) in {None, "A", "B", "C", "D", "E"}


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert choice(text) in {None, "A", "B", "C", "D", "E"}
