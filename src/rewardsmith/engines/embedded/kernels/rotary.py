r"""Rotary position embedding of queries and keys, with the norm of each head before it (Qwen3).

A head x of D numbers has two halves, which turn by the angles of its token:

    x̃ = RMSNorm(x) w   (or x itself)
    y₁ = x̃₁ cos - x̃₂ sin,   y₂ = x̃₂ cos + x̃₁ sin

The backward pass turns by the negative angles, then goes back through the norm (`norms.py` has its equations).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rewardsmith.engines.embedded.kernels import jit, launch, resident_programs, tl, triton, use_triton

ELEMENTS = 1024  # of half heads in a tile: 8 for each of 128 threads, 16 bytes of bfloat16


def rotate(
    q_NHD: Tensor,
    k_NKD: Tensor,
    cos_ND: Tensor,
    sin_ND: Tensor,
    q_norm_D: Tensor | None,
    k_norm_D: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Return rotated queries and keys; cos and sin are as in transformers, both halves the same, without a gradient.

    Queries and keys may be views of a joined product; either both have a norm or none.
    """
    if not use_triton(q_NHD):
        return rotate_torch(q_NHD, k_NKD, cos_ND, sin_ND, q_norm_D, k_norm_D, eps)
    return _Rotate.apply(q_NHD, k_NKD, cos_ND, sin_ND, q_norm_D, k_norm_D, eps)  # type: ignore[no-any-return]


def rotate_torch(
    q_NHD: Tensor,
    k_NKD: Tensor,
    cos_ND: Tensor,
    sin_ND: Tensor,
    q_norm_D: Tensor | None,
    k_norm_D: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """The same in plain torch."""

    def one(x_NHD: Tensor, norm_D: Tensor | None) -> Tensor:
        dtype = x_NHD.dtype
        if norm_D is not None:
            x_NHD = nn.functional.rms_norm(x_NHD, norm_D.shape, None, eps) * norm_D
        first, second = x_NHD.chunk(2, -1)
        return (x_NHD * cos_ND[:, None] + torch.cat((-second, first), -1) * sin_ND[:, None]).to(dtype)

    return one(q_NHD, q_norm_D), one(k_NKD, k_norm_D)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_NHD: Tensor,
        k_NKD: Tensor,
        cos_ND: Tensor,
        sin_ND: Tensor,
        q_norm_D: Tensor | None,
        k_norm_D: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        q_NHD, k_NKD = (x if x.stride(2) == 1 else x.contiguous() for x in (q_NHD, k_NKD))
        cos_ND, sin_ND = cos_ND.contiguous(), sin_ND.contiguous()
        ctx.save_for_backward(cos_ND, sin_ND, *(() if q_norm_D is None else (q_NHD, k_NKD, q_norm_D, k_norm_D)))
        ctx.eps = eps
        return _turn(q_NHD, k_NKD, cos_ND, sin_ND, q_norm_D, k_norm_D, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_q_NHD: Tensor, by_k_NKD: Tensor) -> tuple[Tensor | None, ...]:
        cos_ND, sin_ND, *norms = ctx.saved_tensors
        by_q_NHD, by_k_NKD = (x if x.stride(2) == 1 else x.contiguous() for x in (by_q_NHD, by_k_NKD))
        if not norms:
            return *_turn(by_q_NHD, by_k_NKD, cos_ND, sin_ND, None, None, ctx.eps, back=True), *[None] * 5
        q_NHD, k_NKD, q_norm_D, k_norm_D = norms
        to_q_NHD, to_k_NKD = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q_NHD, k_NKD))
        shape, q_tiles, k_tiles = _tiles(q_NHD, k_NKD)
        programs = resident_programs(q_NHD, q_tiles + k_tiles)
        q_programs = max(1, programs * shape["H"] // (shape["H"] + shape["K"]))  # as in the kernel
        by_norms_PD = torch.empty(programs, shape["D"], dtype=torch.float32, device=q_NHD.device)
        launch(
            _rotary_backward,
            (programs,),
            *(q_NHD, q_norm_D, by_q_NHD, to_q_NHD, k_NKD, k_norm_D, by_k_NKD, to_k_NKD),
            *(cos_ND, sin_ND, by_norms_PD, len(q_NHD), ctx.eps),
            *(q_NHD.stride(0), q_NHD.stride(1), by_q_NHD.stride(0), by_q_NHD.stride(1)),
            *(k_NKD.stride(0), k_NKD.stride(1), by_k_NKD.stride(0), by_k_NKD.stride(1)),
            **shape,
        )
        by_norms = [
            part_PD.sum(0) if needed else None
            for part_PD, needed in zip(
                (by_norms_PD[:q_programs], by_norms_PD[q_programs:]), ctx.needs_input_grad[4:6], strict=True
            )
        ]
        return to_q_NHD, to_k_NKD, None, None, *by_norms, None


def _turn(
    q_NHD: Tensor,
    k_NKD: Tensor,
    cos_ND: Tensor,
    sin_ND: Tensor,
    q_norm_D: Tensor | None,
    k_norm_D: Tensor | None,
    eps: float,
    *,
    back: bool = False,
) -> tuple[Tensor, Tensor]:
    q_out_NHD, k_out_NKD = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q_NHD, k_NKD))
    shape, q_tiles, k_tiles = _tiles(q_NHD, k_NKD)
    launch(
        _rotary_forward,
        (q_tiles + k_tiles,),
        *(q_NHD, q_NHD if q_norm_D is None else q_norm_D, q_out_NHD),
        *(k_NKD, k_NKD if k_norm_D is None else k_norm_D, k_out_NKD),
        *(cos_ND, sin_ND, len(q_NHD), eps),
        *(q_NHD.stride(0), q_NHD.stride(1), k_NKD.stride(0), k_NKD.stride(1)),
        NORM=q_norm_D is not None,
        BACK=back,
        **shape,
    )
    return q_out_NHD, k_out_NKD


