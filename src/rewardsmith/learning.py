"""Settings of the optimizer, which every trainer table has, and the learning-rate schedules."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from rewardsmith.config import Settings

Schedule = Literal["constant", "linear", "cosine"]


def _checked_warmup(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, float) and 0 <= value < 1:
        return value
    raise ValueError("must be a number of optimizer steps, an integer, or a share of all of them, such as 0.1")


Warmup = Annotated[int | float, BeforeValidator(_checked_warmup)]
"""Optimizer steps, or their share of all: an integer, or a number below 1."""


class OptimizerSettings(Settings):
    """AdamW and its schedule."""

    rare: ClassVar[frozenset[str]] = frozenset(
        {"beta1", "beta2", "weight_decay", "clip_norm", "floor", "states", "offload"}
    )

    lr: float = Field(gt=0, description="peak learning rate")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW beta1")
    beta2: float = Field(default=0.98, ge=0, lt=1, description="AdamW beta2")
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled weight decay of matrices; vectors have none")
    clip_norm: float = Field(default=1.0, gt=0, description="maximum gradient norm; larger gradients are clipped")
    schedule: Schedule = Field(default="constant", description="learning-rate schedule after the warm-up")
    warmup: Warmup = Field(
        default=0, description="linear warm-up: a number of optimizer steps, or below 1 a share of them"
    )
    floor: float = Field(default=0.0, ge=0, le=1, description="minimum learning rate, as a share of the peak")
    states: Literal["float32", "8bit"] = Field(
        default="float32", description="AdamW's two moments: 8bit takes 2 bytes a parameter instead of 8"
    )
    offload: bool = Field(
        default=False,
        description="master weights and moments in host memory, streamed through the device at each step",
    )

    def rate(self, done: int, total: int) -> float:
        """Return the rate of the optimizer step after `done` others; a warm-up begins above 0, or it would be lost."""
        warmup = warmup_steps(self.warmup, total)
        step = done + 1 if done < warmup else done
        return self.lr * lr_factor(self.schedule, step, total=total, warmup=warmup, floor=self.floor)


def warmup_steps(warmup: float, total: int) -> int:
    """Return the optimizer steps of a warm-up; a share of the `total` is rounded up, as transformers does it."""
    return warmup if isinstance(warmup, int) else math.ceil(round(warmup * total, 6))


def lr_factor(schedule: Schedule, step: int, *, total: int, warmup: int = 0, floor: float = 0.0) -> float:
    r"""Return the factor of the peak rate at a step, counted from 0: a linear warm-up, then the schedule.

    With progress $p$ from the end of the warm-up to `total`: `constant` is 1, `linear` $1 - (1 - f) p$, `cosine`
    $\frac{1 + f}{2} + \frac{1 - f}{2} \cos \pi p$. `linear` and `cosine` stay where they are from `total` on, also when
    the warm-up is longer than the run.
    """
    step = step if schedule == "constant" else min(step, total)
    if step < warmup:
        return step / warmup
    progress = min(1.0, max(0.0, (step - warmup) / max(1, total - warmup)))
    if schedule == "linear":
        return 1 - (1 - floor) * progress
    return 1.0 if schedule == "constant" else (1 + floor) / 2 + (1 - floor) / 2 * math.cos(math.pi * progress)
