r"""Tokens that are laid out over more places than there are: a shared prompt is repeated for each of its responses.

    spread:  y_p = x_{token(p)},   ∂L/∂x_n = Σ_{p : token(p) = n} ∂L/∂y_p

Shape legend: N tokens, P places, of which some may be padding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from rewardsmith.engines.embedded.cards import to_device
from rewardsmith.engines.embedded.kernels import jit, launch, tl, triton, use_triton


class Repeats:
    """The layout. `tokens_P` has the token of each place; `places` are those that are no padding, by default all."""

    def __init__(
        self, tokens_P: NDArray[np.int64], device: torch.device, places: NDArray[np.int64] | None = None
    ) -> None:
        places = np.arange(len(tokens_P)) if places is None else places
        order = places[np.argsort(tokens_P[places], kind="stable")]  # by token
        counts_N = np.bincount(tokens_P[places])
        starts_N = np.cumsum(counts_N) - counts_N
        is_first = np.zeros(len(order), dtype=bool)
        is_first[starts_N] = True
        shared, index = np.unique(tokens_P[order[~is_first]], return_inverse=True)
        ends = np.append(starts_N, len(order))
        numbers = (tokens_P, order, ends, order[starts_N], order[~is_first], shared, index)
        self.tokens_P, self.order, self.ends, self.first_N, self.others, self.shared, self.index = (
            to_device(each, device) for each in numbers
        )

    def apply(self, x_N: Tensor) -> Tensor:
        """Lay tokens [N, …] out over their places."""
        out: Tensor = _Spread.apply(x_N, self)
        return out

    def undo(self, x_P: Tensor) -> Tensor:
        """Pick each of the N tokens from its first place: a shared token is the same in each."""
        out: Tensor = _Pick.apply(x_P, self.first_N)
        return out


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_N: Tensor, repeats: Repeats) -> Tensor:
        ctx.repeats = repeats
        return x_N.index_select(0, repeats.tokens_P)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_P: Tensor) -> tuple[Tensor, None]:
        return sum_places(grad_P, ctx.repeats), None


class _Pick(torch.autograd.Function):
    """The other places of a token have no gradient."""

    @staticmethod
    def forward(ctx: Any, x_P: Tensor, first_N: Tensor) -> Tensor:
        ctx.save_for_backward(first_N)
        ctx.places = len(x_P)
        return x_P.index_select(0, first_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor, None]:
        (first_N,) = ctx.saved_tensors
        return grad_N.new_zeros(ctx.places, *grad_N.shape[1:]).index_copy_(0, first_N, grad_N), None


def sum_places(x_P: Tensor, repeats: Repeats) -> Tensor:
    """Return the sum over the places of each token, added in float32."""
    if not use_triton(x_P):
        return sum_places_torch(x_P, repeats)
    x_P = x_P.contiguous()
    out_N = x_P.new_empty(len(repeats.first_N), *x_P.shape[1:])
    width = x_P[0].numel()
    block = min(1024, triton.next_power_of_2(width))
    grid = (len(out_N), triton.cdiv(width, block))
    launch(
        _sum_places, grid, x_P, out_N, repeats.order, repeats.ends, width, BLOCK=block, num_warps=max(1, block // 256)
    )
    return out_N


def sum_places_torch(x_P: Tensor, repeats: Repeats) -> Tensor:
    """The same in plain torch; most tokens have one place, and are picked: adding is slow."""
    out_N = x_P.index_select(0, repeats.first_N)
    if len(repeats.others):
        total = out_N.index_select(0, repeats.shared).float()
        total.index_add_(0, repeats.index, x_P.index_select(0, repeats.others).float())
        out_N.index_copy_(0, repeats.shared, total.to(x_P.dtype))
    return out_N


@jit
def _sum_places(x, out, order, ends, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(tl.load(ends + token), tl.load(ends + token + 1)):
        total += tl.load(x + tl.load(order + i) * width + column, column < width, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, total, column < width)