def _tiles(q_NHD: Tensor, k_NKD: Tensor) -> tuple[dict[str, int], int, int]:
    """Return the tile of a program, which holds whole heads of one or several tokens, and the tiles of q and k."""
    n, q_heads, width = q_NHD.shape
    block = triton.next_power_of_2(width // 2)
    rows = max(1, ELEMENTS // block)
    shape = {"H": q_heads, "K": k_NKD.shape[1], "D": width, "BLOCK": block, "ROWS": rows, "num_warps": 4}
    return shape, triton.cdiv(n * q_heads, rows), triton.cdiv(n * k_NKD.shape[1], rows)


@jit
def _rotary_forward(
    q, q_norm, q_out, k, k_norm, k_out, cos, sin, n, eps, q_token, q_head, k_token, k_head,
    NORM: tl.constexpr, BACK: tl.constexpr,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    q_tiles = tl.cdiv(n * H, ROWS)
    if tile < q_tiles:
        _turn_tile(q, q_norm, q_out, cos, sin, tile, n, eps, q_token, q_head, NORM, BACK, H, D, BLOCK, ROWS)
    else:
        tile -= q_tiles
        _turn_tile(k, k_norm, k_out, cos, sin, tile, n, eps, k_token, k_head, NORM, BACK, K, D, BLOCK, ROWS)


@jit
def _turn_tile(
    x, norm, out, cos, sin, tile, n, eps, by_token, by_head,
    NORM: tl.constexpr, BACK: tl.constexpr,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    half: tl.constexpr = D // 2
    row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    d = tl.arange(0, BLOCK)[None, :]
    inside = (row < n * HEADS) & (d < half)
    at = row // HEADS * by_token + row % HEADS * by_head + d
    x1 = tl.load(x + at, inside, other=0.0).to(tl.float32)
    x2 = tl.load(x + at + half, inside, other=0.0).to(tl.float32)
    if NORM:
        rstd = tl.rsqrt(tl.sum(x1 * x1 + x2 * x2, 1, keep_dims=True) / D + eps)
        x1 = _rounded(_rounded(x1 * rstd, x) * tl.load(norm + d, d < half, other=0.0).to(tl.float32), x)
        x2 = _rounded(_rounded(x2 * rstd, x) * tl.load(norm + half + d, d < half, other=0.0).to(tl.float32), x)
    c = tl.load(cos + row // HEADS * D + d, inside, other=0.0).to(tl.float32)
    s = tl.load(sin + row // HEADS * D + d, inside, other=0.0).to(tl.float32)
    if BACK:
        s = -s
    tl.store(out + row * D + d, x1 * c - x2 * s, inside)
    tl.store(out + row * D + half + d, x2 * c + x1 * s, inside)


@jit
def _rounded(x, like):
    return x.to(like.dtype.element_ty).to(tl.float32)


@jit
def _rotary_backward(
    q, q_norm, by_q, to_q, k, k_norm, by_k, to_k, cos, sin, by_norms, n, eps,
    q_token, q_head, by_q_token, by_q_head, k_token, k_head, by_k_token, by_k_head,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    by_norm = by_norms + program * D
    q_programs = tl.maximum(1, tl.num_programs(0) * H // (H + K))
    if program < q_programs:
        _normed_back(
            q, q_norm, by_q, to_q, cos, sin, by_norm, n, program, q_programs, eps,
            q_token, q_head, by_q_token, by_q_head, H, D, BLOCK, ROWS,
        )  # fmt: skip
    else:
        _normed_back(
            k, k_norm, by_k, to_k, cos, sin, by_norm, n, program - q_programs, tl.num_programs(0) - q_programs, eps,
            k_token, k_head, by_k_token, by_k_head, K, D, BLOCK, ROWS,
        )  # fmt: skip


@jit
def _normed_back(
    x, norm, by_out, to_x, cos, sin, by_norm, n, first, step, eps, x_token, x_head, by_token, by_head,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    half: tl.constexpr = D // 2
    d = tl.arange(0, BLOCK)[None, :]
    w1 = tl.load(norm + d, d < half, other=0.0).to(tl.float32)
    w2 = tl.load(norm + half + d, d < half, other=0.0).to(tl.float32)
    sum1 = tl.zeros([1, BLOCK], tl.float32)
    sum2 = tl.zeros([1, BLOCK], tl.float32)
    for tile in range(first, tl.cdiv(n * HEADS, ROWS), step):
        row = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < n * HEADS) & (d < half)
        token = row // HEADS
        head = row % HEADS
        dy1 = tl.load(by_out + token * by_token + head * by_head + d, inside, other=0.0).to(tl.float32)
        dy2 = tl.load(by_out + token * by_token + head * by_head + half + d, inside, other=0.0).to(tl.float32)
        c = tl.load(cos + token * D + d, inside, other=0.0).to(tl.float32)
        s = tl.load(sin + token * D + d, inside, other=0.0).to(tl.float32)
        g1 = dy1 * c + dy2 * s
        g2 = dy2 * c - dy1 * s
        x1 = tl.load(x + token * x_token + head * x_head + d, inside, other=0.0).to(tl.float32)
        x2 = tl.load(x + token * x_token + head * x_head + half + d, inside, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x1 * x1 + x2 * x2, 1, keep_dims=True) / D + eps)
        x1 *= rstd
        x2 *= rstd
        sum1 += tl.sum(g1 * x1, 0, keep_dims=True)
        sum2 += tl.sum(g2 * x2, 0, keep_dims=True)
        g1 *= w1
        g2 *= w2
        mean = tl.sum(g1 * x1 + g2 * x2, 1, keep_dims=True) / D
        tl.store(to_x + row * D + d, rstd * (g1 - x1 * mean), inside)
        tl.store(to_x + row * D + half + d, rstd * (g2 - x2 * mean), inside)
    tl.store(by_norm + d, sum1, d < half)
    tl.store(by_norm + half + d, sum2, d < half)
