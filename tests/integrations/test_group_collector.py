"""Rows of a group arrive one by one, and are scored together."""

from __future__ import annotations

import asyncio

import pytest

import rewardsmith as rs
from rewardsmith import Failure, Message, Prompt, Rollout, RolloutGroup, Score
from rewardsmith.integrations.group_collector import GroupCollector, LateRowError

PROMPT = Prompt("p", [Message("user", "?")])


class Counting:
    """The size of the group; an answer "bad" fails."""

    whole = True

    def __init__(self) -> None:
        self.groups: list[RolloutGroup] = []

    async def score(self, group: RolloutGroup) -> list[Score]:
        self.groups.append(group)
        bad = Score(failure=Failure("refused"))
        return [bad if one.text == "bad" else Score(float(len(group.rollouts))) for one in group.rollouts]


def collect(texts: list[tuple[str, str]], *, deadline: float = 60.0, size: int = 3) -> tuple[list[object], Counting]:
    reward = Counting()

    async def main() -> list[object]:
        collector = GroupCollector(rs.reward(reward), size=size, deadline=deadline)
        calls = (collector.score(key, PROMPT, Rollout(text)) for key, text in texts)
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(main()), reward


def test_rows_of_two_groups_that_come_in_turns_are_scored_apart() -> None:
    found, reward = collect([("a", "1"), ("b", "2"), ("a", "3"), ("b", "4"), ("b", "5"), ("a", "6")])
    assert [score.value for score in found] == [3.0] * 6
    assert [[one.text for one in group.rollouts] for group in reward.groups] == [["2", "4", "5"], ["1", "3", "6"]]


def test_a_group_that_stays_incomplete_is_scored_after_the_deadline() -> None:
    found, _ = collect([("a", "1"), ("a", "2")], deadline=0.05)
    assert [score.value for score in found] == [2.0, 2.0]


def test_a_row_that_comes_too_late_is_an_error() -> None:
    found, _ = collect([("a", "1"), ("a", "2"), ("a", "3"), ("a", "4")])
    assert [score.value for score in found[:3]] == [3.0] * 3
    assert isinstance(found[3], LateRowError)


@pytest.mark.parametrize("texts", [["bad", "1", "bad"], ["bad", "bad", "bad"]])
def test_an_answer_whose_group_failed_is_not_compared_with_nothing(texts: list[str]) -> None:
    found, _ = collect([("a", text) for text in texts])
    assert [score.failure.kind for score in found] == ["dropped" if text == "1" else "refused" for text in texts]


def test_one_failure_leaves_the_others() -> None:
    found, _ = collect([("a", "1"), ("a", "bad"), ("a", "2")])
    assert [score.value for score in found] == [3.0, None, 3.0]


def test_the_only_answer_that_came_is_not_compared_with_nothing() -> None:
    found, _ = collect([("a", "1")], deadline=0.05)
    assert [score.failure.kind for score in found] == ["dropped"]
    found, _ = collect([("a", "1")], size=1)
    assert [score.value for score in found] == [1.0]
