r"""From a loss per token to one number, exactly, over any split into micro-batches.

Every reduction is a weighted sum $\sum_{b,t} w_{bt}\,\ell_{bt}$ whose weights depend only on the mask of the whole
batch. So the weights are computed once, before the batch is split, and the loss of a micro-batch is the weighted sum
of its own rows: the gradients of the parts add up to the gradient of the whole.

    weights_BT = REDUCTIONS["token-mean"](mask_BT)
    for rows in micro_batches:
        reduce(losses_BT[rows], weights_BT[rows]).backward()

Each takes the mask [B, T] and the dtype of the weights, and returns weights [B, T] that are zero where masked. An empty
batch has weights of zero, and so a loss of zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from rewardsmith.algorithms.sequences import token_counts
from rewardsmith.algorithms.shapes import FloatBT, MaskBT, Scalar


def reduce(losses_BT: FloatBT, weights_BT: FloatBT) -> Scalar:
    """Return Σ w·ℓ. Losses of weight 0 are not read, so they may be NaN; no rows at all give 0."""
    return torch.where(weights_BT != 0, losses_BT * weights_BT, 0).sum()


def token_mean(mask_BT: MaskBT, dtype: torch.dtype = torch.float32) -> FloatBT:
    """Weigh every token alike: 1 / (tokens of the batch). Long responses count more (DAPO, arXiv 2503.14476)."""
    return mask_BT.to(dtype) / token_counts(mask_BT).sum().clamp(min=1)


def sequence_mean_token_mean(mask_BT: MaskBT, dtype: torch.dtype = torch.float32) -> FloatBT:
    """Average within each response, then over responses: 1 / (rows · own tokens). The original GRPO and GSPO."""
    return mask_BT.to(dtype) / (token_counts(mask_BT).long().clamp(min=1) * _rows(mask_BT))[:, None]


def sequence_mean_token_sum(mask_BT: MaskBT, dtype: torch.dtype = torch.float32) -> FloatBT:
    """Sum within each response, average over responses: 1 / rows. The plain policy gradient."""
    return mask_BT.to(dtype) / _rows(mask_BT)


def constant_length(
    mask_BT: MaskBT,
    dtype: torch.dtype = torch.float32,
    *,
    length: Annotated[int, Field(ge=1, description="tokens to divide by, e.g. the token limit")],
) -> FloatBT:
    """Sum within each response, divide by a constant: 1 / (rows · length). Dr. GRPO (arXiv 2503.20783)."""
    return mask_BT.to(dtype) / (_rows(mask_BT) * length)


def _rows(mask_BT: MaskBT) -> Tensor:
    """Count the rows that have any token; at least 1, so that an empty batch has loss 0."""
    return (token_counts(mask_BT) > 0).sum().clamp(min=1)


REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "token-mean": token_mean,
    "sequence-mean-token-mean": sequence_mean_token_mean,
    "sequence-mean-token-sum": sequence_mean_token_sum,
    "constant-length": constant_length,
}
