"""Geometric-mean policy optimisation: clip each token's log-ratio, then take the geometric mean."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from rewardsmith.algorithms.policy_losses.ratio import bounded_ratio, checked, statistics
from rewardsmith.algorithms.shapes import FloatBT, MaskBT


def gmpo(
    logprobs_BT: FloatBT,
    old_BT: FloatBT,
    advantages_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    low: Annotated[float, Field(ge=0, description="the log-ratio is clipped below -low")] = 0.4,
    high: Annotated[float, Field(ge=0, description="the log-ratio is clipped above +high")] = 0.4,
) -> tuple[FloatBT, dict[str, FloatBT]]:
    r"""GMPO's loss: the advantage times the geometric mean of the tokens' pessimistically clipped ratios.

    $$\ell_i = -A_i \exp\Bigl(\tfrac{1}{|y_i|}\sum_t \mathrm{sgn}(A_i)
      \min\bigl(\mathrm{sgn}(A_i) \log\rho_{i,t},\; \mathrm{sgn}(A_i)\,\mathrm{clip}(\log\rho_{i,t}, -\epsilon_{low},
      \epsilon_{high})\bigr)\Bigr)$$

    Zhao et al. 2025, arXiv 2507.20673, eq. 4; the paper's clip range is (e^-0.4, e^0.4). A_i is the mean advantage of
    the response. Every token holds ℓ_i, so the reduction `sequence-mean-token-mean` is the paper's mean over rows.
    """
    _, log_ratio_BT, advantages_BT = checked(logprobs_BT, old_BT, advantages_BT, mask_BT)
    sign_BT = advantages_BT.sign()
    clipped_BT = log_ratio_BT.clamp(-low, high)
    pessimistic_BT = sign_BT * torch.minimum(sign_BT * log_ratio_BT, sign_BT * clipped_BT)
    lengths_B1 = mask_BT.sum(-1, keepdim=True).clamp(min=1)
    ratio_B1 = bounded_ratio(pessimistic_BT.sum(-1, keepdim=True) / lengths_B1)
    advantage_B1 = advantages_BT.sum(-1, keepdim=True) / lengths_B1
    binding_BT = pessimistic_BT != log_ratio_BT
    report = statistics(log_ratio_BT, binding_BT & (sign_BT < 0), binding_BT & (sign_BT > 0))
    return torch.where(mask_BT, -advantage_B1 * ratio_B1, 0), report
