"""What is added to a policy loss, or trained beside it: value loss, entropy, and imitation of good rollouts."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from rewardsmith.algorithms.shapes import FloatBT, FloatN, FloatNV, MaskBT, masked


def value_loss(
    values_BT: FloatBT,
    old_values_BT: FloatBT,
    returns_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    clip: Annotated[float | None, Field(gt=0, description="how far a value may move in one update")] = None,
) -> tuple[FloatBT, dict[str, Tensor]]:
    r"""Squared error of a critic, optionally clipped around its old values as in PPO.

    $$\ell_t = \tfrac12 \max\bigl((V_t - G_t)^2, (\mathrm{clip}(V_t, V^{old}_t \pm c) - G_t)^2\bigr)$$

    Args:
        values_BT: [B, T], carries the gradient.
        old_values_BT: [B, T], the values that the advantages were computed with.
        returns_BT: [B, T], targets: unscaled GAE plus old values.
        mask_BT: [B, T].
        clip: c.

    Returns:
        losses [B, T] and the statistic `clipped`.
    """
    values_BT = masked("values", values_BT, mask_BT)
    returns_BT = masked("returns", returns_BT, mask_BT).detach()
    plain_BT = (values_BT - returns_BT).square()
    if clip is None:
        return plain_BT / 2, {"clipped": torch.zeros_like(mask_BT)}
    old_values_BT = masked("old values", old_values_BT, mask_BT).detach()
    clipped_BT = (values_BT.clamp(old_values_BT - clip, old_values_BT + clip) - returns_BT).square()
    return torch.maximum(plain_BT, clipped_BT) / 2, {"clipped": clipped_BT > plain_BT}


def entropy(logits_NV: FloatNV) -> FloatN:
    r"""Return the entropy of softmax(logits) at each position: $H = -\sum_v p_v \log p_v$, in nats.

    Logits of -inf are allowed (forbidden tokens): they have probability 0 and add nothing. A row of nothing else is no
    distribution; its entropy is NaN.
    """
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    return -(logprobs_NV.exp() * torch.where(torch.isneginf(logits_NV), 0, logprobs_NV)).sum(-1)


def positive_sft_loss(logprobs_BT: FloatBT, advantages_BT: FloatBT, mask_BT: MaskBT) -> tuple[FloatBT, MaskBT]:
    r"""Imitate what went well: $\ell_t = -\max(A_t, 0) \log\pi(y_t)$.

    GRRM (arXiv 2602.14028) adds it with a coefficient of 0.1, so that the tiny steps of GSPO do not stall.

    Returns:
        losses [B, T], and the mask [B, T] of the tokens with A > 0: reduce with the weights of that mask, so that the
        mean is over rows that have something to imitate.
    """
    positive_BT = mask_BT & (masked("advantages", advantages_BT, mask_BT) > 0)
    return -torch.where(positive_BT, advantages_BT.detach(), 0) * masked("logprobs", logprobs_BT, mask_BT), positive_BT
