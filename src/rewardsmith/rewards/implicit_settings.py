"""How an implicit process reward model learns, and how far it is trusted: tables of the reward `implicit`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rewardsmith.config import Settings
from rewardsmith.learning import OptimizerSettings


class ProcessOptimizer(OptimizerSettings):
    """AdamW and its schedule, which runs over the steps of the stage."""

    lr: float = Field(default=1e-6, gt=0, description="peak learning rate")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="AdamW: decay of the square")
    clip_norm: float = Field(default=10.0, gt=0, description="largest norm of a gradient; longer ones are scaled down")
    warmup: int = Field(default=0, ge=0, description="steps of linear warm-up")


class ReplaySettings(Settings):
    """Groups of earlier steps that the model goes on learning from."""

    groups: int = Field(default=0, ge=0, description="how many groups to remember, the last ones; 0 remembers none")
    per_step: int = Field(default=0, ge=0, description="groups drawn from them for each step, beside the fresh ones")

    @model_validator(mode="after")
    def _go_together(self) -> ReplaySettings:
        if bool(self.groups) != bool(self.per_step):
            raise ValueError("groups and per_step go together: how many to remember, and how many of them to use")
        if self.per_step > self.groups:
            raise ValueError(f"per_step is {self.per_step}, more than the {self.groups} groups that are remembered")
        return self


class LearnSettings(Settings):
    """How the model learns from the outcomes of a step's rollouts."""

    loss: Literal["cross-entropy", "pairwise", "best-of-n-outcome", "best-of-n-reward"] = Field(
        default="cross-entropy",
        description="with the outcome, fractions allowed; or each rollout against those of its group on the other side"
        " of it, all alike or weighted by its chance to be the best of n",
    )
    offset: Literal["none", "group-mean"] = Field(
        default="none",
        description="cross-entropy: group-mean adds the logit of the group's mean outcome, so that the base rate need"
        " not be learned",
    )
    mini_batch: int | None = Field(
        default=None,
        ge=1,
        description="rollouts of an optimizer step, filled up to whole groups; not set: all of the step in one",
    )
    micro_batch: int | None = Field(
        default=None, ge=1, description="rollouts that go through the model at a time; not set: as many as fit a pass"
    )
    epochs: int = Field(default=1, ge=1, description="passes over the rollouts of a step")
    optimizer: ProcessOptimizer = Field(default=ProcessOptimizer(), description="AdamW and its schedule")
    replay: ReplaySettings = Field(default=ReplaySettings(), description="learn from earlier groups too")
    warmup: int = Field(default=0, ge=0, description="steps in which this model learns and the policy does not")
    measure_every: int = Field(
        default=10,
        ge=0,
        description="steps between two extra forward passes that measure the accuracy after an update, where the"
        " update itself needs none; 0 never",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> LearnSettings:
        if self.offset != "none" and self.loss != "cross-entropy":
            raise ValueError(f'offset is about the cross-entropy: the loss "{self.loss}" compares within the group')
        return self


class TrustSettings(Settings):
    """How much the process reward counts, by how well the model orders rollouts that it has not learned from."""

    by: Literal["nothing", "scale", "gate"] = Field(
        default="scale",
        description="the weight as it is; times how far the accuracy is above the floor; or 0 up to the floor",
    )
    floor: float | None = Field(
        default=None,
        ge=0.5,
        lt=1,
        description="pairwise accuracy up to which the reward does not count; not set: 0.5, chance, for scale, and 0.6"
        " for gate, which chance alone would open every other step",
    )
    start: float = Field(
        default=0.5, ge=0.5, lt=1, description="running accuracy before the first step: that of a model trained before"
    )
    memory: float = Field(
        default=0.8, ge=0, lt=1, description="how much of the running accuracy is kept from step to step"
    )

    @property
    def lowest(self) -> float:
        """The floor that counts."""
        return self.floor if self.floor is not None else 0.6 if self.by == "gate" else 0.5


__all__ = ["LearnSettings", "ProcessOptimizer", "ReplaySettings", "TrustSettings"]
