"""Grade-school problems."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.rewards import CannotScore
from tests.rewards.rules.ask import problem, value

SOLUTION = "She sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs.\nShe makes 9 * 2 = $<<9*2=18>>18.\n#### 18"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (SOLUTION, 1.0),
        ("#### 18", 1.0),
        ("####18", 1.0),
        ("#### $18.00", 1.0),
        ("#### 18 dollars", 1.0),
        ("A: 18", 1.0),
        ("\\boxed{18}", 1.0),
        ("\\boxed{\\$18}", 1.0),
        ("The answer is 9 * 2 = 18 dollars.", 1.0),
        ("She makes $18", 1.0),
        ("She makes 18 dollars every day.", 1.0),
        ("<think>#### 17</think>#### 18", 1.0),
        ("18 it is, not 17. #### 18", 1.0),
        ("#### 17", 0.0),
        ("#### 18.5", 0.0),
        ("#### -18", 0.0),
        ("#### 1,8", 1.0),  # commas are dropped, as in the data set's own check
        ("18\n#### 17", 0.0),
        ("18 or 17", 0.0),
        ("<think>#### 18", 0.0),
        ("eighteen", 0.0),
        ("18e9999999", 0.0),
        ("The answer is not 18.", 0.0),
        ("The answer is certainly not 18.", 0.0),
        ("It is 17, not 18", 0.0),
        ("The answer is 18 or 17.", 0.0),
        ("The answer is 17 or 18.", 0.0),
        ("\\boxed{18 or 17}", 0.0),
        ("\\boxed{18, 17}", 0.0),
        ("\\boxed{17} or \\boxed{18}", 0.0),
        ("\\boxed{18 17}", 0.0),
        ("\\boxed{1 8}", 0.0),
        ("\\boxed{5 = 18}", 0.0),
        ("\\boxed{x = 5 = 18}", 0.0),
        ("\\boxed{18 \\text{ hundredths}}", 0.0),
        ("#### 18 tenths", 0.0),
        ("#### 18 million", 0.0),
        ("#### 18 dozen", 0.0),
        ("#### 18\nThat is wrong.", 0.0),
        ("\\boxed{18}. Wait, it is 17.", 0.0),
        ("12 13 14 15 16 17 18", 0.0),
        ("The answer is 18, not 17.", 1.0),
        ("The answer is 18 dollars and 0 cents.", 1.0),
        ("The answer is 18 more apples.", 1.0),
        ("\\boxed{1.5 \\text{ dozen}}", 1.0),
        ("", 0.0),
    ],
)
def test_verdicts(text: str, verdict: float) -> None:
    assert value("gsm8k", text, "18") == verdict
    assert value("gsm8k", text, SOLUTION) == verdict


def test_strictly_the_mark_of_the_data_set() -> None:
    assert value("gsm8k", "The answer is 18", "18", extract=["hash"]) == 0.0
    assert value("gsm8k", "#### 18", "18", extract=["hash"]) == 1.0


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (18, "18"),
        (18.0, "18"),
        ("1,800", "1800"),
        ("so\nA: 18", "18"),
        (["17", "18"], "18"),
        ("5/2", "2.5"),
        ("$18", "18"),
    ],
)
def test_forms_of_the_right_answer(answer: object, text: str) -> None:
    assert value("gsm8k", f"#### {text}", answer) == 1.0
    assert value("gsm8k", "#### 19", answer) == 0.0


@pytest.mark.parametrize("answer", [None, "", "many", [], {"a": 18}, ["18", "many"], "1e999"])
def test_a_broken_right_answer_is_a_failure(answer: object) -> None:
    with pytest.raises(CannotScore) as caught:
        value("gsm8k", "#### 18", answer)
    assert caught.value.kind == "invalid"


def test_settings_are_checked() -> None:
    assert "must be one of" in problem("gsm8k", extract=["####"])


@given(st.text(alphabet="abc 0123456789\n=$", max_size=60), st.integers(0, 10**9))
def test_only_what_is_marked_counts(before: str, number: int) -> None:
    assert value("gsm8k", f"{before}\n#### {number:,}", number) == 1.0
    assert value("gsm8k", f"{before}\n#### {number + 1}", number) == 0.0
