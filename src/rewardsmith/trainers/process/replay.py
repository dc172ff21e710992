"""Groups of earlier steps, for a model that would forget what the policy no longer does."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from rewardsmith.records import from_json, to_json
from rewardsmith.rewards.implicit_settings import ReplaySettings
from rewardsmith.types import ScoredGroup


class Replay:
    """Remembers the last groups.

    Args:
        settings: how many, and how many to draw.
    """

    def __init__(self, settings: ReplaySettings) -> None:
        self._settings = settings
        self._groups: deque[ScoredGroup] = deque(maxlen=settings.groups)

    def draw(self, seed: int) -> list[ScoredGroup]:
        """Return some of the groups, each at most once, in the order in which they came."""
        count = min(self._settings.per_step, len(self._groups))
        chosen = sorted(random.Random(seed).sample(range(len(self._groups)), count))
        return [self._groups[i] for i in chosen]

    def remember(self, groups: Sequence[ScoredGroup]) -> None:
        """Take in the groups of a step; the oldest go."""
        self._groups.extend(groups)

    def state(self) -> list[Any]:
        """Return the groups as JSON values."""
        return [to_json(scored) for scored in self._groups]

    def restore(self, state: Sequence[Any]) -> None:
        """Go on from what `state` returned."""
        self._groups = deque((from_json(ScoredGroup, scored) for scored in state), maxlen=self._settings.groups)
