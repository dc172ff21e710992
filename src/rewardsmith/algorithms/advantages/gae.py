"""Generalized advantage estimation: the critic as baseline."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rewardsmith.algorithms.advantages.settings import Discount
from rewardsmith.algorithms.sequences import sum_to_go, temporal_difference
from rewardsmith.algorithms.shapes import FloatBT, IdsB, MaskBT, masked


def gae(
    rewards_BT: FloatBT,
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None,
    support_BT: MaskBT | None = None,
    *,
    discount: Discount = 1.0,
    lam: Annotated[float, Field(ge=0, le=1, description="λ: 0 trusts the critic, 1 trusts the rewards")] = 1.0,
) -> FloatBT:
    r"""Advantage over a critic's values (PPO).

    $$\delta_t = r_t + \gamma V_{t+1} - V_t, \qquad A_t = \sum_{s \ge t} (\gamma\lambda)^{s-t} \delta_s$$

    Schulman et al. 2016, arXiv 1506.02438, eq. 16. V after the last token is 0, also for a truncated response. Adding
    `values_BT` to the result gives the critic's targets, the λ-returns. PPO implementations whiten the result over
    the batch; here that is a setting of its own (`credit(…, whiten=True)`).
    """
    if values_BT is None:
        raise ValueError("gae needs values_BT: a critic's value at every token")
    rewards_BT = masked("rewards", rewards_BT.detach(), mask_BT)
    values_BT = masked("values", values_BT.detach(), mask_BT)
    deltas_BT = temporal_difference(rewards_BT, values_BT, mask_BT, discount=discount)
    return sum_to_go(deltas_BT, mask_BT, discount=discount * lam)
