r"""The gated unit of an MLP.

    y = silu(g) · u,   silu(g) = g σ(g)
    ∂y/∂u = silu(g),   ∂y/∂g = u σ(g) (1 + g (1 - σ(g)))

Only g and u are kept for the backward pass, which computes the sigmoid again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rewardsmith.engines.embedded.kernels import jit, launch, tl, triton, use_triton

MAX_BLOCK = 4096  # elements of a program: 16 for each of 256 threads


def silu_mul(gate_NF: Tensor, up_NF: Tensor) -> Tensor:
    """Return silu(gate) · up; the two may be views of one product, with contiguous rows."""
    if use_triton(gate_NF):
        return _SiluMul.apply(gate_NF, up_NF)  # type: ignore[no-any-return]
    return silu_mul_torch(gate_NF, up_NF)


def silu_mul_torch(gate_NF: Tensor, up_NF: Tensor) -> Tensor:
    """The same in plain torch."""
    return nn.functional.silu(gate_NF) * up_NF


class _SiluMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_NF: Tensor, up_NF: Tensor) -> Tensor:
        gate_NF, up_NF = (x if x.stride(1) == 1 else x.contiguous() for x in (gate_NF, up_NF))
        ctx.save_for_backward(gate_NF, up_NF)
        out_NF = torch.empty(gate_NF.shape, dtype=gate_NF.dtype, device=gate_NF.device)
        _launch(_gated_forward, gate_NF, up_NF, out_NF)
        return out_NF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor, Tensor]:
        gate_NF, up_NF = ctx.saved_tensors
        by_gate_NF, by_up_NF = (torch.empty_like(grad_NF, memory_format=torch.contiguous_format) for _ in range(2))
        parts = (by_gate_NF, by_up_NF, by_up_NF)
        _launch(_gated_backward, gate_NF, up_NF, grad_NF.contiguous(), *parts, grad_NF.shape[1], PRODUCT=False)
        return by_gate_NF, by_up_NF


def silu_mul_backward(both_NE: Tensor, grad_NF: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of [gate, up], side by side as they are, and their product silu(gate) · up again."""
    width = grad_NF.shape[1]
    gate_NF, up_NF = both_NE[:, :width], both_NE[:, width:]
    by_both_NE, product_NF = torch.empty_like(both_NE), torch.empty_like(grad_NF)
    parts = (by_both_NE[:, :width], by_both_NE[:, width:], product_NF)
    _launch(_gated_backward, gate_NF, up_NF, grad_NF.contiguous(), *parts, 2 * width, PRODUCT=True)
    return by_both_NE, product_NF


def _launch(kernel: Any, gate_NF: Tensor, up_NF: Tensor, *others: Any, **constants: bool) -> None:
    n, width = gate_NF.shape
    block = min(MAX_BLOCK, max(512, triton.next_power_of_2(width)))
    launch(
        kernel,
        (n, triton.cdiv(width, block)),
        gate_NF,
        up_NF,
        *others,
        *(gate_NF.stride(0), up_NF.stride(0), width),
        BLOCK=block,
        num_warps=block // 512,
        **constants,
    )


@jit
def _gated_forward(gate, up, out, gate_stride, up_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + row * gate_stride + i, i < width, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + i, i < width, other=0.0).to(tl.float32)
    silu = (g * tl.sigmoid(g)).to(gate.dtype.element_ty).to(tl.float32)  # rounded as torch rounds
    tl.store(out + row * width + i, silu * u, i < width)


@jit
def _gated_backward(
    gate, up, grad, by_gate, by_up, product, by_stride, gate_stride, up_stride, width,
    BLOCK: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + row * gate_stride + i, i < width, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + i, i < width, other=0.0).to(tl.float32)
    dy = tl.load(grad + row * width + i, i < width, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(g)
    tl.store(by_up + row * by_stride + i, dy * g * sigmoid, i < width)
    tl.store(by_gate + row * by_stride + i, dy * u * sigmoid * (1 + g * (1 - sigmoid)), i < width)
    if PRODUCT:
        silu = (g * sigmoid).to(gate.dtype.element_ty).to(tl.float32)  # as in the forward pass
        tl.store(product + row * width + i, silu * u, i < width)
