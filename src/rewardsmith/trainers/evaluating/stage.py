"""The stage that measures a reward. Reading it loads no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from rewardsmith.config import Settings
from rewardsmith.data.source import Reads
from rewardsmith.trainers.held_out import Count
from rewardsmith.trainers.settings import DataName, RewardChoice

Kind = Literal["rankings", "grades", "pairs"]
READS: dict[Kind, Reads] = {"rankings": "rankings", "grades": "graded", "pairs": "preferences"}
"""What each kind of evaluation reads of its data."""


class EvaluateRewardStage(Settings):
    """Measure a reward against truth that is known; nothing is trained."""

    runs_by: ClassVar[str] = "rewardsmith.trainers.evaluating.trainer:RewardEvaluation"

    @property
    def reads(self) -> Reads:
        """What it reads of its data."""
        return READS[self.kind]

    name: str = Field(default="evaluate_reward", min_length=1, description="what to call this stage in the run's files")
    kind: Kind = Field(description="what the data has: groups with scores, answers with grades, or pairs")
    data: DataName = Field(description="where they come from; the same ones in every run and stage")
    reward: RewardChoice = Field(description="what is measured")
    items: Count = Field(default=512, description="how many groups, answers or pairs; all takes every one of the data")
    orders: int = Field(
        default=1, ge=1, description="candidate orders, to see whether positions matter; 1 does not ask"
    )
    repeats: int = Field(default=1, ge=1, description="verdicts on each, to see whether they are the same; 1 asks once")
    threshold: float = Field(default=0.5, description="grades: a right answer that scores below it is called unsound")
    levels: int = Field(default=10, ge=1, le=100, description="grades: bands of scores around 0, 1/levels, …, 1")
    ties: Literal["wrong", "half"] = Field(
        default="wrong", description="pairs: what equal scores count in subsets and sections; RewardBench: wrong"
    )
    at_once: int = Field(default=256, ge=1, description="how many groups are scored at the same time")

    @model_validator(mode="after")
    def _fits_together(self) -> EvaluateRewardStage:
        if self.kind == "grades" and self.orders > 1:
            raise ValueError('kind = "grades" has one answer in a group: there are no orders of it; leave out orders')
        return self
