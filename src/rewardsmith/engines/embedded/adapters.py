"""LoRA through peft."""

from __future__ import annotations

import copy
from typing import Any

from peft import LoraConfig, PeftModel, get_peft_model

from rewardsmith.engines.settings import LoraSettings
from rewardsmith.errors import UserError


def attach(model: Any, settings: LoraSettings, name: str) -> Any:
    """Return the model with a fresh adapter, which starts as no change at all; only it is trainable."""
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft's annotation says int; it divides by the rank
        target_modules=settings.targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM" if model.get_output_embeddings() is not None else "SEQ_CLS",
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"models.{name}.lora.targets = {settings.targets!r}: {error}") from None


def inner(model: Any) -> Any:
    """Return the Hugging Face model inside a peft model; its layers carry the adapter."""
    return model.base_model.model if isinstance(model, PeftModel) else model


def merged(model: Any) -> Any:
    """Return the model with its adapter added into a copy of the weights."""
    return copy.deepcopy(model).merge_and_unload() if isinstance(model, PeftModel) else model
