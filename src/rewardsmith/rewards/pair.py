"""A cheap rule and a costly judge, in the three ways in which they are commonly joined.

Let p be the rule's value and v the judge's. All three have parts called `rule` and `judge`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from rewardsmith.config import Chosen
from rewardsmith.rewards.base import Composed
from rewardsmith.rewards.component import Column, Component
from rewardsmith.rewards.compose import finite, remaining, row
from rewardsmith.rewards.failures import in_place
from rewardsmith.types import Failure, RolloutGroup, Score

InPlace = Annotated[Chosen, in_place()]
RuleRole = Annotated[InPlace, Field(description="p: what is computed first")]
JudgeRole = Annotated[InPlace, Field(description="v: what is asked where it counts")]


class _Pair(Composed):
    """Two components, the rule first; subclasses say where the judge is asked, and how the two are joined."""

    roles: Sequence[str] = ("rule", "judge")  # those that count

    def __init__(self, rule: Chosen, judge: Chosen) -> None:
        self.components = {"rule": Component.of("rule", rule), "judge": Component.of("judge", judge)}

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return p and v joined; the judge is asked only where it can change the result."""
        rule = await self.components["rule"].chat(group, ["rule" in self.roles] * len(group.rollouts))
        judge = await self.components["judge"].chat(group, self._open(rule))
        columns = {"rule": rule, "judge": judge}
        return tuple(self._joined(columns, row(columns, i)) for i in range(len(group.rollouts)))

    def _open(self, rule: Column) -> Sequence[bool]:
        if "judge" not in self.roles or "rule" not in self.roles or rule.dropped is not None:
            return ["judge" in self.roles] * len(rule.scores)
        return [score.value is not None and self._asks(score.value) for score in rule.scores]

    def _joined(self, columns: Mapping[str, Column], parts: Mapping[str, Score]) -> Score:
        left = remaining(columns, {name: parts[name] for name in self.roles})
        if isinstance(left, Failure):
            return Score(failure=left, parts=parts)
        if len(left) == 1:
            return finite(self._alone(*next(iter(left.items()))), parts)
        return finite(self._join(left["rule"], left["judge"]), parts)

    def _asks(self, p: float) -> bool:
        raise NotImplementedError

    def _join(self, p: float, v: float) -> float:
        raise NotImplementedError

    def _alone(self, name: str, value: float) -> float:
        """Return what is left when the other of the two was dropped for the group, or does not count."""
        return value


class Gate(_Pair):
    """p · v: the judge counts only where the rule holds; where it does not, the judge is not asked."""

    def __init__(
        self,
        *,
        rule: RuleRole,
        judge: JudgeRole,
        least: Annotated[float | None, Field(description="a rule below this counts as 0; not set: only 0 is 0")] = None,
    ) -> None:
        super().__init__(rule, judge)
        self._least = least

    def _asks(self, p: float) -> bool:
        return p != 0 and (self._least is None or p >= self._least)

    def _join(self, p: float, v: float) -> float:
        return p * v if self._asks(p) else 0.0

    def _alone(self, name: str, value: float) -> float:
        return value if name == "judge" or self._asks(value) else 0.0


class Fallback(_Pair):
    """The judge only where the rule says no: p where it is right, else factor · v.

    It mends false negatives of the rule. A right answer is right whatever the judge thinks: to catch right answers
    with unsound reasoning, use `gate`.
    """

    def __init__(
        self,
        *,
        rule: RuleRole,
        judge: JudgeRole,
        factor: Annotated[float, Field(gt=0, description="what the judge's value is multiplied with")] = 1.0,
        right_from: Annotated[float, Field(description="the rule says yes from this value on")] = 1.0,
    ) -> None:
        super().__init__(rule, judge)
        self._factor, self._right_from = factor, right_from

    def _asks(self, p: float) -> bool:
        return p < self._right_from

    def _join(self, p: float, v: float) -> float:
        return self._factor * v if self._asks(p) else p

    def _alone(self, name: str, value: float) -> float:
        return self._factor * value if name == "judge" else value


class Mixed(_Pair):
    """share · v + (1 − share) · p."""

    def __init__(
        self,
        *,
        rule: RuleRole,
        judge: JudgeRole,
        share: Annotated[float, Field(ge=0, le=1, description="share of the judge")] = 0.5,
    ) -> None:
        super().__init__(rule, judge)
        self._share = share
        self.roles = [name for name, counts in (("rule", share < 1), ("judge", share > 0)) if counts]

    def _asks(self, p: float) -> bool:
        return True

    def _join(self, p: float, v: float) -> float:
        return self._share * v + (1 - self._share) * p
