"""Train a judge that grades: how near its grade is to the true one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from rewardsmith.algorithms.agreement import closeness, credit
from rewardsmith.problems import shown
from rewardsmith.rewards.accuracy.reading import Credit, answered, label_of, require_falling
from rewardsmith.rewards.accuracy.truths import share_of
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.criteria import MAX_POINTS
from rewardsmith.rewards.judges.unused import require_unset
from rewardsmith.text import grades
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.types import Failure, Prompt, Rollout, RolloutGroup, Score


class GradeAccuracy:
    """Score a judge by how near its grade is to the true one: max(0, 1 − |grade − truth|)².

    The truth is the prompt's answer, a share from 0 to 1. Where the row of the prompt says how many points can be had,
    in `extra_info.total` as `rewardsmith prepare graded` writes it, that is the total of this prompt. A grade that
    cannot be read is worth `invalid_reward`; why it could not is the label of the score.

    Attributes:
        parts: `readable` is 1 where there is a grade and 0 where there is none; `error` is |grade − truth|.
    """

    parts = ("readable", "error")

    def __init__(
        self,
        *,
        total: Annotated[
            float,
            Field(ge=0.01, le=MAX_POINTS, description="points that can be had, where neither judge nor row says it"),
        ] = 10.0,
        read: Annotated[
            Literal["grade", "number"], Field(description="a grade after a marker, or a number as the last line")
        ] = "grade",
        marker: Annotated[
            str | None, Field(pattern=r"\S", description="what stands before the grade; not set: Total Score")
        ] = None,
        above: Annotated[
            Literal["refuse", "clamp"], Field(description="a grade above the total is refused, or it is the total")
        ] = "refuse",
        power: Annotated[
            float | None, Field(gt=0, le=100, description="of 1 − error; a larger one wants it exactly; not set: 2")
        ] = None,
        steps: Annotated[
            list[Credit] | None,
            Field(min_length=1, max_length=1_000, description="credit for an error of 0, 1, 2 … points, instead"),
        ] = None,
        invalid_reward: Annotated[
            float, Field(le=0, allow_inf_nan=False, description="of an answer without a readable grade")
        ] = 0.0,
    ) -> None:
        if steps is not None:
            require_unset("steps", power=power)
            require_falling("steps", steps)
        if read == "number":
            require_unset('read = "number"', marker=marker)
        self._total, self._read, self._clamp = total, read, above == "clamp"
        self._marker = marker or "Total Score"
        self._power, self._steps, self._invalid = 2.0 if power is None else power, steps, invalid_reward

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt has no true grade, or a total that is none."""
        share_of(prompt)
        self._total_of(prompt)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; what the judge wrote is never a failure, only a prompt without truth is."""
        truth, total = share_of(group.prompt), self._total_of(group.prompt)
        return tuple(self._score(rollout, truth, total) for rollout in group.rollouts)

    def facts(self) -> dict[str, Any]:
        """Return what the verdicts depend on beside the settings, for the record of a run."""
        return {"parser": grades.PARSER if self._read == "grade" else grades.NUMBER_PARSER}

    def _total_of(self, prompt: Prompt) -> float:
        """Return the points that can be had."""
        extra = prompt.info.get("extra_info")
        total = extra.get("total") if isinstance(extra, Mapping) else None
        if total is None:
            return self._total
        if isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total <= MAX_POINTS:
            raise CannotScore("invalid", f"extra_info.total is {shown(total)}: it must be points above 0, or left out")
        return float(total)

    def _score(self, rollout: Rollout, truth: float, total: float) -> Score:
        try:
            share = self._share(answered(rollout), total)
        except Unparsable as why:
            nothing = Failure("skipped", "there is no grade to compare")
            parts = {"readable": Score(0.0), "error": Score(failure=nothing)}
            return Score(self._invalid, parts=parts, feedback=f"not read: {why}", label=label_of(why))
        error = abs(share - truth)
        parts = {"readable": Score(1.0), "error": Score(error)}
        return Score(self._value(error, total), parts=parts, feedback=f"read {share:g}, true {truth:g}")

    def _share(self, text: str, total: float) -> float:
        """Return the grade as a share, in [0, 1]."""
        if self._read == "grade":
            return grades.parse_grade(text, total, marker=self._marker, clamp=self._clamp).share
        number = grades.parse_rating(text)
        if number < 0:
            raise Unparsable("negative grade", f"{number:g}", invalid=True)
        if number > total and not self._clamp:
            raise Unparsable("more than can be had", f"{number:g} out of {total:g}", invalid=True)
        return min(1.0, number / total)

    def _value(self, error: float, total: float) -> float:
        if self._steps is None:
            return closeness(error, power=self._power)
        return float(credit(error * total, self._steps))


__all__ = ["GradeAccuracy"]
