"""The flat lists of TRL's trainers as groups; tests/peers runs the trainers themselves."""

from __future__ import annotations

import asyncio

import pytest

from rewardsmith import UserError
from rewardsmith.integrations.trl_reward import trl_reward


def right(response: str, answer: str) -> float:
    return float(response == answer)


def best(responses: list[str]) -> list[float]:
    return [float(response == max(responses)) for response in responses]


def test_rows_with_one_prompt_and_different_ground_truths_are_no_group() -> None:
    reward = trl_reward(right, num_generations=4)
    rows = {"prompts": ["p"] * 4, "completions": ["a", "b", "a", "b"], "solution": ["a", "a", "b", "b"]}
    assert asyncio.run(reward(**rows)) == [1.0, 0.0, 0.0, 1.0]


def test_a_reward_of_whole_groups_refuses_rows_that_are_none() -> None:
    reward = trl_reward(best, num_generations=2)
    assert asyncio.run(reward(prompts=["p", "p", "p", "p"], completions=["a", "b", "d", "c"])) == [0.0, 1.0, 1.0, 0.0]
    with pytest.raises(UserError, match="no whole groups"):
        asyncio.run(reward(prompts=["p", "p", "q"], completions=["a", "b", "c"]))
