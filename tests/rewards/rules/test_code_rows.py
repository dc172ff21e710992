"""The code rule and its surroundings: rows of other systems, answers as chat models write them, the health check."""

import asyncio

import pytest

from rewardsmith import Message, Prompt, UserError
from rewardsmith.rewards import CannotScore, make_reward
from rewardsmith.rewards.rules.code_rule import code, extract
from rewardsmith.rewards.tree import check


def test_what_cannot_work_is_said_before_the_first_step() -> None:
    table = {"type": "rule", "rule": {"type": "code", "total": 90.0}}
    with pytest.raises(UserError, match=r"total = 90 s for the tests, but the rule's deadline is 60 s"):
        asyncio.run(check(make_reward(table)))
    asyncio.run(check(make_reward(table | {"deadline": 120.0})))


@pytest.mark.parametrize("lead", ["Sure: ", "</think>", "Here it is, as asked:\t"])
def test_a_fence_may_open_behind_words(lead: str) -> None:
    assert extract(f"{lead}```python\nx = 1\n```\nDone.") == "x = 1"


def test_tests_that_call_a_function_without_its_name_are_invalid() -> None:
    tests = [{"input": "[1, 2]\n3", "output": "4", "testtype": "functional"}]
    with pytest.raises(CannotScore, match="no fn_name"):
        code(Prompt("p", [Message("user", "?")], answer=tests), "```python\nx = 1\n```")


def test_tests_may_lie_in_the_extra_info_of_a_row() -> None:
    prompt = Prompt("p", [Message("user", "?")], info={"extra_info": {"tests": ["assert add(1, 2) == 3"]}})
    assert code(prompt, "```python\ndef add(a, b):\n    return a + b\n```") == 1.0
