"""Weights that mend the mismatch between the program that sampled a token and the one that learns from it."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from rewardsmith.algorithms.shapes import FloatBT, MaskBT, check_option, masked_difference

_LOG_WEIGHT_BOUND = 20.0


def importance_weights(
    learner_BT: FloatBT,
    sampler_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    level: Annotated[
        Literal["token", "sequence"],
        Field(description="a weight for each token, or their product for each response"),
    ] = "token",
    cap: Annotated[float, Field(gt=0, description="the largest weight")] = 2.0,
    floor: Annotated[float, Field(ge=0, description="the smallest weight")] = 0.0,
    outside: Annotated[
        Literal["truncate", "drop"],
        Field(description="bring a weight beyond the bounds to the bound, or to 0"),
    ] = "truncate",
) -> FloatBT:
    r"""Return $w = \pi_{learner} / \pi_{sampler}$, bounded, without gradient; multiply the token losses by it.

    `truncate` is truncated importance sampling (Ionides 2008), as used for the gap between inference engines and
    trainers; `drop` with a floor is the masked form (IcePop). Weights are 0 where masked.
    """
    check_option("level", level, ("token", "sequence"))
    check_option("outside", outside, ("truncate", "drop"))
    if floor > cap:
        raise ValueError(f"floor is {floor} and cap {cap}: the smallest weight cannot be above the largest")
    learner_BT = learner_BT.detach()
    difference_BT = masked_difference("learner logprobs", learner_BT, "sampler logprobs", sampler_BT, mask_BT)
    if level == "sequence":
        difference_BT = difference_BT.sum(-1, keepdim=True).expand_as(difference_BT)
    weights_BT = torch.exp(difference_BT.clamp(-_LOG_WEIGHT_BOUND, _LOG_WEIGHT_BOUND))
    if outside == "truncate":
        weights_BT = weights_BT.clamp(floor, cap)
    else:
        weights_BT = torch.where((weights_BT >= floor) & (weights_BT <= cap), weights_BT, 0)
    return torch.where(mask_BT, weights_BT, 0)
