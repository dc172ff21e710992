"""The clipped surrogate of PPO, with separate bounds (DAPO) and the optional dual clip."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from rewardsmith.algorithms.policy_losses.ratio import High, Low, bounded_ratio, checked, clipped_surrogate
from rewardsmith.algorithms.shapes import FloatBT, MaskBT


def clip(
    logprobs_BT: FloatBT,
    old_BT: FloatBT,
    advantages_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    low: Low = 0.2,
    high: High = 0.2,
    dual: Annotated[
        float | None,
        Field(gt=1, description="bound of the ratio for negative advantages (dual clip)"),
    ] = None,
) -> tuple[FloatBT, dict[str, Tensor]]:
    r"""PPO's clipped loss.

    $$\ell_t = \max\bigl(-A_t\,\rho_t,\; -A_t\,\mathrm{clip}(\rho_t, 1-\epsilon_{low}, 1+\epsilon_{high})\bigr),
      \qquad \rho_t = \pi(y_t) / \pi_{old}(y_t)$$

    Schulman et al. 2017, arXiv 1707.06347, eq. 7; separate bounds: DAPO, arXiv 2503.14476. With `dual` = c the loss
    of a token with A < 0 is at most -A·c (Ye et al. 2020, arXiv 1912.09729).
    """
    log_ratio_BT, advantages_BT = checked(logprobs_BT, old_BT, advantages_BT, mask_BT)
    ratio_BT = bounded_ratio(log_ratio_BT)
    losses_BT, report = clipped_surrogate(ratio_BT, advantages_BT, low=low, high=high, dual=dual)
    return losses_BT, report | {"kl_from_old": -log_ratio_BT.detach()}
