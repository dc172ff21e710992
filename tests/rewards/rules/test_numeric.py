"""Numbers within a tolerance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.rewards import CannotScore
from tests.rewards.rules.ask import problem, value


@pytest.mark.parametrize(
    ("text", "settings", "verdict"),
    [
        ("\\boxed{100}", {}, 1.0),
        ("The answer is 100.00001.", {}, 1.0),
        ("100.1", {}, 0.0),
        ("100.1", {"relative": 0.001}, 1.0),
        ("100.2", {"relative": 0.001}, 0.0),
        ("99.9", {"relative": 0.001}, 1.0),
        ("100.5", {"absolute": 0.5, "relative": 0.0}, 1.0),
        ("100.51", {"absolute": 0.5, "relative": 0.0}, 0.0),
        ("100.1", {"absolute": 0.01, "relative": 0.01}, 1.0),  # either will do
        ("100.0", {"absolute": 0.0, "relative": 0.0}, 1.0),
        ("100.0000000000000000000001", {"absolute": 0.0, "relative": 0.0}, 0.0),
        ("200/2", {"relative": 0.0}, 1.0),
        ("1e2", {"relative": 0.0}, 1.0),
        ("-100", {}, 0.0),
        ("10000%", {}, 1.0),
        ("100%", {}, 0.0),
        ("100%", {"percent": "drop"}, 1.0),
        ("10000%", {"percent": "refuse"}, 0.0),
        ("100", {"extract": ["boxed"]}, 0.0),
        ("<think>100", {}, 0.0),
        ("<think>100", {"final": "never"}, 1.0),
        ("1e99999", {}, 0.0),
        ("It is not 100", {}, 0.0),
        ("\\boxed{100 or 200}", {}, 0.0),
        ("\\boxed{50 = 100}", {}, 0.0),
        ("\\boxed{100} is wrong", {}, 0.0),
        ("\\boxed{100 \\text{ tenths}}", {}, 0.0),
        ("\\boxed{1 \\text{ hundred}}", {}, 1.0),
        ("hundred", {}, 0.0),
        ("", {}, 0.0),
    ],
)
def test_verdicts(text: str, settings: dict, verdict: float) -> None:
    assert value("numeric", text, "100", **settings) == verdict


def test_a_tenth_is_a_tenth() -> None:
    """In floating point, 0.1 + 0.2 and 0.3 differ, and so would a tolerance of 0."""
    assert value("numeric", "0.3", 0.3, relative=0.0) == 1.0
    assert value("numeric", "3/10", "0.3", relative=0.0) == 1.0


@pytest.mark.parametrize(
    ("answer", "settings"),
    [(None, {}), ("many", {}), ("", {}), ([], {}), ("1e999", {}), ("50%", {"percent": "refuse"}), (["1", "x"], {})],
)
def test_a_broken_right_answer_is_a_failure(answer: object, settings: dict) -> None:
    with pytest.raises(CannotScore) as caught:
        value("numeric", "50", answer, **settings)
    assert caught.value.kind == "invalid"


def test_several_answers() -> None:
    assert value("numeric", "2", [1, 2]) == 1.0
    assert value("numeric", "3", [1, 2]) == 0.0


def test_settings_are_checked() -> None:
    assert "absolute" in problem("numeric", absolute=-1.0)
    assert "must be one of share, drop, refuse" in problem("numeric", percent="keep")


@given(st.integers(-(10**9), 10**9), st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_tolerance_is_the_largest_difference(right: int, off: int, tolerance: int) -> None:
    verdict = value("numeric", str(right + off), right, absolute=float(tolerance), relative=0.0)
    assert verdict == float(off <= tolerance)
