"""Gathers the rows of a group that arrive one by one, and scores the group when it is complete."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rewardsmith.runs.loaded_reward import LoadedReward
from rewardsmith.types import Failure, Prompt, Rollout, RolloutGroup, Score

MAX_CLOSED = 100_000
"""Groups that were scored and are remembered, to detect rows that come too late."""


class LateRowError(RuntimeError):
    """A row came after its group was scored without it."""


@dataclass
class _OpenGroup:
    prompt: Prompt
    result: asyncio.Future[list[Score]]
    rollouts: list[Rollout] = field(default_factory=list)


class GroupCollector:
    """Scores groups of `size` rows of one key; after `deadline` seconds without the last row, those that came.

    If all answers of a group failed but one, that one is dropped too: there is nothing to compare it with, and peers
    such as verl would take its reward for its advantage. All calls must be made on one event loop.
    """

    def __init__(self, reward: LoadedReward, *, size: int, deadline: float) -> None:
        self._reward, self._size, self._deadline = reward, size, deadline
        self._open: dict[str, _OpenGroup] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def score(self, key: str, prompt: Prompt, rollout: Rollout) -> Score:
        """Return the score of a rollout when its group is complete."""
        if key in self._closed:
            raise LateRowError(
                f"an answer to {prompt.id} came after its group was scored without it: group_size is {self._size} and"
                f" group_deadline {self._deadline:g} s"
            )
        loop = asyncio.get_running_loop()
        if key not in self._open:
            self._open[key] = _OpenGroup(prompt, loop.create_future())
            loop.call_later(self._deadline, self._expire, key)
        group = self._open[key]
        place = len(group.rollouts)
        group.rollouts.append(rollout)
        if len(group.rollouts) == self._size:
            self._close(key)
        return (await asyncio.shield(group.result))[place]

    def _expire(self, key: str) -> None:
        if key in self._open:
            count = len(self._open[key].rollouts)
            logging.getLogger(__name__).warning(
                "%d of %d answers of a group came within %g s (group_deadline): they are scored without the others",
                count,
                self._size,
                self._deadline,
            )
            self._close(key)

    def _close(self, key: str) -> None:
        group = self._open.pop(key)
        self._closed[key] = None
        if len(self._closed) > MAX_CLOSED:
            self._closed.popitem(last=False)
        task = asyncio.create_task(self._finish(group))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, group: _OpenGroup) -> None:
        try:
            scored = await self._reward.score_group(RolloutGroup(group.prompt, group.rollouts))
            group.result.set_result(_comparable(scored.scores, self._size))
        except BaseException as error:  # noqa: BLE001 whoever waits for the group gets it
            group.result.set_exception(error)


def _comparable(scores: Sequence[Score], size: int) -> list[Score]:
    if size < 2 or sum(score.ok for score in scores) != 1:
        return list(scores)
    why = Failure("dropped", "all other answers of its group failed: there is nothing to compare it with")
    return [
        replace(score, value=None, failure=why, token_values=None, token_support=None) if score.ok else score
        for score in scores
    ]
