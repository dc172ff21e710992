"""Tables that several stages share. Reading them loads no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rewardsmith.config import Chosen, Refers, Settings
from rewardsmith.engines.protocol import Sampling
from rewardsmith.jobs import StageSettings
from rewardsmith.rewards.failures import in_place
from rewardsmith.trainers.process.implicit_parts import implicit_problems
from rewardsmith.trainers.trainer import Count

ModelName = Annotated[str, Refers("models", offer="learn")]
OptionalModelName = Annotated[str | None, Refers("models", offer="learn")]
CriticName = Annotated[str, Refers("models", offer="value")]
DataName = Annotated[str, Refers("data")]
RewardChoice = Annotated[Chosen, in_place()]


class Stage(StageSettings):
    """A stage that works on a model and reads data."""

    model: ModelName = Field(description="the model to work on")
    data: DataName = Field(description="where prompts or demonstrations come from")


class TrainingStage(Stage):
    """A stage that trains for a number of steps, or of passes over its data."""

    name: str = Field(min_length=1, description="what to call this stage in the run's files")
    steps: int | None = Field(default=None, ge=1, description="how many times to update; this or epochs")
    epochs: int | None = Field(default=None, ge=1, description="passes over the data, which must have an end")

    @model_validator(mode="after")
    def _ends_somewhere(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            passes = ": passes over the answers of a step are ppo_epochs" if hasattr(self, "ppo_epochs") else ""
            raise ValueError(f"this stage has exactly one of steps and epochs{passes}")
        return self


class Saving(Settings):
    """When to save, and what to keep."""

    rare: ClassVar[frozenset[str]] = frozenset({"keep", "best", "every"})

    every: int | None = Field(default=None, ge=1, description="steps between two checkpoints; not set: ten to a stage")
    keep: int = Field(default=1, ge=1, description="checkpoints of the run to keep; the largest of all stages counts")
    best: bool = Field(default=True, description="keep the checkpoint with the best validation of the stage too")


class SelectSettings(Settings):
    """Which groups to learn from, and how long to look for them."""

    lowest: float | None = Field(default=None, description="drop a group whose mean reward is below this: too hard")
    highest: float | None = Field(default=None, description="drop a group whose mean reward is above this: too easy")
    part: str = Field(default="", description="measure the mean by this part of the reward; empty: by the whole")
    constant: Literal["keep", "drop"] = Field(default="keep", description="groups whose rewards are all equal")
    truncated: Literal["keep", "mask", "drop"] = Field(
        default="keep",
        description="answers cut off by max_tokens: keep, leave them out of the loss, or drop their whole group",
    )
    oversample: float = Field(
        default=1.0, ge=1, description="prompts drawn in a round, as a multiple of what is missing"
    )
    rounds: int = Field(default=1, ge=1, description="maximum number of rounds of drawing prompts for one step")
    staleness: int = Field(default=0, ge=0, description="steps for which surplus groups are kept; 0 keeps none")
    min_groups: int = Field(default=1, ge=1, description="with fewer groups than this a step does not update")
    patience: int = Field(default=10, ge=1, description="steps in a row without an update after which the run stops")

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.lowest is not None and self.highest is not None and self.lowest > self.highest:
            raise ValueError(f"lowest is {self.lowest}, above highest = {self.highest}: no group would pass")
        return self


class RolloutStage(TrainingStage):
    """What stages have in which a model writes groups of answers that are scored and learned from."""

    rare: ClassVar[frozenset[str]] = frozenset({"same_prompts_as", "max_prompt_tokens", "overlong_prompts", "select"})

    trains_rewards: ClassVar[bool] = True

    same_prompts_as: str = Field(default="", description="draw the same prompts with the same seeds as this stage")
    prompts_per_step: int = Field(default=32, ge=1, description="groups per step")
    rollouts_per_prompt: int = Field(default=8, ge=1, description="answers to each prompt: the size of a group")
    max_prompt_tokens: int | None = Field(
        default=None, ge=1, description="longest prompt; not set: what the model reads"
    )
    overlong_prompts: Literal["drop", "error"] = Field(
        default="drop", description="longer prompts: leave out and count, or stop"
    )
    sampling: Sampling = Field(default=Sampling(), description="how answers are sampled")
    reward: RewardChoice = Field(description="what an answer is worth")
    select: SelectSettings = Field(default=SelectSettings(), description="which groups to learn from")
    save: Saving = Field(default=Saving(), description="when to save, and what to keep")

    @model_validator(mode="after")
    def _can_update(self) -> Self:
        for problem in implicit_problems(self.reward, policy=self.model, selected=self.select.part):
            raise ValueError(problem)
        if self.select.min_groups > self.prompts_per_step:
            raise ValueError(
                f"select.min_groups = {self.select.min_groups} is more than prompts_per_step: no step would update"
            )
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature is 0: greedy answers are all alike, and there is nothing to learn from"
            )
        return self


class Validation(Settings):
    """When a model is measured while it learns: before the first step, every few steps, and after the last."""

    rare: ClassVar[frozenset[str]] = frozenset({"at_start"})

    data: DataName = Field(description="where the items come from; the same ones in every run and stage")
    every: int = Field(default=10, ge=1, description="steps between two validations")
    at_start: bool = Field(default=True, description="validate before the first step too")

    def due(self, step: int, steps: int) -> bool:
        """Whether to validate after `step` of so many steps; 0 is before the first."""
        return self.at_start if step == 0 else step % self.every == 0 or step == steps


class ValidationSettings(Validation):
    """How a policy is measured while it learns."""

    rare: ClassVar[frozenset[str]] = Validation.rare | {
        "sampling",
        "reward",
        "reasoning_check",
        "reasoning_threshold",
    }

    data: DataName = Field(description="where the prompts come from; the same ones in every run and stage")
    prompts: Count = Field(default=128, description="how many prompts; all takes every one of the data")
    rollouts_per_prompt: int = Field(default=1, ge=1, description="answers to each prompt: n of mean@n")
    sampling: Sampling | None = Field(default=None, description="how answers are sampled; not set: as in training")
    reward: RewardChoice | None = Field(default=None, description="what scores them; not set: as in training")
    reasoning_check: RewardChoice | None = Field(
        default=None, description="a reward for the reasoning of right answers"
    )
    reasoning_threshold: float = Field(default=1.0, description="a reasoning_check of at least this counts as sound")
