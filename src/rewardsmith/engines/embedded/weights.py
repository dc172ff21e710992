"""Tensors in files: safetensors only, never pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rewardsmith.engines.embedded.quiet import quiet
from rewardsmith.errors import UserError


def write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write tensors to a safetensors file."""
    save_file({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}, file)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; a `UserError` says what is wrong with it."""
    try:
        return load_file(file)
    except FileNotFoundError:
        raise UserError(f"there is no file {str(file)!r}: the checkpoint is not complete") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None


def restore_weights(model: Any, folder: Path, *, adapter: bool) -> None:
    """Overwrite the weights of a model, or of its adapter, by those of a saved folder."""
    if adapter:
        from peft import get_peft_model_state_dict, set_peft_model_state_dict  # noqa: PLC0415 it takes seconds

        saved = read_tensors(folder / "adapter_model.safetensors")
        _require_fit(saved, get_peft_model_state_dict(model, save_embedding_layers=False), folder)
        set_peft_model_state_dict(model, saved)
        return
    if not any(folder.glob("model*.safetensors")):
        raise UserError(f"there are no weights in {str(folder)!r}: the checkpoint is not complete")
    own = model.state_dict()
    saved = _loaded(model, folder)
    _require_fit(saved, own, folder)
    with torch.no_grad():
        for name, tensor in saved.items():
            own[name].copy_(tensor)


def _loaded(model: Any, folder: Path) -> dict[str, Tensor]:
    """Return the weights by the names that the model has for them; transformers may save them under others."""
    try:
        with quiet():
            kind, dtype = type(model), model.dtype
            fresh, report = kind.from_pretrained(
                folder,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are reported, and refused below
            )
    except Exception as error:  # transformers and safetensors raise many kinds
        raise UserError(f"the weights in {str(folder)!r} cannot be read: {error}") from error
    wrong = [name for name, *_ in report["mismatched_keys"]]
    for what, names in (
        ("has the wrong shape for", wrong),
        ("lacks", report["missing_keys"]),
        ("has unknown", report["unexpected_keys"]),
    ):
        if names:
            raise UserError(f"{folder} {what} {sorted(names)[0]}: it was saved by another model")
    weights: dict[str, Tensor] = fresh.state_dict()
    return weights


def _require_fit(saved: Mapping[str, Tensor], own: Mapping[str, Tensor], folder: Path) -> None:
    strange = sorted(set(saved) ^ set(own)) or [name for name in saved if saved[name].shape != own[name].shape]
    if strange:
        raise UserError(f"{folder} does not fit the model (see {strange[0]}): it was saved by another one")
