"""A reward on another scale: clip, scale, shape, standardise. The part `raw` keeps what it was before."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from rewardsmith.config import Chosen, Settings
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore, Composed
from rewardsmith.rewards.component import Column, Component, only_score
from rewardsmith.rewards.failures import in_place
from rewardsmith.types import Failure, RolloutGroup, Score, ScoredGroup

Transformed = Annotated[Chosen, in_place(), Field(description="the reward to change")]


class _Transform(Composed):
    """One component, `raw`, whose values are changed one by one; a failure stays one."""

    def __init__(self, reward: Chosen) -> None:
        self.components = {"raw": Component.build("raw", reward)}

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the changed scores."""
        return self._transformed(await self.components["raw"].score(group), self._value)

    def _transformed(self, column: Column, function: Callable[[float], float]) -> tuple[Score, ...]:
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


class Clip(_Transform):
    """Bring a reward into bounds."""

    def __init__(
        self,
        *,
        reward: Transformed,
        low: Annotated[float | None, Field(description="lower bound; not set: none")] = None,
        high: Annotated[float | None, Field(description="upper bound; not set: none")] = None,
    ) -> None:
        super().__init__(reward)
        if low is None and high is None:
            raise UserError("clip has neither low nor high: set one, or leave it out")
        if low is not None and high is not None and low > high:
            raise UserError(f"clip has low = {low}, above high = {high}")
        self._low = -math.inf if low is None else low
        self._high = math.inf if high is None else high

    def _value(self, value: float) -> float:
        return min(max(value, self._low), self._high)


class Scale(_Transform):
    """factor · reward + offset; rewards per token are multiplied too."""

    def __init__(
        self,
        *,
        reward: Transformed,
        factor: Annotated[float, Field(description="multiplies")] = 1.0,
        offset: Annotated[float, Field(description="is added")] = 0.0,
    ) -> None:
        super().__init__(reward)
        self._factor, self._offset = factor, offset

    def _value(self, value: float) -> float:
        return self._factor * value + self._offset

    def _with_value(self, raw: Score, value: float) -> Score:
        changed = super()._with_value(raw, value)
        if not changed.ok or raw.token_values is None:
            return changed
        if self._offset:
            why = Failure("invalid", f"offset = {self._offset} cannot be added to a reward per token: use factor alone")
            return Score(failure=why, parts=changed.parts)
        return replace(changed, token_values=raw.token_values * self._factor, token_support=raw.token_support)


class LogisticSettings(Settings):
    """A smooth step: low + (high − low) / (1 + exp(−(x − centre) / width))."""

    centre: float = Field(default=0.5, description="where the step is half way up")
    width: float = Field(default=0.1, gt=0, description="about three quarters of the step lie within ±2 widths")
    low: float = Field(default=0.0, description="far below the centre")
    high: float = Field(default=1.0, description="far above the centre")


class Shape(_Transform):
    """A curve through points, with straight lines between them and flat ends; or a logistic step."""

    def __init__(
        self,
        *,
        reward: Transformed,
        points: Annotated[
            list[Annotated[list[float], Field(min_length=2, max_length=2)]],
            Field(description="[[x, y], …], x growing; equal x are a jump"),
        ] = [],  # noqa: B006 settings are never changed
        logistic: Annotated[LogisticSettings | None, Field(description="a smooth step instead of points")] = None,
    ) -> None:
        super().__init__(reward)
        if bool(points) == (logistic is not None):
            raise UserError("shape needs points = [[x, y], …] or logistic = { … }: one of the two")
        self._x, self._y = [x for x, _ in points], [y for _, y in points]
        if sorted(self._x) != self._x:
            raise UserError(f"the x of shape's points must grow: they are {self._x}")
        self._logistic = logistic

    def _value(self, value: float) -> float:
        return self._between(value) if self._logistic is None else self._step(self._logistic, value)

    @staticmethod
    def _step(step: LogisticSettings, x: float) -> float:
        # tanh has no overflow: 1 / (1 + exp(-z)) = (1 + tanh(z / 2)) / 2
        return step.low + (step.high - step.low) * (1 + math.tanh((x - step.centre) / step.width / 2)) / 2

    def _between(self, x: float) -> float:
        after = bisect_right(self._x, x)  # a jump has the value of its last point
        if after == 0:
            return self._y[0]
        if after == len(self._x):
            return self._y[-1]
        left, right = self._x[after - 1], self._x[after]
        share = (x - left) / (right - left)
        return self._y[after - 1] * (1 - share) + self._y[after] * share


class Standardise(_Transform):
    """(reward − mean) / standard deviation, over the group or over the rewards of the last steps.

    Rewards of different ranges then weigh alike in a sum. Over the group only rollouts that could be scored count, and
    where all are equal the result is 0; a group of one rollout cannot be scored. Over a window the statistics are those
    of earlier steps; until it holds `min_count` rewards, the group's own are used.
    """

    def __init__(
        self,
        *,
        reward: Transformed,
        over: Annotated[Literal["group", "window"], Field(description="whose mean and deviation")] = "group",
        window: Annotated[int, Field(ge=2, description="rewards in the window, the last ones")] = 1024,
        min_count: Annotated[int, Field(ge=2, description="rewards that the window needs before it is used")] = 64,
        centre: Annotated[bool, Field(description="subtract the mean; false: only divide")] = True,
    ) -> None:
        super().__init__(reward)
        if over == "window" and min_count > window:
            raise UserError(f"standardise has min_count = {min_count}, more than window = {window}: it is never used")
        self._over, self._min_count, self._centre = over, min_count, centre
        self._window: deque[float] = deque(maxlen=window)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the standardised scores."""
        column = await self.components["raw"].score(group)
        values = [score.value for score in column if score.value is not None]
        known = list(self._window) if self._over == "window" and len(self._window) >= self._min_count else values
        if known is values and len(group.rollouts) < 2:
            raise CannotScore("invalid", "a single rollout cannot be standardised over its group: sample at least two")
        mean, deviation = _moments(known)
        shift = mean if self._centre else 0.0
        return self._transformed(column, lambda value: (value - shift) / deviation if deviation else 0.0)

    async def learn(self, scored: Sequence[ScoredGroup], part: str) -> Mapping[str, float]:
        """Take the rewards of a step into the window."""
        if self._over != "window":
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
