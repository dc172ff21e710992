"""What all policy losses share: the checked inputs, the bounded log-ratio, and the settings of a clip range."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from rewardsmith.algorithms.shapes import FloatBT, MaskBT, masked, masked_difference

Low = Annotated[float, Field(ge=0, description="the ratio is clipped below 1 - low")]
High = Annotated[float, Field(ge=0, description="the ratio is clipped above 1 + high")]

LOG_RATIO_BOUND = 20.0


def checked(logprobs_BT: FloatBT, old_BT: FloatBT, advantages_BT: FloatBT, mask_BT: MaskBT) -> tuple[FloatBT, FloatBT]:
    """Return (log-ratio, advantages), zero where masked. The log-ratio has the gradient of the log-probabilities.

    The log-ratio is not bounded yet: that is what `bounded_ratio` does.
    """
    log_ratio_BT = masked_difference("logprobs", logprobs_BT, "old logprobs", old_BT, mask_BT)
    return log_ratio_BT, masked("advantages", advantages_BT.detach(), mask_BT)


def bounded_ratio(log_ratio_BT: FloatBT) -> FloatBT:
    """Return exp of the log-ratio bounded to ±20."""
    return torch.exp(log_ratio_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def clipped_surrogate(
    ratio_BT: FloatBT, advantages_BT: FloatBT, *, low: float, high: float, dual: float | None = None
) -> tuple[FloatBT, dict[str, Tensor]]:
    r"""Return $\max(-A\rho, -A\,\mathrm{clip}(\rho, 1-low, 1+high))$, and which tokens the clip holds back.

    Written as $-A\,\mathrm{clamp}(\rho, lower(A), upper(A))$, which is the same: a token that should become likelier
    is bounded above by 1 + high only, one that should become unlikelier below by 1 - low, and above by `dual`.
    """
    falling_BT = advantages_BT < 0
    number = ratio_BT.new_tensor
    lower_BT = torch.where(falling_BT, number(1 - low), number(0.0))
    upper_BT = torch.where(falling_BT, number(torch.inf if dual is None else dual), number(1 + high))
    losses_BT = -advantages_BT * ratio_BT.clamp(lower_BT, upper_BT)
    above_BT = ratio_BT > upper_BT
    report = {"clipped_low": ratio_BT < lower_BT, "clipped_high": above_BT & (advantages_BT > 0)}
    if dual is not None:
        report["clipped_dual"] = above_BT & falling_BT
    return losses_BT, report
