"""LoRA through peft, which is imported where an adapter is made: it takes seconds, and most models have none."""

from __future__ import annotations

import copy
import json
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import torch

from rewardsmith.engines.embedded.weights import restore_weights
from rewardsmith.engines.model_settings import LoraSettings
from rewardsmith.errors import UserError, listing, nearest


def attach(model: Any, settings: LoraSettings, name: str) -> Any:
    """Return the model with an adapter; only it is trainable, and a fresh one starts as no change at all."""
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415

    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft's annotation says int; it divides by the rank
        target_modules=settings.targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM" if model.get_output_embeddings() is not None else "SEQ_CLS",
    )
    devices = [model.device] if model.device.type == "cuda" else []
    try:
        # Its first factor is random: it must not depend on what was drawn before, or a run could not be repeated.
        with warnings.catch_warnings(), torch.random.fork_rng(devices=devices):
            torch.manual_seed(zlib.crc32(name.encode()))
            warnings.simplefilter("ignore")  # peft warns of what it sets right by itself, such as GPT-2's layout
            adapted = get_peft_model(model, config)
    except Exception as error:  # noqa: BLE001 a pattern that is none, or targets that are not there
        raise UserError(f"models.{name}.lora.targets = {settings.targets!r}: {error}") from None
    found = [module.rpartition(".")[2] for module in adapted.targeted_module_names]
    for target in settings.targets if isinstance(settings.targets, list) else ():
        if target.rpartition(".")[2] not in found:
            known = f"{nearest(target, found)} Known: {listing(set(found))}"
            raise UserError(f"models.{name}.lora.targets: the model has no module {target!r}.{known}")
    if model.get_output_embeddings() is not None and hasattr(model.get_output_embeddings(), "lora_A"):
        raise UserError(f"models.{name}.lora.targets: the output layer cannot have an adapter; leave it out")
    if settings.init is not None:
        check_trained(settings, f"models.{name}.lora")
        restore_weights(adapted, Path(settings.init), adapter=True)
    return adapted


def check_trained(settings: LoraSettings, place: str) -> None:
    """Raise a `UserError` for a trained adapter that is not there, or would count more or less here than before."""
    if settings.init is None:
        return
    folder = Path(settings.init)
    try:
        trained = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        had = {"rank": trained["r"], "alpha": trained["lora_alpha"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{place}.init = {settings.init!r}: there is no adapter of peft's that can be read ({error!r})"
        ) from None
    for setting, was in had.items():
        if was != getattr(settings, setting):
            raise UserError(
                f"{place}.init = {settings.init!r} was trained with {setting} = {was}: set {place}.{setting} to it"
            )


def inner(model: Any) -> Any:
    """Return the Hugging Face model inside a peft model; its layers carry the adapter."""
    return model.base_model.model if _is_adapted(model) else model


def merged(model: Any) -> Any:
    """Return a copy of the model, its adapter added into the weights."""
    other = copy.deepcopy(model)
    return other.merge_and_unload() if _is_adapted(other) else other


def _is_adapted(model: Any) -> bool:
    """Whether it is a model of peft's: if nobody has imported peft, there is none."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)


def is_fresh(model: Any) -> bool:
    """Whether an adapter changes nothing yet: the second factor of each product is still zero."""
    return not any(bool(p.any()) for name, p in model.named_parameters() if ".lora_B." in name)
