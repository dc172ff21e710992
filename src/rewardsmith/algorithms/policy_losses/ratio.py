"""What all policy losses share: the checked inputs, the bounded log-ratio, and the settings of a clip range."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from rewardsmith.algorithms.shapes import FloatBT, MaskBT, masked

Low = Annotated[float, Field(ge=0, description="the ratio is clipped below 1 - low")]
High = Annotated[float, Field(ge=0, description="the ratio is clipped above 1 + high")]

LOG_RATIO_BOUND = 20.0


def checked(
    logprobs_BT: FloatBT, old_BT: FloatBT, advantages_BT: FloatBT, mask_BT: MaskBT
) -> tuple[FloatBT, FloatBT, FloatBT]:
    """Return (logprobs, log-ratio, advantages), all zero where masked; the log-ratio is not bounded yet."""
    logprobs_BT = masked("logprobs", logprobs_BT, mask_BT)
    advantages_BT = masked("advantages", advantages_BT, mask_BT).detach()
    return logprobs_BT, logprobs_BT - masked("old logprobs", old_BT, mask_BT).detach(), advantages_BT


def bounded_ratio(log_ratio_BT: FloatBT) -> FloatBT:
    """Return exp of the log-ratio bounded to ±20."""
    return torch.exp(log_ratio_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def statistics(log_ratio_BT: FloatBT, low_BT: MaskBT, high_BT: MaskBT) -> dict[str, FloatBT]:
    """Return what every clipping loss reports: how much was clipped on each side, and how far the policy moved."""
    log_ratio_BT = log_ratio_BT.detach()
    return {
        "clipped_low": low_BT.to(log_ratio_BT.dtype),
        "clipped_high": high_BT.to(log_ratio_BT.dtype),
        "kl_from_old": -log_ratio_BT,
    }
