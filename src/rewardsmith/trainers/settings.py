"""Tables that several stages share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rewardsmith.components import Choice, Chosen, Refers, Settings

ModelName = Annotated[str, Refers("models")]
DataName = Annotated[str, Refers("data")]
RewardChoice = Annotated[Chosen, Choice("reward", "rewardsmith.rewards:REWARDS", methods=("score",))]


class OptimizerSettings(Settings):
    """AdamW and its schedule."""

    lr: float = Field(gt=0, description="peak learning rate")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW: decay of the mean")
    beta2: float = Field(default=0.98, ge=0, lt=1, description="AdamW: decay of the square")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW: decoupled weight decay")
    clip_norm: float = Field(default=1.0, gt=0, description="largest norm of a gradient; longer ones are scaled down")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="course of the learning rate after the warm-up"
    )
    warmup: int = Field(default=0, ge=0, description="optimizer steps of linear warm-up")
    floor: float = Field(default=0.0, ge=0, le=1, description="lowest learning rate, as a share of the peak")


class SamplingSettings(Settings):
    """How answers are sampled."""

    temperature: float = Field(default=1.0, ge=0, description="0 is greedy")
    top_p: float = Field(default=1.0, gt=0, le=1, description="keep the likeliest tokens of this total probability")
    top_k: int = Field(default=0, ge=0, description="keep this many of the likeliest tokens; 0 keeps all")
    max_tokens: int = Field(default=256, ge=1, description="longest answer; longer ones are cut off")
