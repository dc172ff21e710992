"""What is added to a policy loss or to a reward: value loss, entropy, imitation of good rollouts, overlong penalty."""

from __future__ import annotations

import torch
from torch import Tensor

from rewardsmith.algorithms.shapes import FloatB, FloatBT, FloatN, FloatNV, IdsB, MaskBT, masked


def value_loss(
    values_BT: FloatBT, old_values_BT: FloatBT, returns_BT: FloatBT, mask_BT: MaskBT, *, clip: float | None = None
) -> tuple[FloatBT, dict[str, Tensor]]:
    r"""Squared error of a critic, optionally clipped around its old values as in PPO.

    $$\ell_t = \tfrac12 \max\bigl((V_t - G_t)^2, (\mathrm{clip}(V_t, V^{old}_t \pm c) - G_t)^2\bigr)$$

    V carries the gradient, V^old are the values that the advantages were computed with, and the targets G are unscaled
    GAE plus V^old. Returns the losses [B, T] and the statistic `clipped`.
    """
    values_BT = masked("values", values_BT, mask_BT)
    returns_BT = masked("returns", returns_BT, mask_BT).detach()
    errors_BT = (values_BT - returns_BT).square()
    if clip is None:
        return errors_BT / 2, {"clipped": torch.zeros_like(mask_BT)}
    old_values_BT = masked("old values", old_values_BT, mask_BT).detach()
    clipped_BT = (values_BT.clamp(old_values_BT - clip, old_values_BT + clip) - returns_BT).square()
    return torch.maximum(errors_BT, clipped_BT) / 2, {"clipped": clipped_BT > errors_BT}


def entropy(logits_NV: FloatNV) -> FloatN:
    r"""Return the entropy of softmax(logits) at each position: $H = -\sum_v p_v \log p_v$, in nats.

    Logits of -inf are allowed (forbidden tokens): they have probability 0 and add nothing. A row of nothing else is no
    distribution; its entropy is NaN.
    """
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    return -(logprobs_NV.exp() * torch.where(torch.isneginf(logits_NV), 0, logprobs_NV)).sum(-1)


def positive_sft_loss(logprobs_BT: FloatBT, advantages_BT: FloatBT, mask_BT: MaskBT) -> tuple[FloatBT, MaskBT]:
    r"""Imitate what went well: $\ell_t = -\max(A_t, 0) \log\pi(y_t)$.

    GRRM (arXiv 2602.14028) adds it with a coefficient of 0.1, so that the tiny steps of GSPO do not stall. Returns the
    losses [B, T] and the mask [B, T] of the tokens with A > 0: reduce with the weights of that mask, so that the mean
    is over rows that have something to imitate.
    """
    positive_BT = mask_BT & (masked("advantages", advantages_BT, mask_BT) > 0)
    return -torch.where(positive_BT, advantages_BT.detach(), 0) * masked("logprobs", logprobs_BT, mask_BT), positive_BT


def overlong_penalty(lengths_B: IdsB, *, limit: int, buffer: int, factor: float = 1.0) -> FloatB:
    r"""Return 0 up to `limit - buffer` tokens, then a linear fall to -factor at `limit`, and -factor beyond.

    $$p(l) = -f \cdot \mathrm{clip}\Bigl(\frac{l - (L - c)}{c}, 0, 1\Bigr)$$

    Yu et al. 2025 (DAPO), arXiv 2503.14476, eq. 13.
    """
    if not 0 < buffer <= limit:
        raise ValueError(f"buffer is {buffer} and limit {limit}: the buffer must be between 1 token and the limit")
    return -factor * ((lengths_B - (limit - buffer)) / buffer).clamp(0, 1)
