"""What a user's own reward does wrong ends in a failure or an error that names it, never in a traceback."""

from typing import Any

import pytest

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score, UserError
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.tree import unfit

HERE = "tests.rewards.test_own_rewards"
GROUP = RolloutGroup(Prompt("p", [Message("user", "1+1?")]), [Rollout("2"), Rollout("3")])


class Picky:
    def require(self, prompt: Prompt) -> None:
        raise KeyError("difficulty")

    async def score(self, group: RolloutGroup) -> Any:
        return [Score(1.0) for _ in group.rollouts]


class Unconnectable:
    def connect(self, models: Any) -> None:
        raise KeyError("judge")

    async def score(self, group: RolloutGroup) -> Any:
        return [Score(1.0) for _ in group.rollouts]


def truth(prompt: Prompt, text: str) -> Any:
    raise KeyError("steps")


@pytest.mark.parametrize(
    ("table", "words"),
    [(f"{HERE}:Picky", "KeyError: 'difficulty'"), ({"type": "steps", "truth": f"{HERE}:truth"}, "KeyError: 'steps'")],
)
def test_a_prompt_that_a_reward_cannot_look_at_is_unfit(table: Any, words: str) -> None:
    ((_, why),) = unfit(make_reward(table), GROUP.prompt)
    assert words in why


def test_a_reward_that_cannot_be_connected_is_named() -> None:
    table = {"type": "sum", "parts": {"mine": {"type": f"{HERE}:Unconnectable"}}}
    with pytest.raises(UserError, match=r"mine.*KeyError: 'judge'"):
        make_reward(table, models={})
