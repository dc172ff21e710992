"""Rewards made of other rewards."""

from __future__ import annotations

import asyncio
import math
from typing import Annotated

from pydantic import Field

from rewardsmith.components import Choice, Chosen, Settings
from rewardsmith.errors import UserError
from rewardsmith.rewards.protocol import Part, Reward, score
from rewardsmith.types import Failure, RolloutGroup, Score

RESERVED = frozenset({"mean", "spread", "accuracy", "failed"})
"""What a part may not be called: `reward/mean` is the metric of the whole."""


class PartSettings(Settings):
    """What a sum says about each of its parts."""

    weight: float = Field(default=1.0, description="factor of this part in the sum")
    discount: float | None = Field(
        default=None, ge=0, le=1, description="γ of this part's own stream, where parts are combined after the estimate"
    )


PartChoice = Annotated[Chosen, Choice("reward", "rewardsmith.rewards:REWARDS", PartSettings, methods=("score",))]


class Sum:
    """Add up weighted rewards."""

    def __init__(
        self, *, parts: Annotated[dict[str, PartChoice], Field(min_length=1, description="the rewards, by name")]
    ) -> None:
        reserved = RESERVED & set(parts)
        if reserved:
            raise UserError(f"a part is called {sorted(reserved)[0]!r}, as a metric of the whole reward is: rename it")
        self._parts: dict[str, Reward] = {name: part.build() for name, part in parts.items()}
        self.streams = {name: Part(**dict(part.beside or ())) for name, part in parts.items()}

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return Σ weight · part. A rollout that one part could not score has no sum: it fails, and keeps its parts."""
        scored = await asyncio.gather(*(score(reward, group) for reward in self._parts.values()))
        columns = [part.scores for part in scored]  # a part that raises has failed; the others keep their scores
        rows = zip(*columns, strict=True)
        return tuple(self._sum(dict(zip(self._parts, row, strict=True))) for row in rows)

    def _sum(self, parts: dict[str, Score]) -> Score:
        total = 0.0
        for name, part in parts.items():
            if part.value is None:
                assert part.failure is not None
                why = Failure(part.failure.kind, f"part {name!r}: {part.failure.detail}", part.failure.attempts)
                return Score(failure=why, parts=parts)
            total += self.streams[name].weight * part.value
        if not math.isfinite(total):
            return Score(failure=Failure("invalid", "the weighted sum is too large for a float"), parts=parts)
        return Score(total, parts=parts)
