"""Estimators that do not look at the group: REINFORCE, REINFORCE++, ReMax, a process reward model as value."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from rewardsmith.algorithms.advantages.settings import Discount
from rewardsmith.algorithms.sequences import sum_to_go, whiten
from rewardsmith.algorithms.shapes import FloatBT, IdsB, MaskBT, check_option, masked


def reinforce(
    rewards_BT: FloatBT,
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None = None,
    support_BT: MaskBT | None = None,
    *,
    discount: Discount = 1.0,
) -> FloatBT:
    r"""Reward to go, less a baseline if one is given.

    $$A_t = \sum_{s \ge t} \gamma^{s-t} r_s - V_t$$

    Williams 1992. With `values_BT` from a process reward model this is "PRM as value"; see `process_value`.
    """
    returns_BT = sum_to_go(masked("rewards", rewards_BT.detach(), mask_BT), mask_BT, discount=discount)
    if values_BT is None:
        return returns_BT
    baseline_BT = masked("values", values_BT.detach(), mask_BT)
    return torch.sub(returns_BT, baseline_BT, out=baseline_BT)


def reinforce_plus_plus(
    rewards_BT: FloatBT,
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None = None,
    support_BT: MaskBT | None = None,
    *,
    discount: Discount = 1.0,
) -> FloatBT:
    """Reward to go, whitened over all tokens of the batch.

    Hu et al. 2025 (REINFORCE++), arXiv 2501.03262. The paper puts the reference KL into the rewards; see
    `kl.kl_reward`.
    """
    return whiten(reinforce(rewards_BT, mask_BT, groups_B, discount=discount), mask_BT)


def remax(
    rewards_BT: FloatBT,
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None,
    support_BT: MaskBT | None = None,
    *,
    discount: Discount = 1.0,
) -> FloatBT:
    """Reward to go, less the reward of the greedy answer to the same prompt.

    Li et al. 2023 (ReMax), arXiv 2310.10505. `values_BT` holds that reward at every token
    of the row. For outcome rewards: the greedy answer's tokens are others than the rollout's, so there is no reward to
    go that would fit a dense reward.
    """
    if values_BT is None:
        raise ValueError("remax needs values_BT: the reward of the greedy answer, at every token of its row")
    return reinforce(rewards_BT, mask_BT, groups_B, values_BT, discount=discount)


def process_value(
    rewards_BT: FloatBT,
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None,
    support_BT: MaskBT | None = None,
    *,
    discount: Discount = 1.0,
    link: Annotated[
        Literal["logit", "probability"],
        Field(description="the sum of process rewards as it is, as in the paper, or through a sigmoid"),
    ] = "logit",
) -> FloatBT:
    r"""Reward to go, less what an implicit process reward model thought of the answer before the token.

    $$A_t = \sum_{s \ge t} \gamma^{s-t} r_s - v_\phi(y_{<t}), \qquad v_\phi(y_{<t}) = \sum_{s<t} r_\phi(y_s)$$

    "PRM as value" of PRIME, arXiv 2502.01456, section 5: the process rewards are no rewards here, but the baseline.
    `values_BT` holds v_φ, a logit (`implicit.values_before`). With `link` = "probability" the baseline is σ(v_φ), which
    is on the scale of outcomes between 0 and 1.
    """
    check_option("link", link, ("logit", "probability"))
    if values_BT is None:
        raise ValueError("process_value needs values_BT: the sum of the process rewards before each token")
    baseline_BT = masked("values", values_BT.detach(), mask_BT)  # here, since a sigmoid would hide an infinite value
    if link == "probability":
        baseline_BT = baseline_BT.sigmoid()
    return reinforce(rewards_BT, mask_BT, groups_B, baseline_BT, discount=discount)
