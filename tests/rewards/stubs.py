"""Rewards for tests. Their values are written in the rollouts: the text is JSON, from the key of a reward to its value.

{"rule": 1.0, "judge": "timeout"}     the judge fails with a timeout
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rewardsmith import Failure, Message, Prompt, Rollout, RolloutGroup, Score
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.component import Component

CALLS: Counter[str] = Counter()
"""How many rollouts each key has scored."""


def group(*rows: Mapping[str, object], source: str = "") -> RolloutGroup:
    prompt = Prompt("p", [Message("user", "?")], source=source)
    return RolloutGroup(prompt, [Rollout(json.dumps(row)) for row in rows])


def score_rows(reward: Component | dict[str, Any], *rows: Mapping[str, object], source: str = "") -> tuple[Score, ...]:
    """Return the scores of one group; the counts start again."""
    CALLS.clear()
    made = reward if isinstance(reward, Component) else make_reward(reward)
    return asyncio.run(made.score(group(*rows, source=source)))


def values(reward: Component | dict[str, Any], *rows: Mapping[str, object], source: str = "") -> list[Any]:
    """Return the value of each rollout, or the kind of its failure."""
    return [s.value if s.failure is None else s.failure.kind for s in score_rows(reward, *rows, source=source)]


def given(key: str, **settings: object) -> dict[str, Any]:
    """Return the table of a reward that reads its value from the rollout."""
    return {"type": "tests.rewards.stubs:Given", "key": key, **settings}


class Given:
    """Returns what the rollout has under its key; a text there is the kind of a failure."""

    def __init__(self, *, key: str) -> None:
        self._key = key

    async def score(self, group: RolloutGroup) -> Sequence[Score]:
        CALLS[self._key] += len(group.rollouts)
        await asyncio.sleep(0)
        return tuple(self._score(json.loads(rollout.text)[self._key]) for rollout in group.rollouts)

    def _score(self, entry: Any) -> Score:
        if isinstance(entry, str):
            return Score(failure=Failure(entry, f"{self._key} says {entry}"))
        return Score(entry)


class Flaky:
    """Unreachable until it was called, or checked, often enough."""

    calls = 0
    checks = 0

    def __init__(self, *, after: int, checked: bool = False) -> None:
        self._after = after
        type(self).calls = type(self).checks = 0
        if checked:
            self.check = self._check

    async def _check(self) -> None:
        type(self).checks += 1
        if type(self).checks < self._after:
            raise ConnectionRefusedError("still down")

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        type(self).calls += 1
        up = self.checks >= self._after if hasattr(self, "check") else self.calls > self._after
        if not up:
            raise ConnectionRefusedError("nobody listens on port 9")
        return tuple(Score(1.0) for _ in group.rollouts)


class WithParts:
    """Has parts of its own, and raises when the first rollout says so."""

    def __init__(self, *, declared: bool = False) -> None:
        if declared:
            self.parts = ("style", "truth")

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        if "raise" in group.rollouts[0].text:
            raise RuntimeError("broken")
        return tuple(Score(1.0, parts={"style": Score(0.5), "truth": Score(0.5)}) for _ in group.rollouts)


class Sleepy:
    """Never answers."""

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        await asyncio.sleep(3600)
        raise AssertionError
