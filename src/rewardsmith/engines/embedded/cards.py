"""Which device a model of this process is on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.errors import UserError


def select_device(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """Resolve a setting: `auto` is the first GPU if there is one, in bfloat16; else the CPU, in float32."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name = {"auto": "cuda:0" if count else "cpu", "cuda": "cuda:0"}.get(device, device)
    found = torch.device(name)
    if found.type == "cuda" and not count:
        reason = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no GPU"
        remedy = 'Set device = "cpu", or "auto" to take a GPU where there is one'
        raise UserError(f'device = "{device}": {reason}. {remedy}')
    if found.type == "cuda" and found.index >= count:
        known = "cuda:0 alone" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise UserError(f'device = "{device}": torch finds {known}; the numbers are those of CUDA_VISIBLE_DEVICES')
    precision = ("bfloat16" if found.type == "cuda" else "float32") if dtype == "auto" else dtype
    return found, {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one: streams, graphs and kernels that name no device belong to it."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def free_memory(device: torch.device) -> int:
    """Return the bytes of a GPU that this process can still take, what torch keeps for reuse included."""
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached


def to_device(numbers: Sequence[int] | NDArray[np.integer], device: torch.device, dtype: type = np.int64) -> Tensor:
    """Return integers as a tensor; the host does not wait until the device has done what was launched before."""
    tensor = torch.from_numpy(np.asarray(numbers, dtype=dtype))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
