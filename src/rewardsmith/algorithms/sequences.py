"""Sums along the response: reward to go, whitening, and the last token. Gaps inside a response are stepped over.

A gap is a masked token between two that count, such as the output of a tool. The recursions below treat a response as
if its gaps were cut out, so neither rewards nor discounts are lost in them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rewardsmith.algorithms.shapes import FloatB, FloatBT, IdsB, MaskBT, Scalar

_BLOCK = 32


def token_counts(mask_BT: MaskBT) -> IdsB:
    """Return how many tokens of each row count, int32 [B]."""
    # A narrow accumulator is several times faster on a CPU, and summing bool as such is slower than anything.
    narrow = torch.int16 if mask_BT.shape[-1] < 2**15 else torch.int32
    return mask_BT.view(torch.int8).sum(-1, dtype=narrow).to(torch.int32)


def whiten(values_BT: FloatBT, mask_BT: MaskBT, *, eps: float = 1e-8) -> FloatBT:
    """Shift and scale to mean 0 and variance 1 over all tokens that count: (x - μ) / sqrt(σ² + eps).

    σ² is the unbiased variance. Constant input gives exact zeros, and so does a single token. No gradient.
    """
    dtype, values_BT = values_BT.dtype, values_BT.detach()
    if dtype == torch.bfloat16:  # three digits are too few to tell a rare success from a rounding error
        values_BT = values_BT.float()
    count = token_counts(mask_BT).sum()
    # Rows are summed in their own precision and added up in float64: millions of tokens lose no digits that matter.
    white_BT = torch.where(mask_BT, values_BT, 0)
    mean = white_BT.sum(-1).double().sum() / count.clamp(min=1)
    torch.where(mask_BT, white_BT.sub_(mean.to(white_BT.dtype)), white_BT.new_zeros(()), out=white_BT)
    std = _root_sum_square(white_BT) / (count - 1).clamp(min=1).double().sqrt()
    return white_BT.mul_(_whitening_scale(mean, std, white_BT.dtype, eps).to(white_BT.dtype)).to(dtype)


def whiten_rows(values_B: FloatB, counts_B: IdsB, *, eps: float = 1e-8) -> FloatB:
    """Return what `whiten` gives when each of a row's `counts_B` tokens holds the row's one value; float64."""
    count = counts_B.sum()
    mean = (values_B * counts_B).sum() / count.clamp(min=1)
    centred_B = values_B - mean
    std = (centred_B * counts_B.double().sqrt()).norm() / (count - 1).clamp(min=1).double().sqrt()
    return centred_B * _whitening_scale(mean, std, values_B.dtype, eps)


def _whitening_scale(mean: Scalar, std: Scalar, dtype: torch.dtype, eps: float) -> Tensor:
    """Return 1 / sqrt(σ² + eps), or 0 where the spread is no more than the rounding error of a constant."""
    constant = std <= 8 * torch.finfo(dtype).eps * mean.abs()
    return torch.where(constant, 0.0, torch.rsqrt(std.square() + eps))


def _root_sum_square(values_BT: FloatBT) -> Scalar:
    """Return sqrt(Σx²) as float64, also where the squares would overflow."""
    norm: Tensor = torch.linalg.vector_norm(values_BT, dim=-1).double().norm()
    if torch.isfinite(norm):
        return norm
    largest = values_BT.abs().amax()
    scaled: Tensor = torch.linalg.vector_norm(values_BT / largest, dim=-1).double().norm()
    return scaled * largest


def last_token(mask_BT: MaskBT) -> MaskBT:
    """Return a mask with True at the last token of each row that counts; an empty row stays all False."""
    remaining_BT = mask_BT.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1)
    return mask_BT & (remaining_BT == 1)


def reward_to_go(rewards_BT: FloatBT, mask_BT: MaskBT, *, discount: float = 1.0) -> FloatBT:
    r"""Return the discounted sum of the rewards from each token on.

    $$G_t = \sum_{s \ge t} \gamma^{s-t} r_s$$
    """
    return sum_to_go(torch.where(mask_BT, rewards_BT, 0), mask_BT, discount=discount)


def sum_to_go(rewards_BT: FloatBT, mask_BT: MaskBT, *, discount: float) -> FloatBT:
    """Return `reward_to_go` of rewards that are known to be zero where masked, without another pass to make sure."""
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"discount is {discount}: it must lie between 0 and 1")
    if discount == 0.0:
        return rewards_BT
    if not has_gaps(mask_BT):
        return _suffix_sum(rewards_BT, discount)  # zero behind the mask, since all that follows is zero
    order_BT = _gaps_last(mask_BT)
    packed_BT = _suffix_sum(rewards_BT.gather(-1, order_BT), discount)
    return torch.where(mask_BT, torch.empty_like(packed_BT).scatter_(-1, order_BT, packed_BT), 0)


def temporal_difference(rewards_BT: FloatBT, values_BT: FloatBT, mask_BT: MaskBT, *, discount: float) -> FloatBT:
    """Return r_t + γ·V_next - V_t; both inputs are zero where masked, and V after the last token is 0.

    Writes over `rewards_BT`.
    """
    deltas_BT = rewards_BT.sub_(values_BT)
    if not has_gaps(mask_BT):
        deltas_BT[:, :-1].add_(values_BT[:, 1:], alpha=discount)
        return deltas_BT
    order_BT = _gaps_last(mask_BT)
    packed_BT = deltas_BT.gather(-1, order_BT)
    packed_BT[:, :-1].add_(values_BT.gather(-1, order_BT)[:, 1:], alpha=discount)
    return torch.where(mask_BT, torch.empty_like(packed_BT).scatter_(-1, order_BT, packed_BT), 0)


def has_gaps(mask_BT: MaskBT) -> bool:
    """Return whether some token that counts follows one that does not, leading padding included."""
    return bool((mask_BT[:, 1:] > mask_BT[:, :-1]).any())


def _gaps_last(mask_BT: MaskBT) -> Tensor:
    """Return the column order [B, T] that moves the tokens that count to the front and keeps their order."""
    return torch.argsort((~mask_BT).to(torch.int8), dim=-1, stable=True)


def _suffix_sum(values_BT: FloatBT, discount: float) -> FloatBT:
    """Return y_t = x_t + γ·y_{t+1} without a loop over tokens.

    Inside a block of 32 tokens the recursion is one product with the triangular matrix of powers of γ. What the later
    blocks add is handed on by a loop over the T/32 blocks and spread over the block in one more product.
    """
    dtype, (rows, width) = values_BT.dtype, values_BT.shape
    if values_BT.is_cuda:  # a trainer may allow TF32 products, whose three digits are for weights, not for rewards
        values_BT = values_BT.double()
    elif dtype == torch.bfloat16:
        values_BT = values_BT.float()
    blocks = -(-width // _BLOCK)
    if blocks * _BLOCK != width:
        values_BT = torch.nn.functional.pad(values_BT, (0, blocks * _BLOCK - width))
    gamma = torch.tensor(discount, dtype=torch.float64, device=values_BT.device)
    steps = torch.arange(_BLOCK, device=values_BT.device)
    distance = steps[:, None] - steps[None, :]  # from the column's token t to the row's token s
    powers = torch.where(distance >= 0, gamma ** distance.clamp(min=0), 0).to(values_BT.dtype)
    sums = (values_BT.reshape(-1, _BLOCK) @ powers).reshape(rows, blocks, _BLOCK)
    carry = sums[:, :, 0].clone()  # becomes y at the first token of each block
    for block in range(blocks - 2, -1, -1):
        carry[:, block].add_(carry[:, block + 1], alpha=discount**_BLOCK)
    decay = (gamma ** (_BLOCK - steps)).to(values_BT.dtype)  # down to the block's tokens from the next block's first
    sums[:, :-1].addcmul_(carry[:, 1:, None], decay)
    return sums.reshape(rows, blocks * _BLOCK)[:, :width].to(dtype)
