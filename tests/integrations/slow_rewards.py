"""Rewards for tests of the server."""

import asyncio
from collections.abc import Sequence

from rewardsmith import RolloutGroup, Score
from rewardsmith.rewards import CannotScore


class Slow:
    """Takes its time; an answer is worth its length."""

    def __init__(self, *, seconds: float = 0.2) -> None:
        self._seconds = seconds

    async def score(self, group: RolloutGroup) -> Sequence[Score]:
        await asyncio.sleep(self._seconds)
        return [Score(float(len(rollout.text))) for rollout in group.rollouts]


class Fails:
    """Has never a score."""

    async def score(self, group: RolloutGroup) -> Sequence[Score]:
        raise CannotScore("refused", 'no "credits"', attempts=3)


class NeverReady:
    """Its check fails."""

    async def score(self, group: RolloutGroup) -> Sequence[Score]:
        raise AssertionError

    async def check(self) -> None:
        raise ConnectionRefusedError("nobody there")
