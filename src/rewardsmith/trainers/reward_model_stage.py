"""The `reward_model` stage: what may stand in its table. Reading it loads no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from rewardsmith.config import DEFAULT, Choice, Chosen, Settings
from rewardsmith.data.source import Reads
from rewardsmith.text.judge_prompts import Keep
from rewardsmith.trainers.held_out import Count
from rewardsmith.trainers.settings import CriticName, DataName, OptimizerSettings, Saving, Stage

PreferenceLoss = Annotated[
    Chosen,
    Choice(
        "preference loss", "rewardsmith.algorithms.preferences:PREFERENCE_LOSSES", default="bradley-terry", inputs=4
    ),
]


class RewardModelOptimizer(OptimizerSettings):
    """AdamW and its schedule."""

    lr: float = Field(default=1e-5, gt=0, description="peak learning rate")


class RewardModelValidation(Settings):
    """How well the model does on comparisons that are not learned from."""

    data: DataName = Field(description="where the comparisons come from; the same ones in every run and stage")
    every: int = Field(default=100, ge=1, description="steps between two validations")
    items: Count = Field(default=512, description="pairs or groups; all takes every one of the data")


class RewardModelStage(Stage):
    """Learn one number per answer from comparisons of answers: a Bradley-Terry or Plackett-Luce reward model."""

    runs_by: ClassVar[str] = "rewardsmith.trainers.reward_model:RewardModelTrainer"

    @property
    def reads(self) -> Reads:
        """What it reads of its data."""
        return self.learn_from

    name: str = Field(default="reward_model", min_length=1, description="what to call this stage in the run's files")
    model: CriticName = Field(description='the model to train: one with head = "scalar"')
    data: DataName = Field(description="where the comparisons come from")
    learn_from: Literal["preferences", "rankings"] = Field(
        default="preferences", description="pairs of answers, or groups of answers with scores"
    )
    steps: int | None = Field(default=None, ge=1, description="optimizer steps; this or epochs")
    epochs: int | None = Field(default=None, ge=1, description="passes over the data, which must have an end")
    batch_size: int = Field(
        default=32, ge=1, description="pairs or groups per step; what is too long is left out of it"
    )
    max_tokens: int | None = Field(
        default=None,
        ge=2,
        description="drop comparisons with a longer conversation, prompt and answer together; not set: what the model"
        " reads",
    )
    system: Keep = Field(default="keep", description="whether the model reads the prompt's system messages")
    think: Keep = Field(default="drop", description="whether it reads what an answer thinks, up to </think>")
    loss: PreferenceLoss = Field(default=DEFAULT, description="how likely a comparison is, given the rewards")
    centre: float = Field(
        default=0.0, ge=0, description="weight of the mean of (r_i + r_j)² over pairs, which keeps rewards around 0"
    )
    optimizer: RewardModelOptimizer = Field(default=RewardModelOptimizer(), description="AdamW and its schedule")
    validation: RewardModelValidation | None = Field(default=None, description="measure on other comparisons")
    save: Saving = Field(default=Saving(), description="when to save, and what to keep")

    @model_validator(mode="after")
    def _fits_together(self) -> RewardModelStage:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("a reward_model stage has exactly one of steps and epochs")
        if self.loss.name == "plackett-luce" and self.learn_from == "preferences":
            raise ValueError(
                'the loss "plackett-luce" is about groups: set learn_from = "rankings", or use "bradley-terry", which'
                " is the same for two answers"
            )
        return self
