"""Layers that are computed again in the backward pass; meanwhile they keep their input alone, here or in host memory.

That is D numbers for each token in place of 4 D + 4 I + … (`memory_estimate.layer_bytes`). Results are the same, bit
for bit where kernels are deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

MIN_OFFLOADED = 1 << 18  # elements of an input that is worth a copy

T = TypeVar("T")


class _ForwardPass:
    """How many layers of a pass are still to be recomputed."""

    def __init__(self, layers: int, *, offload: bool) -> None:
        self.layers, self.offload = layers, offload


# One process runs one forward pass at a time; see `attention.set_attention_plan`.
_pass = _ForwardPass(0, offload=False)


@contextmanager
def recompute_layers(count: int, *, offload: bool = False) -> Iterator[None]:
    """Recompute the first `count` layers of the pass that runs here; with `offload` their inputs go to host memory.

    The first ones: when the backward pass reaches them, all that the others kept is free again.
    """
    global _pass  # noqa: PLW0603 see above
    before, _pass = _pass, _ForwardPass(count, offload=offload)
    try:
        yield
    finally:
        _pass = before


def recomputes() -> bool:
    """Whether the next layer of the pass is one that is recomputed."""
    return _pass.layers > 0 and torch.is_grad_enabled()


def run_layer(function: Callable[..., T], *inputs: Any) -> T:
    """Return what a layer gives for its inputs, of which the tensors are what it keeps where it is recomputed."""
    if not recomputes():
        return function(*inputs)
    _pass.layers -= 1
    with saved_tensors_hooks(_to_host, _to_device) if _pass.offload else nullcontext():
        # Without dropout there is no random state to keep, and saving it would break the recording of a graph.
        found: T = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
        return found


def _to_host(tensor: Tensor) -> Any:
    """Copy a tensor to page-locked memory while the device goes on; it is freed there when the copy is done.

    What has no gradient stays: all layers share it, as they do the angles of the rotary embedding.
    """
    if not tensor.is_cuda or not tensor.requires_grad or tensor.numel() < MIN_OFFLOADED:
        return tensor
    stream = _copy_stream(tensor.device)
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    with torch.cuda.stream(stream):
        host.copy_(tensor.detach(), non_blocking=True)
    tensor.record_stream(stream)
    return host, tensor.device, stream.record_event()


def _to_device(kept: Any) -> Tensor:
    if isinstance(kept, Tensor):
        return kept
    host, device, copied = kept
    torch.cuda.current_stream(device).wait_event(copied)
    found: Tensor = host.to(device, non_blocking=True)
    return found


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
