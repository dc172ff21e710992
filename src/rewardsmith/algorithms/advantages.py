r"""From rewards to advantages per token: the estimators, and streams of several rewards.

    estimator(inputs, *, discount=1.0, …) -> advantages_BT

`inputs` are `RewardTensors`; keyword arguments are the settings that a recipe may give. With dense rewards a group
estimator centres each reward by the group's mean reward *per carrying token* and then sums from each token on (PRIME,
arXiv 2502.01456, eq. 5). An outcome is the case of one carrying token, so both are one formula:
A_t = Σ_{s≥t} γ^{s-t} (r_s - b) over the tokens s that carry a reward.

A rollout without a voting sibling has advantage 0 wherever the baseline comes from its group; an outcome group whose
rewards are all equal has advantage exactly 0 before whitening; masked tokens have advantage 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from rewardsmith.algorithms.tensors import (
    FloatB,
    FloatBT,
    Groups,
    IdsB,
    MaskB,
    MaskBT,
    check_groups,
    check_mask,
    check_option,
    last_token,
    masked,
    sum_to_go,
    temporal_difference,
    token_counts,
    whiten_rows,
)
from rewardsmith.algorithms.tensors import whiten as whitened

Discount = Annotated[float, Field(ge=0, le=1, description="γ: how much a reward counts one token earlier")]
Epsilon = Annotated[float, Field(gt=0, description="added to the standard deviation before dividing by it")]
Scale = Annotated[
    Literal["group", "batch", "none"],
    Field(description="divide by the standard deviation of the group, of the whole batch, or not at all"),
]
LeaveOneOut = Annotated[
    Literal["exact", "prime"],
    Field(description="for dense rewards: exact, or as PRIME's code has it, which stretches deviations by n/(n-1)"),
]
Link = Annotated[
    Literal["logit", "probability"],
    Field(description="the sum of process rewards as it is, as in the paper, or through a sigmoid"),
]


@dataclass(frozen=True)
class RewardTensors:
    """What an estimator reads. A row whose mask is all False failed or is empty: no advantage, no vote in its group."""

    rewards_BT: FloatBT  # an outcome reward is on any token of its row, usually the last
    mask_BT: MaskBT  # True for response tokens
    groups_B: IdsB  # rollouts with the same id answer the same prompt; any ids, any order, any group size
    values_BT: FloatBT | None = None  # a baseline from outside: a critic (`gae`), the greedy answer's reward (`remax`)
    support_BT: MaskBT | None = None  # tokens that carry a reward of their own; None: the row's rewards are one outcome


# ---- baseline from the group ----------------------------------------------------------------------------------------


class _Carried:
    """Rewards on the tokens that carry them; a row that carries no reward does not vote in its group."""

    def __init__(self, inputs: RewardTensors) -> None:
        self.mask_BT = inputs.mask_BT
        self.outcome = inputs.support_BT is None
        rewards_BT = masked("rewards", inputs.rewards_BT.detach(), self.mask_BT)
        check_groups(inputs.groups_B, self.mask_BT)
        if inputs.support_BT is None:
            self.support_BT, carriers_B = self.mask_BT, token_counts(self.mask_BT)
            self.level_B = rewards_BT.sum(-1).double()  # the outcome of a row
        else:
            check_mask("support", inputs.support_BT, "rewards", rewards_BT)
            self.support_BT = inputs.support_BT & self.mask_BT
            rewards_BT = torch.where(self.support_BT, rewards_BT, 0)
            carriers_B = token_counts(self.support_BT)
            self.level_B = rewards_BT.sum(-1).double() / carriers_B.clamp(min=1)  # the mean reward per carrying token
        self.rewards_BT = rewards_BT
        self.groups = Groups(inputs.groups_B, carriers_B > 0)

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


def grpo(inputs: RewardTensors, *, discount: Discount = 1.0, scale: Scale = "group", eps: Epsilon = 1e-6) -> FloatBT:
    r"""Group-relative advantage: standardise within the group.

    $$A_i = \frac{R_i - \operatorname{mean}_j R_j}{\operatorname{std}_j R_j + \epsilon}$$

    Shao et al. 2024 (DeepSeekMath), arXiv 2402.03300, section 4.1.2; the standard deviation is the unbiased one.
    `scale` = "batch" divides by the deviation of all rewards of the batch instead, "none" does not divide. A group
    whose rewards do not differ has advantage 0 under "group".
    """
    check_option("scale", scale, ("group", "batch", "none"))
    carried = _Carried(inputs)
    level_B, groups = carried.level_B, carried.groups
    scale_B: FloatB | float = 1.0
    if scale != "none":
        compared = groups if scale == "group" else Groups(torch.zeros_like(inputs.groups_B), groups.votes_B)
        std_B = compared.std(level_B)
        scale_B = torch.where(std_B > 0, 1 / (std_B + eps), 0)
    return carried.returns(groups.mean(level_B), scale_B, discount)


def dr_grpo(inputs: RewardTensors, *, discount: Discount = 1.0) -> FloatBT:
    """GRPO without the division by the standard deviation: A_i = R_i - mean_j R_j.

    Liu et al. 2025, arXiv 2503.20783. The other half of Dr. GRPO, a loss that does not favour short right answers, is
    the reduction `constant-length`.
    """
    return grpo(inputs, discount=discount, scale="none")


def rloo(inputs: RewardTensors, *, discount: Discount = 1.0, leave_one_out: LeaveOneOut = "exact") -> FloatBT:
    r"""Leave-one-out baseline: each rollout is compared with the mean of its siblings.

    $$A_i = R_i - \frac{1}{n-1} \sum_{j \ne i} R_j$$

    Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740. For dense rewards the baseline is the siblings' mean of
    the per-token averages r̄_j (PRIME, arXiv 2502.01456, eq. 5):

    $$A_{i,t} = \sum_{s \ge t} \gamma^{s-t} \Bigl[ r_{i,s} - \frac{1}{n-1} \sum_{j \ne i} \bar r_j \Bigr]$$

    PRIME's published code computes r·n/(n-1) - Σ_j r̄_j/(n-1) instead, which adds (r_{i,s} - r̄_i)/(n-1) to each
    token; `leave_one_out` = "prime" reproduces it.
    """
    check_option("leave_one_out", leave_one_out, ("exact", "prime"))
    carried = _Carried(inputs)
    level_B, groups = carried.level_B, carried.groups
    if leave_one_out == "exact":
        return carried.returns(groups.leave_one_out(level_B), 1.0, discount)
    # r·n/(n-1) - Σr̄/(n-1) = (r - mean_j r̄_j)·n/(n-1)
    return carried.returns(groups.mean(level_B), groups.voters_B / (groups.voters_B - 1).clamp(min=1), discount)


def opo(inputs: RewardTensors, *, discount: Discount = 1.0) -> FloatBT:
    r"""Length-weighted baseline, the one of minimum variance when gradients grow with length.

    $$A_i = R_i - \frac{\sum_j l_j R_j}{\sum_j l_j}, \qquad l_j = \text{response tokens of } j$$

    Hao et al. 2025 (OPO), arXiv 2505.23585.
    """
    carried = _Carried(inputs)
    baseline_B = carried.groups.mean(carried.level_B, weights_B=token_counts(inputs.mask_BT).double())
    return carried.returns(baseline_B, 1.0, discount)


def reinforce_plus_plus_baseline(inputs: RewardTensors, *, discount: Discount = 1.0) -> FloatBT:
    """Subtract the group's mean reward, then whiten over all tokens of the batch.

    Hu et al. 2025 (REINFORCE++), arXiv 2501.03262, the form with a group baseline. Rollouts that have no sibling to be
    compared with stay 0 and are left out of the whitening.
    """
    carried = _Carried(inputs)
    baseline_B = carried.groups.mean(carried.level_B)
    compared_B = carried.groups.compared_B
    if carried.outcome and discount == 1.0:  # all tokens of a row hold one value: no need to go to the tokens
        counts_B = torch.where(compared_B, token_counts(inputs.mask_BT), 0)
        white_B = whiten_rows(carried.level_B - baseline_B, counts_B)
        return carried.spread(torch.where(compared_B, white_B, 0).to(inputs.rewards_BT.dtype))
    return whitened(carried.returns(baseline_B, 1.0, discount), inputs.mask_BT & compared_B[:, None])


# ---- other baselines, or none ---------------------------------------------------------------------------------------


def gae(
    inputs: RewardTensors,
    *,
    discount: Discount = 1.0,
    lam: Annotated[float, Field(ge=0, le=1, description="λ: 0 trusts the critic, 1 trusts the rewards")] = 1.0,
) -> FloatBT:
    r"""Advantage over a critic's values (PPO).

    $$\delta_t = r_t + \gamma V_{t+1} - V_t, \qquad A_t = \sum_{s \ge t} (\gamma\lambda)^{s-t} \delta_s$$

    Schulman et al. 2016, arXiv 1506.02438, eq. 16. V after the last token is 0, also for a truncated response. Adding
    `values_BT` to the result gives the critic's targets, the λ-returns. PPO whitens the result over the batch:
    `estimate_advantages(…, whiten=True)`.
    """
    values_BT = _values(inputs, "gae", "a critic's value at every token")
    rewards_BT = masked("rewards", inputs.rewards_BT.detach(), inputs.mask_BT)
    deltas_BT = temporal_difference(rewards_BT, values_BT, inputs.mask_BT, discount=discount)
    return sum_to_go(deltas_BT, inputs.mask_BT, discount=discount * lam)


def reinforce(inputs: RewardTensors, *, discount: Discount = 1.0) -> FloatBT:
    r"""Reward to go, less a baseline if one is given: $A_t = \sum_{s \ge t} \gamma^{s-t} r_s - V_t$ (Williams 1992)."""
    baseline_BT = None if inputs.values_BT is None else _values(inputs, "reinforce", "")
    return _to_go(inputs, baseline_BT, discount)


def reinforce_plus_plus(inputs: RewardTensors, *, discount: Discount = 1.0) -> FloatBT:
    """Reward to go, whitened over all tokens of the batch.

    Hu et al. 2025 (REINFORCE++), arXiv 2501.03262. The paper puts the reference KL into the rewards: `kl_reward`.
    """
    return whitened(_to_go(inputs, None, discount), inputs.mask_BT)


def remax(inputs: RewardTensors, *, discount: Discount = 1.0) -> FloatBT:
    """Reward to go, less the reward of the greedy answer to the same prompt.

    Li et al. 2023 (ReMax), arXiv 2310.10505. `values_BT` holds that reward at every token of the row. For outcome
    rewards: the greedy answer's tokens are others than the rollout's, so no reward to go would fit a dense reward.
    """
    baseline_BT = _values(inputs, "remax", "the reward of the greedy answer, at every token of its row")
    return _to_go(inputs, baseline_BT, discount)


def process_value(inputs: RewardTensors, *, discount: Discount = 1.0, link: Link = "logit") -> FloatBT:
    r"""Reward to go, less what an implicit process reward model thought of the answer before the token.

    $$A_t = \sum_{s \ge t} \gamma^{s-t} r_s - v_\phi(y_{<t}), \qquad v_\phi(y_{<t}) = \sum_{s<t} r_\phi(y_s)$$

    "PRM as value" of PRIME, arXiv 2502.01456, section 5: the process rewards are no rewards here, but the baseline.
    `values_BT` holds v_φ, a logit (`implicit_rewards.values_before`). With `link` = "probability" the baseline is
    σ(v_φ), which is on the scale of outcomes between 0 and 1.
    """
    check_option("link", link, ("logit", "probability"))
    baseline_BT = _values(inputs, "process_value", "the sum of the process rewards before each token")
    return _to_go(inputs, baseline_BT.sigmoid() if link == "probability" else baseline_BT, discount)


def _values(inputs: RewardTensors, estimator: str, meaning: str) -> FloatBT:
    if inputs.values_BT is None:
        raise ValueError(f"{estimator} needs values_BT: {meaning}")
    return masked("values", inputs.values_BT.detach(), inputs.mask_BT)


def _to_go(inputs: RewardTensors, baseline_BT: FloatBT | None, discount: float) -> FloatBT:
    rewards_BT = masked("rewards", inputs.rewards_BT.detach(), inputs.mask_BT)
    returns_BT = sum_to_go(rewards_BT, inputs.mask_BT, discount=discount)
    if baseline_BT is None:
        return returns_BT
    return torch.where(inputs.mask_BT, torch.sub(returns_BT, baseline_BT), 0)


ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    "gae": gae,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "opo": opo,
    "reinforce": reinforce,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "remax": remax,
    "process_value": process_value,
}
GROUP_ESTIMATORS = frozenset({grpo, dr_grpo, rloo, opo, reinforce_plus_plus_baseline})
VALUES_FROM: dict[Callable[..., object], str] = {gae: "critic", remax: "greedy", process_value: "process"}


def compares(estimator: Callable[..., object]) -> bool:
    """Whether the estimator compares a rollout with its siblings: without a voting sibling it has no advantage."""
    while isinstance(estimator, partial):
        estimator = estimator.func
    return estimator in GROUP_ESTIMATORS


def values_from(estimator: Callable[..., object]) -> str:
    """Return where an estimator's `values_BT` come from: "critic", "greedy", "process", or "" for nowhere.

    An estimator of your own declares it by an attribute: `my_estimator.values_from = "critic"`.
    """
    return VALUES_FROM.get(estimator, getattr(estimator, "values_from", ""))


# ---- several rewards -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stream:
    """One named reward, with its own weight, discount and, where it failed, its own mask."""

    name: str  # of the reward part
    rewards_BT: Tensor
    support_BT: Tensor | None = None  # bool, the tokens that carry a reward of their own; None for an outcome
    mask_BT: Tensor | None = None  # bool, response tokens of the rows that this reward could score; None: all
    weight: float = 1.0
    discount: float | None = None  # None takes the estimator's

    def scored(self, mask_BT: MaskBT) -> MaskBT:
        """Return the tokens of `mask_BT` whose row this reward could score."""
        return mask_BT if self.mask_BT is None else mask_BT & self.mask_BT

    def estimate(self, estimator: Callable[..., Tensor], inputs: RewardTensors) -> FloatBT:
        """Return the advantages by an estimator, with the stream's own discount if it has one."""
        return estimator(inputs) if self.discount is None else estimator(inputs, discount=self.discount)


