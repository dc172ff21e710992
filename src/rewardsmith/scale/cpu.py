"""A CPU as a platform of verl, so that a run on Ray can be tried without a GPU.

verl imports this module in every process (`VERL_USE_EXTERNAL_MODULES`) and selects it by `VERL_PLATFORM`. The engine
and the rollout server that go with it are in `cpu_rollout`.
"""

# ruff: noqa: D102 the methods are documented in verl's base class

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _device_module() -> ModuleType:
    """Return `torch.cpu` with the memory statistics of an accelerator, all zero."""
    module = ModuleType("rewardsmith_cpu_device")
    vars(module).update({name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")})
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, lambda *_: 0)
    for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "set_device", "manual_seed", "synchronize"):
        setattr(module, name, lambda *_, **__: None)
    module.mem_get_info = lambda *_: (0, 0)  # type: ignore[attr-defined]
    module.get_device_name = lambda *_: "CPU"  # type: ignore[attr-defined]
    return module


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """The CPU in the place of an accelerator. Ray counts it as a GPU, since verl asks for GPUs."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None: ...
