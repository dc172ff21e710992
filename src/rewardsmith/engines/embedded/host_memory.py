"""Host memory that a device copies to and from by itself: one page-locked block, cut into tensors.

torch's own page-locked memory is rounded up to a power of two for each tensor, which may be twice as much.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

ALIGNMENT = 256  # bytes
CGROUP = Path("/sys/fs/cgroup")  # of the container that this process is in

Key = TypeVar("Key", bound=Hashable)
Form = tuple[torch.Size, torch.dtype]


class HostBlock(Generic[Key]):
    """Tensors of given forms in one block of host memory; with `lock` its pages are locked as long as this lives."""

    def __init__(self, forms: Mapping[Key, Form], *, lock: bool) -> None:
        self.forms = dict(forms)
        memory = torch.empty(self.size(forms.values()), dtype=torch.uint8)
        self.tensors: dict[Key, Tensor] = {}
        start = 0
        for key, (shape, dtype) in forms.items():
            end = start + shape.numel() * dtype.itemsize
            self.tensors[key] = memory[start:end].view(dtype).view(shape)
            start += _aligned(end - start)
        if lock and memory.nbytes:
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            if runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0) == runtime.cudaError.success:
                # The arguments keep the memory until it is unlocked.
                weakref.finalize(self, lambda locked: runtime.cudaHostUnregister(locked.data_ptr()), memory)

    @staticmethod
    def size(forms: Iterable[Form]) -> int:
        """Return the bytes of a block of these forms."""
        return sum(_aligned(shape.numel() * dtype.itemsize) for shape, dtype in forms)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class HostOffload:
    """Host memory for the tensors of one model, which is kept: locking pages takes longer than copying them."""

    def __init__(self) -> None:
        self._block = HostBlock[int]({}, lock=False)

    def to_host(self, tensors: Iterable[Tensor], *, unchanged: bool = False) -> None:
        """Move tensors off the device; each keeps its identity. `unchanged` since the last call: copy nothing."""
        moving = _distinct(tensors)
        forms = {key: (tensor.shape, tensor.dtype) for key, tensor in moving.items()}
        lock = any(tensor.is_cuda for tensor in moving.values())
        if self._block.forms != forms:
            self._block, unchanged = HostBlock({}, lock=False), False  # the old one is free before there is a new one
            self._block = HostBlock(forms, lock=lock)
        if not unchanged:
            for key, tensor in moving.items():
                self._block.tensors[key].copy_(tensor.detach(), non_blocking=True)
        if lock:
            torch.cuda.synchronize()
        for key, tensor in moving.items():
            tensor.data = self._block.tensors[key]

    def to_device(self, tensors: Iterable[Tensor], device: torch.device) -> None:
        """Move tensors back to the device; their host memory stays reserved."""
        for tensor in _distinct(tensors).values():
            tensor.data = tensor.data.to(device, non_blocking=True, copy=True)
        if device.type == "cuda":
            torch.cuda.synchronize()


def _distinct(tensors: Iterable[Tensor]) -> dict[int, Tensor]:
    """Return each tensor once, by its identity: weights may be tied."""
    return {id(tensor): tensor for tensor in tensors}


def free_host_memory() -> float:
    """Return the bytes of host memory that this process may still take; infinite where that is not known."""
    free = math.inf
    with suppress(OSError, ValueError, IndexError):  # not Linux
        found = Path("/proc/meminfo").read_text(encoding="ascii").split("MemAvailable:")[1]
        free = 1024 * int(found.split()[0])
    with suppress(OSError, ValueError):  # no container, or one without a limit
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        kinds = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        cached = sum(int(kinds.get(name, 0)) for name in ("active_file", "inactive_file"))  # given back when needed
        free = min(free, limit - used + cached)
    return free
