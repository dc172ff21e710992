"""Geometric-mean policy optimisation: clip each token's log-ratio, then take the geometric mean."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from rewardsmith.algorithms.policy_losses.ratio import bounded_ratio, checked
from rewardsmith.algorithms.sequences import token_counts
from rewardsmith.algorithms.shapes import FloatBT, MaskBT


def gmpo(
    logprobs_BT: FloatBT,
    old_BT: FloatBT,
    advantages_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    low: Annotated[float, Field(ge=0, description="the log-ratio is clipped below -low")] = 0.4,
    high: Annotated[float, Field(ge=0, description="the log-ratio is clipped above +high")] = 0.4,
) -> tuple[FloatBT, dict[str, Tensor]]:
    r"""GMPO's loss: the advantage times the geometric mean of the tokens' pessimistically clipped ratios.

    $$\ell_i = -A_i \exp\Bigl(\tfrac{1}{|y_i|}\sum_t \sigma_{i,t}
      \min\bigl(\sigma_{i,t} \log\rho_{i,t},\; \sigma_{i,t}\,\mathrm{clip}(\log\rho_{i,t}, -\epsilon_{low},
      \epsilon_{high})\bigr)\Bigr), \qquad \sigma_{i,t} = \mathrm{sgn}(A_{i,t})$$

    Zhao et al. 2025, arXiv 2507.20673, eq. 4; the paper's clip range is (e^-0.4, e^0.4) and its advantage one number
    per response. Where advantages differ within a response, A_i is their mean, as in verl and TRL, whose names for the
    bounds these are. Every token holds ℓ_i, so the reduction `sequence-mean-token-mean` is the paper's mean over
    responses.
    """
    log_ratio_BT, advantages_BT = checked(logprobs_BT, old_BT, advantages_BT, mask_BT)
    lengths_B1 = token_counts(mask_BT)[:, None].clamp(min=1)
    advantage_B1 = advantages_BT.sum(-1, keepdim=True) / lengths_B1
    # Pessimistic: a token that should become likelier is bounded above only, one that should not, below only.
    rising_BT, number = advantages_BT > 0, log_ratio_BT.new_tensor
    lower_BT = torch.where(rising_BT, number(-torch.inf), number(-low))
    upper_BT = torch.where(rising_BT, number(high), number(torch.inf))
    pessimistic_BT = torch.where(advantages_BT == 0, 0, log_ratio_BT.clamp(lower_BT, upper_BT))
    ratio_B1 = bounded_ratio(pessimistic_BT.sum(-1, keepdim=True) / lengths_B1)
    report = {
        "clipped_low": (log_ratio_BT < lower_BT) & (advantages_BT < 0),
        "clipped_high": log_ratio_BT > upper_BT,
        "kl_from_old": -log_ratio_BT.detach(),
    }
    return torch.where(mask_BT, -advantage_B1 * ratio_B1, 0), report
