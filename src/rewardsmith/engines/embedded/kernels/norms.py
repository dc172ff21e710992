r"""RMS norm of a residual stream, with the addition before it.

    x = residual + delta,   r = (mean_d x_d² + eps)^{-1/2},   x̂ = x r,   y = x̂ w
    ∂L/∂x = ∂L/∂x_out + r (g - x̂ mean_d(g_d x̂_d)),  g = w ∂L/∂y,   ∂L/∂w = Σ_n x̂ ∂L/∂y

As transformers' LlamaRMSNorm and Qwen3RMSNorm: x̂ is computed in float32 and rounded to the dtype of x before it is
multiplied with w. (`torch.nn.functional.rms_norm` with a weight multiplies in float32 and rounds once.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rewardsmith.engines.embedded.kernels import jit, launch, resident_programs, tl, triton, use_triton


def add_rms_norm(residual_ND: Tensor, delta_ND: Tensor | None, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the norm of residual + delta, and that sum."""
    if not use_triton(residual_ND):
        return add_rms_norm_torch(residual_ND, delta_ND, weight_D, eps)
    normed_ND, sum_ND = _AddRmsNorm.apply(residual_ND, delta_ND, weight_D, eps)
    return normed_ND, residual_ND if sum_ND is None else sum_ND


def add_rms_norm_torch(
    residual_ND: Tensor, delta_ND: Tensor | None, weight_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The same in plain torch."""
    sum_ND = residual_ND if delta_ND is None else residual_ND + delta_ND
    return nn.functional.rms_norm(sum_ND, weight_D.shape, None, eps) * weight_D, sum_ND


class _AddRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, residual_ND: Tensor, delta_ND: Tensor | None, weight_D: Tensor, eps: float
    ) -> tuple[Tensor, Tensor | None]:
        residual_ND = residual_ND.contiguous()
        adds = delta_ND is not None
        normed_ND = torch.empty_like(residual_ND)
        sum_ND = torch.empty_like(residual_ND) if adds else residual_ND
        rstd_N = torch.empty(len(residual_ND), dtype=torch.float32, device=residual_ND.device)
        shape = _tile(residual_ND)
        launch(
            _norm_forward,
            (triton.cdiv(len(residual_ND), shape["ROWS"]),),
            *(residual_ND, delta_ND.contiguous() if delta_ND is not None else residual_ND, weight_D),
            *(normed_ND, sum_ND, rstd_N, len(residual_ND), eps),
            ADDS=adds,
            **shape,
        )
        ctx.save_for_backward(sum_ND, weight_D, rstd_N)
        ctx.adds = adds
        ctx.set_materialize_grads(False)
        return normed_ND, sum_ND if adds else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_normed_ND: Tensor | None, by_sum_ND: Tensor | None) -> tuple[Tensor | None, ...]:
        sum_ND, weight_D, rstd_N = ctx.saved_tensors
        if by_normed_ND is None:
            return by_sum_ND, by_sum_ND, None, None
        by_input_ND = torch.empty_like(sum_ND)
        shape = _tile(sum_ND)
        programs = resident_programs(sum_ND, triton.cdiv(len(sum_ND), shape["ROWS"]))
        by_weight_PD = torch.empty(programs, len(weight_D), dtype=torch.float32, device=sum_ND.device)
        launch(
            _norm_backward,
            (programs,),
            *(by_normed_ND.contiguous(), sum_ND if by_sum_ND is None else by_sum_ND.contiguous(), sum_ND, weight_D),
            *(rstd_N, by_input_ND, by_weight_PD, len(sum_ND)),
            ADDS=by_sum_ND is not None,
            WEIGHT=ctx.needs_input_grad[2],
            **shape,
        )
        by_weight_D = by_weight_PD.sum(0) if ctx.needs_input_grad[2] else None
        return by_input_ND, by_input_ND if ctx.adds else None, by_weight_D, None


def _tile(x_ND: Tensor) -> dict[str, int]:
    """Return the tile of a program: whole rows, 16 elements for a thread."""
    width = x_ND.shape[1]
    block = triton.next_power_of_2(width)
    rows = max(1, 2048 // block)
    return {"D": width, "BLOCK": block, "ROWS": rows, "num_warps": min(16, rows * block // 512)}


@jit
def _norm_forward(
    residual, delta, weight, normed, total, rstds, n, eps,
    ADDS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    d = tl.arange(0, BLOCK)[None, :]
    inside = (row < n) & (d < D)
    x = tl.load(residual + row * D + d, inside, other=0.0).to(tl.float32)
    if ADDS:
        x += tl.load(delta + row * D + d, inside, other=0.0).to(tl.float32)
        tl.store(total + row * D + d, x, inside)
        x = x.to(total.dtype.element_ty).to(tl.float32)  # the norm of what the next layer reads
    rstd = tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / D + eps)
    tl.store(rstds + row, rstd, row < n)
    w = tl.load(weight + d, d < D, other=0.0).to(tl.float32)
    tl.store(normed + row * D + d, (x * rstd).to(normed.dtype.element_ty).to(tl.float32) * w, inside)


@jit
def _norm_backward(
    by_normed, by_sum, total, weight, rstds, by_input, by_weight, n,
    ADDS: tl.constexpr, WEIGHT: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, BLOCK)[None, :]
    w = tl.load(weight + d, d < D, other=0.0).to(tl.float32)
    summed = tl.zeros([1, BLOCK], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0)):
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < n) & (d < D)
        dy = tl.load(by_normed + row * D + d, inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstds + row, row < n, other=0.0)
        x = tl.load(total + row * D + d, inside, other=0.0).to(tl.float32) * rstd
        g = dy * w
        dx = rstd * (g - x * (tl.sum(g * x, 1, keep_dims=True) / D))
        if ADDS:
            dx += tl.load(by_sum + row * D + d, inside, other=0.0).to(tl.float32)
        tl.store(by_input + row * D + d, dx, inside)
        if WEIGHT:
            summed += tl.sum(dy * x, 0, keep_dims=True)
    if WEIGHT:
        tl.store(by_weight + tl.program_id(0) * D + d, summed, d < D)
