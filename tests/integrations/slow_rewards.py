"""Rewards for tests of the server."""

import asyncio
import os
import threading
from collections.abc import Sequence

from rewardsmith import RolloutGroup, Score
from rewardsmith.errors import UserError
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


class BadSetting:
    """Cannot be made."""

    def __init__(self) -> None:
        raise UserError("seconds is 0: it must be positive")

    async def score(self, group: RolloutGroup) -> Sequence[Score]:
        raise AssertionError


def hang(response: str) -> float:
    """Never return."""
    threading.Event().wait()
    return 0.0


def end_process(response: str) -> float:
    """End the process with the status of a user's mistake."""
    os._exit(2)
