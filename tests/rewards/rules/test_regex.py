"""Regular expressions."""

import pytest

from rewardsmith.rewards import CannotScore
from tests.rewards.rules.ask import problem, value


@pytest.mark.parametrize(
    ("text", "settings", "verdict"),
    [
        ("abc 12", {"pattern": r"\d+"}, 1.0),
        ("abc", {"pattern": r"\d+"}, 0.0),
        ("abc 12", {"pattern": r"\d+", "match": "fullmatch"}, 0.0),
        (" 12\n", {"pattern": r"\d+", "match": "fullmatch"}, 1.0),
        ("ABC", {"pattern": "(?i)abc"}, 1.0),
        ("#12", {"pattern": r"#(?P<answer>\d+)"}, 1.0),
        ("#13", {"pattern": r"#(?P<answer>\d+)"}, 0.0),
        ("#13 #12", {"pattern": r"#(?P<answer>\d+)"}, 1.0),  # the last match counts
        ("#12 #13", {"pattern": r"#(?P<answer>\d+)"}, 0.0),
        ("no", {"pattern": r"no|(?P<answer>\d+)"}, 0.0),
        ("x", {"pattern": "y", "bad": -1.0}, -1.0),
        ("y", {"pattern": "y", "good": 0.5}, 0.5),
        ("<think>y</think>x", {"pattern": "y", "final": "auto"}, 0.0),
        ("<think>y", {"pattern": "y", "final": "auto"}, 0.0),
        ("<think>y", {"pattern": "y"}, 1.0),
        ("", {"pattern": "x*"}, 1.0),
    ],
)
def test_verdicts(text: str, settings: dict, verdict: float) -> None:
    assert value("regex", text, 12, **settings) == verdict


def test_the_answer_is_needed_only_where_it_is_compared() -> None:
    assert value("regex", "y", None, pattern="y") == 1.0
    with pytest.raises(CannotScore):
        value("regex", "y", None, pattern="(?P<answer>y)")


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "(?P<x", "a{999999999999}", "(?P<a>.)(?P<a>.)"])
def test_a_bad_pattern_is_found_when_the_recipe_is_read(pattern: str) -> None:
    assert "is no regular expression" in problem("regex", pattern=pattern)


def test_a_pattern_is_needed() -> None:
    assert "is missing" in problem("regex")
    assert "at least 1" in problem("regex", pattern="")
