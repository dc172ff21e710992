"""Tensors in files: safetensors only, never pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

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
        set_peft_model_state_dict(model, read_tensors(folder / "adapter_model.safetensors"))
        return
    weights = {
        name: tensor
        for file in sorted(folder.glob("model*.safetensors"))
        for name, tensor in read_tensors(file).items()
    }
    own = model.state_dict()
    # Weights that are one tensor under two names (a tied head) are saved under one of them.
    saved = {own[name].data_ptr() for name in weights if name in own}
    missing = [name for name, tensor in own.items() if name not in weights and tensor.data_ptr() not in saved]
    unknown = sorted(set(weights) - set(own))
    wrong = [name for name in weights if name in own and weights[name].shape != own[name].shape]
    for kind, names in (("lacks", missing), ("has unknown", unknown), ("has the wrong shape for", wrong)):
        if names:
            raise UserError(f"{folder} {kind} {names[0]}: it was saved by another model")
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)
