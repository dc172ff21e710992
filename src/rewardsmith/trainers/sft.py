"""Supervised fine-tuning on demonstrations."""

from __future__ import annotations

from pydantic import Field

from rewardsmith.components import Settings
from rewardsmith.trainers.settings import DataName, ModelName, OptimizerSettings


class SftOptimizer(OptimizerSettings):
    """AdamW and its schedule."""

    lr: float = Field(default=1e-5, gt=0, description="peak learning rate")


class SftStage(Settings):
    """Imitate demonstrations; the loss is on the answer's tokens only."""

    name: str = Field(default="sft", min_length=1, description="what to call this stage in the run's files")
    model: ModelName = Field(description="the model to train")
    data: DataName = Field(description="where the demonstrations come from")
    steps: int = Field(ge=1, description="optimizer steps")
    batch_size: int = Field(default=32, ge=1, description="demonstrations per step")
    optimizer: SftOptimizer = Field(default=SftOptimizer(), description="AdamW and its schedule")