def estimate_advantages(
    streams: Sequence[Stream],
    mask_BT: MaskBT,
    groups_B: IdsB,
    values_BT: FloatBT | None = None,
    *,
    estimator: Callable[..., Tensor],
    combine: Literal["before", "after"] = "before",
    whiten: bool = False,
) -> FloatBT:
    r"""Return the advantages [B, T] of reward streams; the estimator has its settings bound (`functools.partial`).

    "before": one estimate of the weighted sum, $A = E(\sum_k w_k r_k)$: the usual mixed reward.
    "after": one estimate per stream, $A = \sum_k w_k E_k(r_k)$. With `rloo` this is PRIME (arXiv 2502.01456, eq. 5);
    with `grpo` it is GDPO (arXiv 2601.05242). Both papers whiten the sum over the batch: set `whiten`.

    A row that a stream could not score takes no part in that stream's baseline, and a row that no stream could compare
    stays at 0, also under `whiten`. Under "before" a stream may drop out only of whole groups: otherwise siblings would
    be compared on different scales. `values_BT` is a baseline of the summed reward, for "before" only.
    """
    check_option("combine", combine, ("before", "after"))
    check_groups(groups_B, mask_BT)
    if combine == "before":
        inputs = _weighted_sum(streams, mask_BT, groups_B, values_BT, same_support=compares(estimator))
        advantages_BT = streams[0].estimate(estimator, inputs)
    else:
        if values_BT is not None:
            raise ValueError("values_BT is one baseline for the summed reward: use combine='before'")
        advantages_BT = torch.zeros_like(streams[0].rewards_BT)
        for s in streams:
            inputs = RewardTensors(s.rewards_BT, s.scored(mask_BT), groups_B, None, s.support_BT)
            advantages_BT = advantages_BT + s.weight * s.estimate(estimator, inputs)
    if not whiten:
        return advantages_BT
    return whitened(advantages_BT, mask_BT & _estimated(streams, mask_BT, groups_B, compares(estimator))[:, None])


