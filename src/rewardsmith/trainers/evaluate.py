"""Evaluation of a policy on held-out prompts."""

from __future__ import annotations

from pydantic import Field

from rewardsmith.components import Settings
from rewardsmith.trainers.settings import DataName, ModelName, RewardChoice, SamplingSettings


class EvaluateStage(Settings):
    """Sample answers to held-out prompts and score them."""

    name: str = Field(default="evaluate", min_length=1, description="what to call this stage in the run's files")
    model: ModelName = Field(description="the model to evaluate")
    data: DataName = Field(description="where the prompts come from")
    prompts: int = Field(default=256, ge=1, description="how many prompts")
    rollouts_per_prompt: int = Field(default=1, ge=1, description="answers to each prompt")
    sampling: SamplingSettings = Field(default=SamplingSettings(), description="how answers are sampled")
    reward: RewardChoice = Field(description="what scores them")
