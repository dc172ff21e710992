"""Sums along the response: reward to go, whitening, and the last token. Gaps inside a response are stepped over.

A gap is a masked token between two that count, such as the output of a tool. The recursions below treat a response as
if its gaps were cut out, so neither rewards nor discounts are lost in them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rewardsmith.algorithms.shapes import FloatBT, MaskBT, Scalar

_BLOCK = 64


def masked_mean(values_BT: FloatBT, mask_BT: MaskBT) -> Scalar:
    """Return the mean over the tokens that count; 0 when there are none."""
    return torch.where(mask_BT, values_BT, 0).sum() / mask_BT.sum().clamp(min=1)


def whiten(values_BT: FloatBT, mask_BT: MaskBT, *, eps: float = 1e-8) -> FloatBT:
    """Shift and scale to mean 0 and variance 1 over all tokens that count: (x - μ) / sqrt(σ² + eps).

    σ² is the unbiased variance. Constant input gives exact zeros, and so does a single token.
    """
    count = mask_BT.sum()
    kept_BT = torch.where(mask_BT, values_BT, 0)
    # Statistics in float64: a sum over millions of tokens loses digits in float32, and a square may overflow.
    mean = kept_BT.sum(dtype=torch.float64) / count.clamp(min=1)
    centred_BT = torch.where(mask_BT, values_BT - mean.to(values_BT.dtype), 0)
    scale = centred_BT.abs().amax() if centred_BT.numel() else centred_BT.new_zeros(())
    if scale <= 8 * torch.finfo(values_BT.dtype).eps * mean.abs():  # rounding error of a constant
        return torch.zeros_like(values_BT)
    unit_BT = centred_BT / scale  # squares of this cannot overflow
    variance = unit_BT.square().sum(dtype=torch.float64) / (count - 1).clamp(min=1) * scale.double().square()
    return unit_BT * (scale.double() * torch.rsqrt(variance + eps)).to(values_BT.dtype)


def last_token(mask_BT: MaskBT) -> MaskBT:
    """Return a mask with True at the last token of each row that counts; an empty row stays all False."""
    after_BT = mask_BT.flip(-1).cumsum(-1).flip(-1)  # tokens that count from here on
    return mask_BT & (after_BT == 1)


def reward_to_go(rewards_BT: FloatBT, mask_BT: MaskBT, *, discount: float = 1.0) -> FloatBT:
    r"""Return the discounted sum of the rewards from each token on.

    $$G_t = \sum_{s \ge t} \gamma^{s-t} r_s$$

    Args:
        rewards_BT: [B, T].
        mask_BT: [B, T].
        discount: γ in [0, 1]; 1 sums plainly.

    Returns:
        [B, T], zero where the mask is False.
    """
    kept_BT = torch.where(mask_BT, rewards_BT, 0)
    if discount == 1.0:
        sums_BT = kept_BT.flip(-1).cumsum(-1).flip(-1)
    elif discount == 0.0:
        sums_BT = kept_BT
    elif _has_gaps(mask_BT):
        order_BT = _gaps_last(mask_BT)
        packed_BT = _discounted_suffix_sum(kept_BT.gather(-1, order_BT), discount)
        sums_BT = torch.zeros_like(packed_BT).scatter(-1, order_BT, packed_BT)
    else:
        sums_BT = _discounted_suffix_sum(kept_BT, discount)
    return torch.where(mask_BT, sums_BT, 0)


def next_value(values_BT: FloatBT, mask_BT: MaskBT) -> FloatBT:
    """Return for each token the value at the next one that counts; 0 after the last."""
    kept_BT = torch.where(mask_BT, values_BT, 0)
    if not _has_gaps(mask_BT):
        return torch.cat([kept_BT[:, 1:], torch.zeros_like(kept_BT[:, :1])], dim=-1)
    order_BT = _gaps_last(mask_BT)
    packed_BT = kept_BT.gather(-1, order_BT)
    shifted_BT = torch.cat([packed_BT[:, 1:], torch.zeros_like(packed_BT[:, :1])], dim=-1)
    return torch.where(mask_BT, torch.zeros_like(shifted_BT).scatter(-1, order_BT, shifted_BT), 0)


def _has_gaps(mask_BT: MaskBT) -> bool:
    """Whether some token that counts follows one that does not, leading padding included."""
    return bool((mask_BT[:, 1:] & ~mask_BT[:, :-1]).any())


def _gaps_last(mask_BT: MaskBT) -> Tensor:
    """Return the column order [B, T] that moves the tokens that count to the front and keeps their order."""
    return torch.argsort((~mask_BT).to(torch.int8), dim=-1, stable=True)


def _discounted_suffix_sum(values_BT: FloatBT, discount: float) -> FloatBT:
    """Return y_t = x_t + γ·y_{t+1} without a loop over tokens.

    Inside a block of 64 tokens the recursion is one product with the triangular matrix of powers of γ; a loop over the
    T/64 blocks hands on the carry.
    """
    rows, width = values_BT.shape
    blocks = -(-width // _BLOCK)
    padded_BT = torch.nn.functional.pad(values_BT, (0, blocks * _BLOCK - width))
    steps = torch.arange(_BLOCK, device=values_BT.device)
    distance = steps[:, None] - steps[None, :]  # from the column's token t to the row's token s
    powers = torch.where(distance >= 0, float(discount) ** distance.clamp(min=0).double(), 0).to(values_BT.dtype)
    sums = (padded_BT.reshape(-1, _BLOCK) @ powers).reshape(rows, blocks, _BLOCK)
    decay = (float(discount) ** (_BLOCK - steps).double()).to(values_BT.dtype)  # from the next block's first token
    for block in range(blocks - 2, -1, -1):
        sums[:, block] += sums[:, block + 1, :1] * decay
    return sums.reshape(rows, blocks * _BLOCK)[:, :width]
