"""Estimators whose baseline is the group: GRPO, Dr. GRPO, RLOO, OPO, REINFORCE++ with a group baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field

from rewardsmith.algorithms.advantages.settings import Discount, Epsilon
from rewardsmith.algorithms.groups import Groups
from rewardsmith.algorithms.sequences import last_token, sum_to_go, token_counts, whiten, whiten_rows
from rewardsmith.algorithms.shapes import FloatB, FloatBT, IdsB, MaskBT, check_groups, check_mask, check_option, masked

Scale = Annotated[
    Literal["group", "batch", "none"],
    Field(description="divide by the standard deviation of the group, of the whole batch, or not at all"),
]
LeaveOneOut = Annotated[
    Literal["exact", "prime"],
    Field(description="for dense rewards: exact, or as PRIME's code has it, which stretches deviations by n/(n-1)"),
]


@dataclass(frozen=True)
class _Carried:
    """Rewards on the tokens that carry them.

    Attributes:
        rewards_BT: [B, T], zero off the support. For outcomes all that counts is `level_B`.
        outcome: whether each row holds one outcome instead of rewards per token.
        support_BT: [B, T] bool, the tokens that carry a reward.
        mask_BT: [B, T] bool, the response tokens.
        level_B: float64 [B], the mean reward per carrying token; the whole reward of an outcome row.
        groups: who is compared with whom; a row that carries no reward does not vote.
    """

    rewards_BT: FloatBT
    outcome: bool
    support_BT: MaskBT
    mask_BT: MaskBT
    level_B: FloatB
    groups: Groups

    @classmethod
    def of(cls, rewards_BT: FloatBT, mask_BT: MaskBT, groups_B: IdsB, support_BT: MaskBT | None) -> _Carried:
        rewards_BT = masked("rewards", rewards_BT.detach(), mask_BT)
        check_groups(groups_B, mask_BT)
        if support_BT is None:
            groups = Groups.of(groups_B, token_counts(mask_BT) > 0)
            return cls(rewards_BT, True, mask_BT, mask_BT, rewards_BT.sum(-1).double(), groups)
        check_mask("support", support_BT, "rewards", rewards_BT)
        support_BT = support_BT & mask_BT
        rewards_BT = torch.where(support_BT, rewards_BT, 0)
        carriers_B = token_counts(support_BT)
        level_B = rewards_BT.sum(-1).double() / carriers_B.clamp(min=1)
        groups = Groups.of(groups_B, carriers_B > 0)
        return cls(rewards_BT, False, support_BT, mask_BT, level_B, groups)

    def returns(self, baseline_B: FloatB, scale_B: FloatB | float, discount: float) -> FloatBT:
        """Return Σ_{s≥t} γ^{s-t} (r_s - b)·scale, zero for rows that have no sibling to be compared with."""
        compared_B, dtype = self.groups.compared_B, self.rewards_BT.dtype
        if self.outcome:
            centred_B = torch.where(compared_B, (self.level_B - baseline_B) * scale_B, 0).to(dtype)
            if discount == 1.0:
                return self.spread(centred_B)
            placed_BT = torch.where(last_token(self.mask_BT), centred_B[:, None], 0)
            return sum_to_go(placed_BT, self.mask_BT, discount=discount)
        scale_B = torch.as_tensor(scale_B, dtype=torch.float64, device=compared_B.device)
        factor_B = torch.where(compared_B, scale_B, 0).to(dtype)
        centred_BT = (self.rewards_BT - baseline_B.to(dtype)[:, None]) * factor_B[:, None]
        placed_BT = torch.where(self.support_BT & compared_B[:, None], centred_BT, 0)
        return sum_to_go(placed_BT, self.mask_BT, discount=discount)

    def spread(self, values_B: FloatB) -> FloatBT:
        """Return each row's value on all its tokens. Writes over the rewards: memory just used is the fastest."""
        return torch.where(self.mask_BT, values_B[:, None], values_B.new_zeros(()), out=self.rewards_BT)


def grpo(
    rewards_BT: FloatBT,
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None = None,
    support_BT: MaskBT | None = None,
    *,
    discount: Discount = 1.0,
    scale: Scale = "group",
    eps: Epsilon = 1e-6,
) -> FloatBT:
    r"""Group-relative advantage: standardise within the group.

    $$A_i = \frac{R_i - \operatorname{mean}_j R_j}{\operatorname{std}_j R_j + \epsilon}$$

    Shao et al. 2024 (DeepSeekMath), arXiv 2402.03300, section 4.1.2; the standard deviation is the unbiased one.
    `scale` = "batch" divides by the deviation of all rewards of the batch instead, "none" does not divide. A group
    whose rewards do not differ has advantage 0 under "group".
    """
    check_option("scale", scale, ("group", "batch", "none"))
    carried = _Carried.of(rewards_BT, mask_BT, groups_B, support_BT)
    level_B, groups = carried.level_B, carried.groups
    scale_B: FloatB | float = 1.0
    if scale != "none":
        spread = groups if scale == "group" else Groups.of(torch.zeros_like(groups_B), groups.votes_B)
        std_B = spread.std(level_B)
        scale_B = torch.where(std_B > 0, 1 / (std_B + eps), 0)
    return carried.returns(groups.mean(level_B), scale_B, discount)


