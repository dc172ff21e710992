"""Settings of the `process_model` stage. Loads no torch."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from rewardsmith.config import Settings
from rewardsmith.trainers.held_out import Count
from rewardsmith.trainers.process.implicit_parts import learning_models
from rewardsmith.trainers.settings import DataName, Saving, WritingStage


class ProcessValidation(Settings):
    """How well the models order and judge answers that they do not learn from."""

    data: DataName = Field(description="where the prompts come from; the same ones in every run and stage")
    every: int = Field(default=10, ge=1, description="steps between two validations")
    prompts: Count = Field(default=64, description="how many prompts; all takes every one of the data")
    rollouts_per_prompt: int = Field(default=8, ge=2, description="answers to each prompt")


class ProcessModelStage(WritingStage):
    """Train implicit process reward models on the outcomes of a policy that stays as it is."""

    runs_by: ClassVar[str] = "rewardsmith.trainers.process.process_trainer:ProcessModelTrainer"

    name: str = Field(default="process_model", min_length=1, description="what to call this stage in the run's files")
    validation: ProcessValidation | None = Field(default=None, description="measure on other prompts, now and then")
    save: Saving = Field(default=Saving(), description="when to save, and what to keep")

    @model_validator(mode="after")
    def _learns_something(self) -> ProcessModelStage:
        if not learning_models(self.reward):
            raise ValueError(
                'nothing learns in this stage: its reward is a sum, one part of which has type = "implicit", an update'
                ' that is not "none", and a weight that is not 0 or watch = true'
            )
        return self
