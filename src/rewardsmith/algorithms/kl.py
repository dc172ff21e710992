r"""Distance from a reference policy: three estimators of KL(π ‖ π_ref) from the log-probability of a sampled token.

With d = log π(y) - log π_ref(y) and y sampled from π (Schulman 2020, "Approximating KL divergence"):

| name | value         | its mean          | expected gradient of the value as a loss                      |
|------|---------------|-------------------|---------------------------------------------------------------|
| k1   | d             | KL(π ‖ π_ref)     | 0: E[∇ log π] = 0, so as a loss term it does nothing but noise |
| k2   | d² / 2        | not KL, close     | ∇ KL(π ‖ π_ref), the one that is wanted                        |
| k3   | e^-d - 1 + d  | KL(π ‖ π_ref)     | ∇ KL(π_ref ‖ π), the other direction                           |

So: k1 belongs into the reward (`kl_reward`), where the policy gradient gives it its meaning; in the loss use k2, or
`kl_loss` with `unbiased=True`, which shows the value of k1 or k3 and has the gradient of k2.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from rewardsmith.algorithms.shapes import FloatBT, MaskBT, masked_difference

KlEstimator = Annotated[
    Literal["k1", "k2", "k3"],
    Field(description="k1 = d, k2 = d²/2, k3 = e^-d - 1 + d, with d = log π - log π_ref"),
]

_LOG_RATIO_BOUND = 20.0


def kl_estimate(logprobs_BT: FloatBT, reference_BT: FloatBT, mask_BT: MaskBT, *, estimator: KlEstimator) -> FloatBT:
    """Return the estimate at each token, [B, T], zero where masked. The reference gets no gradient.

    k3 bounds d below at -20 before exponentiating: a token that the reference likes e^20 times better has an estimate
    of 5e8 and no gradient.
    """
    difference_BT = masked_difference("logprobs", logprobs_BT, "reference logprobs", reference_BT, mask_BT)
    if estimator == "k1":
        return difference_BT
    if estimator == "k2":
        return difference_BT.square() / 2
    if estimator == "k3":
        bounded_BT = difference_BT.clamp(min=-_LOG_RATIO_BOUND)
        return torch.expm1(-bounded_BT) + bounded_BT  # e^-d - 1 would lose all digits for small d
    raise ValueError(f"estimator is {estimator!r}: it must be one of k1, k2, k3")


def kl_loss(
    logprobs_BT: FloatBT,
    reference_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    estimator: KlEstimator = "k2",
    unbiased: Annotated[bool, Field(description="use the gradient of k2, whichever value is shown")] = False,
) -> FloatBT:
    """Return a KL loss per token, to be weighted and reduced like a policy loss. See the table above."""
    value_BT = kl_estimate(logprobs_BT, reference_BT, mask_BT, estimator=estimator)
    if not unbiased or estimator == "k2":
        return value_BT
    gradient_BT = kl_estimate(logprobs_BT, reference_BT, mask_BT, estimator="k2")
    return value_BT.detach() + (gradient_BT - gradient_BT.detach())


def kl_reward(
    logprobs_BT: FloatBT,
    reference_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    estimator: KlEstimator = "k1",
) -> FloatBT:
    """Return the penalty as a reward per token: -k(d), detached. Multiply by the coefficient, add to the rewards."""
    return -kl_estimate(logprobs_BT.detach(), reference_BT, mask_BT, estimator=estimator)
