"""Final answers that have the same value, and wrong ones that do not."""

import random

import pytest

from rewardsmith.auditing.same_value import MAX_CHARS, same_value, wrong_answers
from rewardsmith.auditing.universal_answers import search_answers
from rewardsmith.rewards.rules.math import math
from tests.data.test_known_answers import prompt_of
from tests.rewards.hostile import hostile, megabytes

SAME = [
    ("\\binom{5}{3}", "\\binom{5}{2}"), ("1^{8}", "1^{7}"), ("0 \\cdot 6", "0 \\cdot 5"),
    ("\\cos(12\\pi)", "\\cos(2\\pi)"),
    ("1 \\le x \\le 3 and 1 \\le x \\le 2", "1 \\le x \\le 2"), ("0.5", "\\frac{1}{2}"), ("50%", "50"),
    ("Paris.", "paris"),
]  # fmt: skip
OTHER = [
    ("\\binom{5}{4}", "\\binom{5}{2}"), ("A", "B"), ("no", "yes"), ("1 \\le x \\le 3", "1 \\le x \\le 2"),
    ("", "9"), ("9", ""),
    ("{" * 60, "9"), ("9" * MAX_CHARS + "+0", "9" * MAX_CHARS), ("5", "\\frac{1}{"), ("x", "10^{10^{10}}"),
]  # fmt: skip


def test_values() -> None:
    assert [pair for pair in SAME if not same_value(*pair)] == []
    assert [pair for pair in OTHER if same_value(*pair)] == []


EXPECTED = {"\\binom{5}{2}": 10, "1^{7}": 1, "0 \\cdot 5": 0, "\\cos(2\\pi)": 1, "\\lfloor 7.5 \\rfloor": 7}


@pytest.mark.parametrize(("answer", "value"), EXPECTED.items())
def test_wrong_answers_of_an_expression_are_other_numbers(answer: str, value: int) -> None:
    for seed in range(10):
        made = wrong_answers(answer, random.Random(seed))
        assert len(made) == 4
        assert value not in {int(text) for text in made}


@pytest.mark.parametrize(
    "answer",
    [
        "\\binom{n}{2}",
        "(1^{7}, 3)",
        "\\{0 \\cdot 5, 1\\}",
        "\\log_2 3",
        "x=\\cos(2\\pi)",
        "1 \\le x \\le 2^{0}",
        "B",
        "yes",
    ],
)
def test_no_wrong_answer_is_paid_by_the_math_rule(answer: str) -> None:
    for seed in range(10):
        made = wrong_answers(answer, random.Random(seed))
        assert made
        assert [text for text in made if math(prompt_of(answer), f"\\boxed{{{text}}}")] == []


def test_accepted_answers_are_no_wrong_answers() -> None:
    for seed in range(20):
        made = wrong_answers("\\binom{5}{2}", random.Random(seed), accepted=["\\binom{5}{2}", "3^{2}", "\\sqrt{121}"])
        assert made
        assert not {"10", "9", "11"} & set(made)


def test_hostile_texts_are_compared() -> None:
    texts = [*hostile(30), *megabytes().values(), *search_answers(1, 100)]
    for text, truth in zip(texts, reversed(texts), strict=True):
        assert same_value(text, truth) in (True, False)
        assert len(wrong_answers(text, random.Random(0))) <= 4
