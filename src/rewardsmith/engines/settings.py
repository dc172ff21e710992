"""The `[models.NAME]` table of a recipe, and the optimizer that a stage gives to the model it trains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rewardsmith.components import Refers, Settings


class LoraSettings(Settings):
    """Train a low-rank adapter and leave the weights as they are; the reference is the model without it."""

    rank: int = Field(default=16, ge=1, description="rank of the adapter")
    alpha: float = Field(default=32.0, gt=0, description="the adapter counts alpha / rank")
    targets: str | list[str] = Field(
        default="all-linear", description="which layers get one: all-linear, or a list of module names"
    )


class ModelSettings(Settings):
    """One model that takes part in a run."""

    init: str | None = Field(
        default=None,
        min_length=1,
        description="a built-in shape (tiny-llama), a Hugging Face folder, or a Hugging Face id",
    )
    copy_of: Annotated[str | None, Refers("models")] = Field(
        default=None, description="instead of init: start from the weights that this model has when it is first needed"
    )
    head: Literal["language", "scalar"] = Field(
        default="language", description="scalar gives one number per token instead of a language model: a critic"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto takes the GPU if there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="compute precision; auto is float32 on a CPU and bfloat16 on a GPU"
    )
    lora: LoraSettings | None = Field(default=None, description="train an adapter instead of all weights")
    template: dict[str, str | bool | int] = Field(
        default={}, description="arguments of the chat template, such as enable_thinking or date_string"
    )
    rows: int | None = Field(
        default=None, ge=1, description="answers written at a time; not set: 256 on a CPU, 512 on a GPU if they fit"
    )
    tokens_per_pass: int | None = Field(
        default=None, ge=1, description="tokens of one pass when learning; not set: 8192 on a CPU, 16384 on a GPU"
    )
    recompute: bool = Field(
        default=False, description="gradient checkpointing: less memory, a third more time when learning"
    )

    @model_validator(mode="after")
    def _begins_somewhere(self) -> ModelSettings:
        if (self.init is None) == (self.copy_of is None):
            raise ValueError("a model has exactly one of init and copy_of")
        if self.copy_of is not None and self.lora is not None:
            # A checkpoint holds the adapter alone, and what was copied may have changed when the run goes on.
            raise ValueError("a copy cannot have an adapter: train all its weights, or give it an init")
        return self


class OptimizerSettings(Settings):
    """AdamW and its schedule."""

    lr: float = Field(gt=0, description="peak learning rate")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW: decay of the mean")
    beta2: float = Field(default=0.98, ge=0, lt=1, description="AdamW: decay of the square")
    weight_decay: float = Field(
        default=0.0, ge=0, description="AdamW: decoupled weight decay of matrices; vectors have none"
    )
    clip_norm: float = Field(default=1.0, gt=0, description="largest norm of a gradient; longer ones are scaled down")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="course of the learning rate after the warm-up"
    )
    warmup: int = Field(default=0, ge=0, description="optimizer steps of linear warm-up")
    floor: float = Field(default=0.0, ge=0, le=1, description="lowest learning rate, as a share of the peak")
