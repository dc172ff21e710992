"""Reward functions of TRL by path and as objects: called as TRL calls them, and None is a failure."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import rewardsmith as rs
from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score, UserError
from rewardsmith.integrations.trl_reward import from_trl
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.trl_function import TrlFunction
from tests.rewards.trl_files import rewards

FILE = str(Path(rewards.__file__))
PROMPT = Prompt("p", [Message("system", "be brief"), Message("user", "question")], answer="42", info={"level": 2})


def scores(reward: Any, *texts: str, prompt: Prompt = PROMPT) -> list[Score]:
    return list(asyncio.run(reward.score(RolloutGroup(prompt, [Rollout(text, [1, 2]) for text in texts]))))


def kinds(found: list[Score]) -> list[float | str]:
    return [score.value if score.failure is None else score.failure.kind for score in found]


def pair(name: str, **settings: Any) -> list[Any]:
    """The function by path and as an object."""
    return [TrlFunction(path=FILE, name=name, **settings), from_trl(getattr(rewards, name), **settings)]


def test_values_columns_and_logged_columns() -> None:
    for reward in pair("right"):
        found = scores(reward, "42", "41")
        assert kinds(found) == [1.0, 0.0]
        assert [score.feedback for score in found] == ['{"said": "42"}', '{"said": "41"}']
    for reward in pair("of_text", conversational=False):
        assert kinds(scores(reward, "abc")) == [5.0]
    for reward in pair("waits"):
        assert kinds(scores(reward, "abc", "a")) == [3.0, 1.0]


def test_none_is_a_failure_and_not_zero() -> None:
    for reward in pair("right"):
        (failed,) = scores(reward, "42", prompt=Prompt("q", [Message("user", "question")]))
        assert failed.failure.kind == "invalid"
        assert "returned None" in failed.failure.detail


def test_what_is_no_number_fails_alone() -> None:
    for reward in pair("odd"):
        assert kinds(scores(reward, "ok", "nan", "none", "text", "list")) == [
            1.0,
            "invalid",
            "invalid",
            "crashed",
            "crashed",
        ]


def test_a_text_that_raises_hangs_or_ends_the_process_fails_alone() -> None:
    reward = TrlFunction(path=FILE, name="odd", deadline=0.5)
    assert kinds(scores(reward, "ok", "raise", "hang", "exit")) == [1.0, "crashed", "timeout", "crashed"]


def test_ranks_are_not_computed_alone() -> None:
    for reward in pair("ranks", whole=True):
        assert rs.reward(reward).needs_whole_groups
        assert kinds(scores(reward, "b", "a", "c")) == [1.0, 0.0, 2.0]


def test_a_wrong_number_of_values_fails_the_group() -> None:
    found = scores(TrlFunction(path=FILE, name="too_few", whole=True), "a", "b")
    assert kinds(found) == ["crashed", "crashed"]
    assert "1 values for 2" in found[0].failure.detail


def test_in_a_recipe_table_with_checks() -> None:
    table = {"type": "sum", "parts": {"right": {"type": "trl_function", "path": FILE, "name": "right"}}}
    reward = make_reward(table)
    asyncio.run(reward.check())
    assert [score.parts["right"].value for score in scores(reward, "42", "1")] == [1.0, 0.0]
    with pytest.raises(UserError, match="no such file"):
        TrlFunction(path="nowhere.py", name="right")
    wrong = TrlFunction(path=FILE, name="rihgt")
    with pytest.raises(UserError, match='Did you mean "right"'):
        asyncio.run(wrong.check())
    with pytest.raises(UserError, match="function"):
        from_trl(3)
