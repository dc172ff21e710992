"""Settings of the optimizer, which every trainer table has."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rewardsmith.config import Settings


class OptimizerSettings(Settings):
    """AdamW and its schedule."""

    rare: ClassVar[frozenset[str]] = frozenset({"beta1", "beta2", "weight_decay", "clip_norm", "floor"})

    lr: float = Field(gt=0, description="peak learning rate")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW beta1")
    beta2: float = Field(default=0.98, ge=0, lt=1, description="AdamW beta2")
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled weight decay of matrices; vectors have none")
    clip_norm: float = Field(default=1.0, gt=0, description="maximum gradient norm; larger gradients are clipped")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="learning-rate schedule after the warm-up"
    )
    warmup: int = Field(default=0, ge=0, description="optimizer steps of linear warm-up")
    floor: float = Field(default=0.0, ge=0, le=1, description="minimum learning rate, as a share of the peak")
