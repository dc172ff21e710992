"""Generalized advantage estimation: the critic as baseline."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rewardsmith.algorithms.advantages.settings import Discount
from rewardsmith.algorithms.sequences import sum_to_go, temporal_difference
from rewardsmith.algorithms.sequences import whiten as whitened
from rewardsmith.algorithms.shapes import FloatBT, IdsB, MaskBT, masked


def generalized_advantages(
    rewards_BT: FloatBT, values_BT: FloatBT, mask_BT: MaskBT, *, discount: float = 1.0, lam: float = 1.0
) -> FloatBT:
    r"""Return the unscaled GAE; add `values_BT` to get the critic's targets (the λ-returns).

    $$\delta_t = r_t + \gamma V_{t+1} - V_t, \qquad A_t = \sum_{s \ge t} (\gamma\lambda)^{s-t} \delta_s$$

    Schulman et al. 2016, arXiv 1506.02438, eq. 16. V after the last token is 0, also for a truncated response.
    """
    rewards_BT = masked("rewards", rewards_BT, mask_BT)
    values_BT = masked("values", values_BT, mask_BT)
    deltas_BT = temporal_difference(rewards_BT, values_BT, mask_BT, discount=discount)
    return sum_to_go(deltas_BT, mask_BT, discount=discount * lam)


def gae(
    rewards_BT: FloatBT,
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None,
    support_BT: MaskBT | None = None,
    *,
    discount: Discount = 1.0,
    lam: Annotated[float, Field(ge=0, le=1, description="λ: 0 trusts the critic, 1 trusts the rewards")] = 1.0,
    whiten: Annotated[bool, Field(description="scale the advantages to mean 0, variance 1 over the batch")] = True,
) -> FloatBT:
    """Advantage over a critic's values (PPO). See `generalized_advantages` for the equation.

    Returns:
        [B, T]; whitened over all tokens of the batch by default, as PPO implementations do.
    """
    if values_BT is None:
        raise ValueError("gae needs values_BT: a critic's value at every token")
    advantages_BT = generalized_advantages(rewards_BT, values_BT, mask_BT, discount=discount, lam=lam)
    return whitened(advantages_BT, mask_BT) if whiten else advantages_BT