def dr_grpo(
    rewards_BT: FloatBT,
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None = None,
    support_BT: MaskBT | None = None,
    *,
    discount: Discount = 1.0,
) -> FloatBT:
    """GRPO without the division by the standard deviation: A_i = R_i - mean_j R_j.

    Liu et al. 2025, arXiv 2503.20783. The other half of Dr. GRPO, a loss that does not favour short right answers, is
    the reduction `constant-length`.
    """
    return grpo(rewards_BT, mask_BT, groups_B, values_BT, support_BT, discount=discount, scale="none")


def rloo(
    rewards_BT: FloatBT,
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None = None,
    support_BT: MaskBT | None = None,
    *,
    discount: Discount = 1.0,
    leave_one_out: LeaveOneOut = "exact",
) -> FloatBT:
    r"""Leave-one-out baseline: each rollout is compared with the mean of its siblings.

    $$A_i = R_i - \frac{1}{n-1} \sum_{j \ne i} R_j$$

    Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740. For dense rewards the baseline is the siblings' mean of
    the per-token averages r̄_j (PRIME, arXiv 2502.01456, eq. 5):

    $$A_{i,t} = \sum_{s \ge t} \gamma^{s-t} \Bigl[ r_{i,s} - \frac{1}{n-1} \sum_{j \ne i} \bar r_j \Bigr]$$

    PRIME's published code computes r·n/(n-1) - Σ_j r̄_j/(n-1) instead, which adds (r_{i,s} - r̄_i)/(n-1) to each
    token; `leave_one_out` = "prime" reproduces it.
    """
    check_option("leave_one_out", leave_one_out, ("exact", "prime"))
    carried = _Carried.of(rewards_BT, mask_BT, groups_B, support_BT)
    level_B, groups = carried.level_B, carried.groups
    if leave_one_out == "exact":
        return carried.returns(groups.leave_one_out(level_B), 1.0, discount)
    # r·n/(n-1) - Σr̄/(n-1) = (r - mean_j r̄_j)·n/(n-1)
    return carried.returns(groups.mean(level_B), groups.voters_B / (groups.voters_B - 1).clamp(min=1), discount)


def opo(
    rewards_BT: FloatBT,
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None = None,
    support_BT: MaskBT | None = None,
    *,
    discount: Discount = 1.0,
) -> FloatBT:
    r"""Length-weighted baseline, the one of least variance when gradients grow with length.

    $$A_i = R_i - \frac{\sum_j l_j R_j}{\sum_j l_j}, \qquad l_j = \text{response tokens of } j$$

    Hao et al. 2025 (OPO), arXiv 2505.23585.
    """
    carried = _Carried.of(rewards_BT, mask_BT, groups_B, support_BT)
    baseline_B = carried.groups.mean(carried.level_B, weights_B=token_counts(mask_BT).double())
    return carried.returns(baseline_B, 1.0, discount)


def reinforce_plus_plus_baseline(
    rewards_BT: FloatBT,
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None = None,
    support_BT: MaskBT | None = None,
    *,
    discount: Discount = 1.0,
) -> FloatBT:
    """Subtract the group's mean reward, then whiten over all tokens of the batch.

    Hu et al. 2025 (REINFORCE++), arXiv 2501.03262, the form with a group baseline. Rollouts that have no sibling to be
    compared with stay 0 and are left out of the whitening.
    """
    carried = _Carried.of(rewards_BT, mask_BT, groups_B, support_BT)
    baseline_B = carried.groups.mean(carried.level_B)
    compared_B = carried.groups.compared_B
    if support_BT is None and discount == 1.0:  # all tokens of a row hold one value: no need to go to the tokens
        counts_B = torch.where(compared_B, token_counts(mask_BT), 0)
        white_B = whiten_rows(carried.level_B - baseline_B, counts_B)
        return carried.spread(torch.where(compared_B, white_B, 0).to(rewards_BT.dtype))
    return whiten(carried.returns(baseline_B, 1.0, discount), mask_BT & compared_B[:, None])


GROUP_ESTIMATORS = frozenset({grpo, dr_grpo, rloo, opo, reinforce_plus_plus_baseline})
"""Those that compare a rollout with its siblings: without a voting sibling it gets no advantage."""
