"""Rewards made of other rewards."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import Field

from rewardsmith.components import Choice, Chosen, Settings
from rewardsmith.rewards.protocol import Reward
from rewardsmith.types import Failure, RolloutGroup, Score


class PartSettings(Settings):
    """What a sum says about each of its parts."""

    weight: float = Field(default=1.0, description="factor of this part in the sum")


PartChoice = Annotated[Chosen, Choice("reward", "rewardsmith.rewards:REWARDS", PartSettings)]


class Sum:
    """Add up weighted rewards."""

    def __init__(
        self, *, parts: Annotated[dict[str, PartChoice], Field(min_length=1, description="the rewards, by name")]
    ) -> None:
        self._parts: dict[str, Reward] = {name: part.build() for name, part in parts.items()}
        self._weights = {name: part.beside.weight for name, part in parts.items()}  # type: ignore[union-attr]

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return Σ weight · part. A rollout that one part could not score has no sum: it fails, and keeps its parts."""
        columns = await asyncio.gather(*(reward.score(group) for reward in self._parts.values()))
        rows = zip(*columns, strict=True)
        return tuple(self._sum(dict(zip(self._parts, row, strict=True))) for row in rows)

    def _sum(self, parts: dict[str, Score]) -> Score:
        for name, part in parts.items():
            if part.failure is not None:
                why = Failure(part.failure.kind, f"part {name!r}: {part.failure.detail}", part.failure.attempts)
                return Score(failure=why, parts=parts)
        return Score(sum(self._weights[name] * part.value for name, part in parts.items()), parts=parts)
