"""Clipped importance sampling: the weight is clipped, the gradient of no token is."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from rewardsmith.algorithms.policy_losses.ratio import High, bounded_ratio, checked
from rewardsmith.algorithms.shapes import FloatBT, MaskBT


def cispo(
    logprobs_BT: FloatBT,
    old_BT: FloatBT,
    advantages_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    low: Annotated[float, Field(ge=0, description="the weight is clipped below 1 - low; 1 means no lower bound")] = 1.0,
    high: High = 4.0,
) -> tuple[FloatBT, dict[str, Tensor]]:
    r"""REINFORCE with a clipped, detached importance weight, so that clipped tokens still learn.

    $$\ell_t = -\mathrm{sg}\bigl[\mathrm{clip}(\rho_t, 1-\epsilon_{low}, 1+\epsilon_{high})\bigr] A_t \log\pi(y_t)$$

    MiniMax 2025 (CISPO), arXiv 2506.13585, eq. 4 and 5; the paper leaves the lower side open, which is the default.
    """
    log_ratio_BT, advantages_BT = checked(logprobs_BT.detach(), old_BT, advantages_BT, mask_BT)
    ratio_BT = bounded_ratio(log_ratio_BT)
    weights_BT = ratio_BT.clamp(1 - low, 1 + high) * -advantages_BT
    losses_BT = weights_BT * torch.where(mask_BT, logprobs_BT, 0)
    report = {
        "clipped_low": ratio_BT < 1 - low,
        "clipped_high": ratio_BT > 1 + high,
        "kl_from_old": -log_ratio_BT,
    }
    return losses_BT, report
