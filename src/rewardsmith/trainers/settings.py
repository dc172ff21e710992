"""Tables that several stages share."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from rewardsmith.config import Chosen, Refers, Settings
from rewardsmith.engines.protocol import Sampling
from rewardsmith.jobs import StageSettings
from rewardsmith.learning import OptimizerSettings
from rewardsmith.rewards.failures import in_place
from rewardsmith.trainers.process.implicit_parts import implicit_problems
from rewardsmith.trainers.select import SelectSettings

ModelName = Annotated[str, Refers("models", offer="learn")]
OptionalModelName = Annotated[str | None, Refers("models", offer="learn")]
CriticName = Annotated[str, Refers("models", offer="value")]
DataName = Annotated[str, Refers("data")]
RewardChoice = Annotated[Chosen, in_place()]


class Stage(StageSettings):
    """A stage that works on a model and reads data."""

    model: ModelName = Field(description="the model to work on")
    data: DataName = Field(description="where prompts or demonstrations come from")


class Saving(Settings):
    """When to save, and what to keep."""

    rare: ClassVar[frozenset[str]] = frozenset({"keep", "best", "every"})

    every: int | None = Field(default=None, ge=1, description="steps between two checkpoints; not set: ten to a stage")
    keep: int = Field(
        default=1,
        ge=1,
        description="how many of the last checkpoints of the run to keep; the largest of all stages counts",
    )
    best: bool = Field(default=True, description="keep the checkpoint with the best validation of the stage too")


class SamplingSettings(Settings):
    """How answers are sampled."""

    rare: ClassVar[frozenset[str]] = frozenset({"top_k", "min_tokens", "stop", "stop_tokens"})

    temperature: float = Field(default=1.0, ge=0, description="0 is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1, description="keep the likeliest tokens of this total probability")
    top_k: int = Field(default=0, ge=0, description="keep this many of the likeliest tokens; 0 keeps all")
    max_tokens: int = Field(default=256, ge=1, description="longest answer; longer ones are cut off")
    min_tokens: int = Field(default=0, ge=0, description="no answer ends before this many tokens")
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        default=[], description="texts that end an answer, and are not part of it"
    )

    stop_tokens: list[Annotated[int, Field(ge=0)]] = Field(
        default=[], description="token ids that end an answer, beside the model's own"
    )

    @model_validator(mode="after")
    def _fits(self) -> SamplingSettings:
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, more than max_tokens = {self.max_tokens}")
        return self

    def sampling(self) -> Sampling:
        """Return what the engine takes."""
        return Sampling(
            self.temperature,
            self.top_p,
            self.top_k,
            self.max_tokens,
            self.min_tokens,
            tuple(self.stop),
            tuple(self.stop_tokens),
        )


class WritingStage(Stage):
    """What stages have in which a model writes groups of answers that are scored and learned from."""

    rare: ClassVar[frozenset[str]] = frozenset({"same_prompts_as", "max_prompt_tokens", "overlong_prompts", "select"})

    trains_rewards: ClassVar[bool] = True

    name: str = Field(min_length=1, description="what to call this stage in the run's files")
    same_prompts_as: str = Field(
        default="",
        description="draw the same prompts with the same seeds as the stage of this name, to compare them",
    )
    steps: int = Field(ge=1, description="how many times to sample, score and update")
    prompts_per_step: int = Field(default=32, ge=1, description="groups per step")
    rollouts_per_prompt: int = Field(default=8, ge=1, description="answers to each prompt: the size of a group")
    max_prompt_tokens: int | None = Field(
        default=None, ge=1, description="longest prompt; not set: what the model reads"
    )
    overlong_prompts: Literal["drop", "error"] = Field(
        default="drop", description="a prompt that is longer: leave it out and count it, or stop"
    )
    sampling: SamplingSettings = Field(default=SamplingSettings(), description="how answers are sampled")
    reward: RewardChoice = Field(description="what an answer is worth")
    select: SelectSettings = Field(default=SelectSettings(), description="which groups to learn from")

    @model_validator(mode="after")
    def _can_update(self) -> WritingStage:
        for problem in implicit_problems(self.reward, policy=self.model, selected=self.select.part):
            raise ValueError(problem)
        if self.select.least > self.prompts_per_step:
            raise ValueError(f"select.least = {self.select.least} is more than prompts_per_step: no step would update")
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature is 0: greedy answers are all alike, and there is nothing to learn from"
            )
        return self


__all__ = [
    "CriticName",
    "DataName",
    "ModelName",
    "OptimizerSettings",
    "OptionalModelName",
    "RewardChoice",
    "SamplingSettings",
    "Saving",
    "Stage",
    "WritingStage",
]
