"""The product with weights that are stored in 8 bits, with a scale for each output.

    Y = X Wᵀ + b,   W = diag(s) Q

The torch version writes W and reads it again: 5 bytes for each weight, where Q has one. The kernel makes W in
registers, tile by tile and rounded as torch rounds. With many rows the product takes longer than W does, and torch's is
the faster.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from rewardsmith.engines.embedded.kernels import INTERPRETED, jit, launch, tl, triton, use_triton

MAX_ROWS = 128  # more rows go to torch
INNER = 128  # inputs of a tile: 128 bytes of a row of Q, one cache line


def int8_product(x_NI: Tensor, weight_OI: Tensor, scale_O1: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return X Wᵀ + b; X may have more dimensions before its last."""
    rows = x_NI.numel() // max(1, x_NI.shape[-1])
    if rows > MAX_ROWS or not use_triton(x_NI):
        return int8_product_torch(x_NI, weight_OI, scale_O1, bias_O)
    x = x_NI.reshape(rows, x_NI.shape[-1]).contiguous()
    outputs, inputs = weight_OI.shape
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    # Small layers get narrow tiles, so that there is one for each of a GPU's processors; a product needs 16 rows.
    width = 32 if outputs <= 4096 else 64
    height = max(16, min(64, triton.next_power_of_2(rows)))
    launch(
        _int8_matmul,
        (triton.cdiv(outputs, width), triton.cdiv(rows, height)),
        x,
        weight_OI,
        scale_O1,
        x if bias_O is None else bias_O,
        out,
        rows,
        outputs,
        inputs,
        HAS_BIAS=bias_O is not None,
        FLOAT32=INTERPRETED or x.dtype == torch.float32,
        HEIGHT=height,
        WIDTH=width,
        INNER=INNER,
        num_warps=4,
        num_stages=4,  # 24 KiB each: loads of the next tiles are under way while one is multiplied
    )
    return out.view(*x_NI.shape[:-1], outputs)


def int8_product_torch(x_NI: Tensor, weight_OI: Tensor, scale_O1: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """The same in plain torch."""
    return linear(x_NI, weight_OI * scale_O1, bias_O)


@jit
def _int8_matmul(
    x, weight, scale, bias, out, rows, outputs, inputs,
    HAS_BIAS: tl.constexpr, FLOAT32: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    o = (tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)).to(tl.int64)
    n = tl.program_id(1) * HEIGHT + tl.arange(0, HEIGHT)
    i = tl.arange(0, INNER)
    factor = tl.load(scale + o, o < outputs, other=0.0).to(tl.float32)
    total = tl.zeros([HEIGHT, WIDTH], dtype=tl.float32)
    for start in range(0, inputs, INNER):
        inside = start + i < inputs
        tile = tl.load(x + n[:, None] * inputs + start + i[None, :], (n < rows)[:, None] & inside[None, :], other=0.0)
        code = tl.load(
            weight + o[None, :] * inputs + start + i[:, None], inside[:, None] & (o < outputs)[None, :], other=0
        )
        made = (code.to(tl.float32) * factor[None, :]).to(scale.dtype.element_ty)
        if FLOAT32:
            total = tl.dot(tile.to(tl.float32), made.to(tl.float32), total, input_precision="ieee")
        else:
            total = tl.dot(tile, made, total)
    if HAS_BIAS:
        total += tl.load(bias + o, o < outputs, other=0.0).to(tl.float32)[None, :]
    tl.store(out + n[:, None] * outputs + o[None, :], total, (n < rows)[:, None] & (o < outputs)[None, :])
