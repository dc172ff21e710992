"""Rewards: what a group of rollouts is worth. One protocol, one literal dictionary of names."""

from typing import Any

from rewardsmith.components import Choice, build
from rewardsmith.rewards.compose import Sum
from rewardsmith.rewards.protocol import CannotScore, Reward
from rewardsmith.rewards.rule import Rule

REWARDS: dict[str, type[Reward]] = {
    "rule": Rule,
    "sum": Sum,
}


def make_reward(table: str | dict[str, Any]) -> Reward:
    """Return the reward that a recipe table describes: `make_reward({"type": "rule", "rule": "exact"})`."""
    reward: Reward = build(Choice("reward", "rewardsmith.rewards:REWARDS", methods=("score",)), table)
    return reward


__all__ = ["REWARDS", "CannotScore", "Reward", "Rule", "Sum", "make_reward"]
