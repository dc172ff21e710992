"""The steps of the arithmetic world, as a rule."""

from typing import Any

import pytest

from rewardsmith.rewards.base import CannotScore
from tests.rewards.rules.ask import problem, value

PROBLEM = {"problem": "7+5-3"}


@pytest.mark.parametrize(
    ("text", "whole", "share"),
    [
        ("7+5=12;12-3=9;#9", 1.0, 1.0),
        ("7+5=12;12-3=9;#7", 1.0, 1.0),  # the conclusion is another rule's business
        ("7+5=13;13-3=10;#10", 0.0, 0.5),
        ("7+5=13;13-3=9;#9", 0.0, 0.0),  # right, through a wrong step
        ("#9", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("7+5=12;" * 200_000, 0.0, 0.5),
        ("7+5=" + "9" * 1_000_000, 0.0, 0.0),
    ],
)
def test_all_steps_or_their_share(text: str, whole: float, share: float) -> None:
    assert value("arithmetic_steps", text, info=PROBLEM) == whole
    assert value("arithmetic_steps", text, info=PROBLEM, share=True) == share


def test_the_problem_may_come_from_a_file() -> None:
    assert value("arithmetic_steps", "7+5=12;12-3=9;#9", info={"extra_info": PROBLEM}) == 1.0


@pytest.mark.parametrize("info", [{}, {"problem": 7}, {"problem": "7*5"}, {"problem": "7" * 1_000}])
def test_a_prompt_without_a_problem_is_broken(info: dict[str, Any]) -> None:
    with pytest.raises(CannotScore, match=r"info\.problem of the prompt 'p' is .* such as 7\+5-3"):
        value("arithmetic_steps", "7+5=12;12-3=9;#9", info=info)


def test_settings_are_checked() -> None:
    assert "share" in problem("arithmetic_steps", share="yes")
