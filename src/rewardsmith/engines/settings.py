"""The `[models.NAME]` table of a recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rewardsmith.components import Settings


class ModelSettings(Settings):
    """One model that takes part in a run."""

    init: str = Field(
        min_length=1, description="a built-in shape (tiny-llama), a Hugging Face folder, or a Hugging Face id"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto takes the GPU if there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="compute precision; auto is float32 on a CPU and bfloat16 on a GPU"
    )