def _weighted_sum(
    streams: Sequence[Stream], mask_BT: MaskBT, groups_B: IdsB, values_BT: FloatBT | None, *, same_support: bool
) -> RewardTensors:
    first = streams[0]
    sum_BT = torch.zeros_like(first.rewards_BT)
    support_BT = first.support_BT
    for stream in streams:
        if stream.discount != first.discount:
            raise ValueError(
                f"streams {first.name!r} and {stream.name!r} have discounts {first.discount} and {stream.discount}:"
                " rewards that are summed before the estimate share one; use combine='after'"
            )
        one, other = first.support_BT, stream.support_BT
        if one is not other and (one is None or other is None or not torch.equal(one, other)):
            if same_support:
                raise ValueError(
                    f"streams {first.name!r} and {stream.name!r} carry their rewards on different tokens: an estimator"
                    " that compares siblings cannot centre their sum; use combine='after'"
                )
            support_BT = None
        scored_BT = stream.scored(mask_BT)
        _require_whole_groups(stream.name, scored_BT, mask_BT, groups_B)
        sum_BT = sum_BT + stream.weight * masked(f"rewards of {stream.name!r}", stream.rewards_BT, scored_BT)
    return RewardTensors(sum_BT, mask_BT, groups_B, values_BT, support_BT)


def _estimated(streams: Sequence[Stream], mask_BT: MaskBT, groups_B: IdsB, compared: bool) -> MaskB:
    """Return which rows some stream has an estimate for; whitening must not move the others away from 0."""
    estimated_B = torch.zeros_like(groups_B, dtype=torch.bool)
    for stream in streams:
        groups = Groups(groups_B, token_counts(stream.scored(mask_BT)) > 0)
        estimated_B = estimated_B | (groups.compared_B if compared else groups.votes_B)
    return estimated_B


def _require_whole_groups(name: str, scored_BT: MaskBT, mask_BT: MaskBT, groups_B: IdsB) -> None:
    groups = Groups(groups_B, mask_BT.any(-1))
    scored_B = groups.total(scored_BT.any(-1).double())
    partial_B = (scored_B > 0) & (scored_B < groups.voters_B)
    if bool(partial_B.any()):
        row = int(partial_B.nonzero()[0])
        raise ValueError(
            f"stream {name!r} scored {int(scored_B[row])} of {int(groups.voters_B[row])} rollouts in group"
            f" {int(groups_B[row])}: with combine='before' its siblings would be on another scale. Drop those rollouts"
            " (mask their rows), drop the stream for the whole group, or use combine='after'"
        )
