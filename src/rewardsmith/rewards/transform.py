"""A reward on another scale: clip, scale, shape, standardise. The part `raw` keeps what it was before."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rewardsmith.config import Chosen, Settings
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore, Composed
from rewardsmith.rewards.component import Component, ScoreColumn, only_score
from rewardsmith.rewards.failures import in_place
from rewardsmith.types import Failure, RolloutGroup, Score, ScoredGroup


@dataclass(kw_only=True, eq=False)
class _Transform(Composed):
    """One component, `raw`, whose values are changed one by one; a failure stays one."""

    reward: Annotated[Chosen, in_place(), Field(description="the reward to change")]

    def __post_init__(self) -> None:
        self.components = {"raw": Component.build("raw", self.reward)}

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the changed scores."""
        return self._transformed(await self.components["raw"].score(group), self._value)

    def _transformed(self, column: ScoreColumn, function: Callable[[float], float]) -> tuple[Score, ...]:
        return tuple(
            replace(only_score(column, i, "raw"), parts={"raw": raw})
            if raw.value is None
            else self._with_value(raw, function(raw.value))
            for i, raw in enumerate(column)
        )

    def _with_value(self, raw: Score, value: float) -> Score:
        if not math.isfinite(value):
            return Score(failure=Failure("invalid", f"{raw.value} became {value}"), parts={"raw": raw})
        return Score(value, parts={"raw": raw}, feedback=raw.feedback)

    def _value(self, value: float) -> float:
        raise NotImplementedError


@dataclass(kw_only=True, eq=False)
class Clip(_Transform):
    """Bring a reward into bounds."""

    low: Annotated[float | None, Field(description="lower bound; not set: none")] = None
    high: Annotated[float | None, Field(description="upper bound; not set: none")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._low = -math.inf if self.low is None else self.low
        self._high = math.inf if self.high is None else self.high
        if self._low > self._high:
            raise UserError(f"clip has low = {self._low}, above high = {self._high}")

    def _value(self, value: float) -> float:
        return min(max(value, self._low), self._high)


@dataclass(kw_only=True, eq=False)
class Scale(_Transform):
    """factor · reward + offset; rewards per token are multiplied too."""

    factor: Annotated[float, Field(description="multiplies")] = 1.0
    offset: Annotated[float, Field(description="is added")] = 0.0

    def _value(self, value: float) -> float:
        return self.factor * value + self.offset

    def _with_value(self, raw: Score, value: float) -> Score:
        changed = super()._with_value(raw, value)
        if not changed.ok or raw.token_values is None:
            return changed
        if self.offset:
            why = Failure("invalid", f"offset = {self.offset} cannot be added to a reward per token: use factor alone")
            return Score(failure=why, parts=changed.parts)
        return replace(changed, token_values=raw.token_values * self.factor, token_support=raw.token_support)


class LogisticSettings(Settings):
    """A smooth step: low + (high − low) / (1 + exp(−(x − centre) / width))."""

    centre: float = Field(default=0.5, description="where the step is half way up")
    width: float = Field(default=0.1, gt=0, description="about three quarters of the step lie within ±2 widths")
    low: float = Field(default=0.0, description="far below the centre")
    high: float = Field(default=1.0, description="far above the centre")


@dataclass(kw_only=True, eq=False)
class Shape(_Transform):
    """A curve through points, with straight lines between them and flat ends; or a logistic step."""

    points: Annotated[
        tuple[Annotated[list[float], Field(min_length=2, max_length=2)], ...],
        Field(description="[[x, y], …], x growing; equal x are a jump"),
    ] = ()
    logistic: Annotated[LogisticSettings | None, Field(description="a smooth step instead of points")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.points) == (self.logistic is not None):
            raise UserError("shape needs points = [[x, y], …] or logistic = { … }: one of the two")
        self._x, self._y = [x for x, _ in self.points], [y for _, y in self.points]
        if sorted(self._x) != self._x:
            raise UserError(f"the x of shape's points must grow: they are {self._x}")

    def _value(self, value: float) -> float:
        if self.logistic is None:
            return float(np.interp(value, self._x, self._y))
        # tanh has no overflow: 1 / (1 + exp(-z)) = (1 + tanh(z / 2)) / 2
        step = self.logistic
        return step.low + (step.high - step.low) * (1 + math.tanh((value - step.centre) / step.width / 2)) / 2


@dataclass(kw_only=True, eq=False)
class Standardise(_Transform):
    """(reward − mean) / standard deviation, over the group or over the rewards of the last steps.

    Rewards of different ranges then weigh alike in a sum. Over the group only rollouts that could be scored count, and
    where all are equal the result is 0; a group of one rollout cannot be scored. Over a window the statistics are those
    of earlier steps; until it holds `min_count` rewards, the group's own are used.
    """

    over: Annotated[Literal["group", "window"], Field(description="whose mean and deviation")] = "group"
    window: Annotated[int, Field(ge=2, description="rewards in the window, the last ones")] = 1024
    min_count: Annotated[int, Field(ge=2, description="rewards that the window needs before it is used")] = 64
    centre: Annotated[bool, Field(description="subtract the mean; false: only divide")] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.whole = self.over == "group"
        self._window: deque[float] = deque(maxlen=self.window)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the standardised scores."""
        column = await self.components["raw"].score(group)
        values = [score.value for score in column if score.value is not None]
        known = (
            list(self._window)
            if self.over == "window" and len(self._window) >= min(self.min_count, self.window)
            else values
        )
        if known is values and len(group.rollouts) < 2:
            raise CannotScore("invalid", "a single rollout cannot be standardised over its group: sample at least two")
        mean, deviation = _moments(known)
        shift = mean if self.centre else 0.0
        return self._transformed(column, lambda value: (value - shift) / deviation if deviation else 0.0)

    async def learn(self, scored: Sequence[ScoredGroup], part: str) -> Mapping[str, float]:
        """Take the rewards of a step into the window."""
        if self.over != "window":
            return {}
        name = f"{part}.raw".lstrip(".")
        for group in scored:
            for score in group.scores:
                value = dict(score.named_parts())[name].value
                if value is not None:
                    self._window.append(value)
        mean, deviation = _moments(list(self._window))
        return {"window_mean": mean, "window_spread": deviation} if self._window else {}

    def save(self, folder: Path) -> None:
        """Write the window."""
        (folder / "window.json").write_text(json.dumps(list(self._window)), encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Restore the window."""
        self._window.extend(map(float, json.loads((folder / "window.json").read_text(encoding="utf-8"))))


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and population standard deviation; 0 and 0 of nothing.

    Values that are equal but for rounding have a deviation of exactly 0: it is divided by.
    """
    if not values:
        return 0.0, 0.0
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return mean, deviation if deviation > 1e-12 * max(map(abs, values)) else 0.0
