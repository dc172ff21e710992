"""What every reward is."""

from __future__ import annotations

from typing import Protocol

from rewardsmith.types import RolloutGroup, Score


class Reward(Protocol):
    """Scores a whole group at once: a ranking judge needs all of it, a rule looks at one rollout after the other."""

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout, in order. What could not be scored is a `Failure`, never a number."""
        ...
