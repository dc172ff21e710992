"""Small Triton kernels, each in a file with its version in plain torch: the CPU's path, and what tests compare with.

A kernel converts what it loads to float32 and computes there: the interpreter would multiply the bits of bfloat16. The
result of a row does not depend on the other rows. Sums over rows (gradients of weights) are added in a fixed order.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # torch without CUDA
    triton = tl = None

__all__ = ["INTERPRETED", "jit", "launch", "resident_programs", "tl", "triton", "use_triton"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton reads it once, when it is imported


def use_triton(x: Tensor) -> bool:
    """Whether the kernel runs on this tensor, and not its torch version; the interpreter (on a CPU) is for tests."""
    return triton is not None and (x.is_cuda or INTERPRETED) and x.dtype != torch.float64


def jit(kernel: Any) -> Any:
    """Mark a kernel; it is compiled once for all values of its argument `n`, and never called without Triton."""
    return kernel if triton is None else triton.jit(kernel, do_not_specialize=["n"])


def launch(kernel: Any, grid: tuple[int, ...], x: Tensor, /, *arguments: Any, **constants: Any) -> None:
    """Run a kernel on the GPU of its first argument, which need not be the current one; an empty grid is no work."""
    if 0 in grid:
        return
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():  # the context would cost as much as the launch
        kernel[grid](x, *arguments, **constants)
        return
    with torch.cuda.device_of(x):
        kernel[grid](x, *arguments, **constants)


def resident_programs(x: Tensor, tiles: int) -> int:
    """Return how many programs share a number of tiles when each adds up what it has seen: 4 for a multiprocessor."""
    most = 4 * torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 3
    return min(most, tiles)
