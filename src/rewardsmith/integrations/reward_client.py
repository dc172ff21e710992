"""A client of the reward server, for programs that are no recipe. In a recipe, use `type = "remote"`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rewardsmith.rewards.base import score
from rewardsmith.rewards.remote import RemoteReward
from rewardsmith.runs.background_loop import LOOP
from rewardsmith.types import RolloutGroup, ScoredGroup

CONCURRENCY = 64
"""Groups that are sent at a time."""


class RewardClient:
    """Scores groups by a reward server, from any thread and any event loop.

        with RewardClient("http://127.0.0.1:8080") as client:
            scored = client.score_groups(groups)            # blocks
        scored = await client.score_group(group)

    Requests that the server refuses as too many (429), or while it restarts (503), are repeated inside the deadline,
    after its Retry-After. What cannot be scored is a `Failure`; nothing but a `UserError` is raised.

    Args:
        url: address of the server.
        api_key_env: environment variable that holds the server's token.
        deadline: seconds for one group, retries included.
        retries: repeated requests after an error.
    """

    def __init__(self, url: str, *, api_key_env: str | None = None, deadline: float = 180.0, retries: int = 4) -> None:
        self._remote = RemoteReward(url=url, api_key_env=api_key_env, deadline=deadline, retries=retries)

    async def score_group(self, group: RolloutGroup) -> ScoredGroup:
        """Return a scored group."""
        return await score(self._remote, group)

    def score_groups(self, groups: Iterable[RolloutGroup], *, concurrency: int = CONCURRENCY) -> list[ScoredGroup]:
        """Return the scored groups, in order; it blocks."""
        return LOOP.run(self._score_groups(groups, concurrency))

    async def _score_groups(self, groups: Iterable[RolloutGroup], concurrency: int) -> list[ScoredGroup]:
        slots = asyncio.Semaphore(concurrency)

        async def one(group: RolloutGroup) -> ScoredGroup:
            async with slots:
                return await self.score_group(group)

        return list(await asyncio.gather(*map(one, groups)))

    async def check(self) -> None:
        """Raise if the server is not ready."""
        await self._remote.check()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._remote.close()

    def close(self) -> None:
        """Close the connections of `score_groups`."""
        LOOP.run(self._remote.close())

    def __enter__(self) -> RewardClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
