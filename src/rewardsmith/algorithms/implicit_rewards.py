r"""Implicit process rewards (PRIME): a language model trained on outcomes alone, read as a reward for every token.

$$r_t = \beta\,\bigl[\log\pi_\phi(y_t \mid y_{<t}) - \log\pi_{ref}(y_t \mid y_{<t})\bigr]$$

Cui et al. 2025 (PRIME), arXiv 2502.01456; Yuan et al. 2024, arXiv 2412.01981. The sum over a response is the reward
model's logit that the response is right, so the model is trained with a cross-entropy on that sum. Every loss is one
number per response, computed from that response and from constants of the whole batch, so that a sum over any split of
the batch has the same gradient. Smoothing, steps and normalisation are in `token_rewards`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid, pad

from rewardsmith.algorithms.tensors import (
    FloatB,
    FloatBT,
    Groups,
    IdsB,
    MaskB,
    MaskBT,
    Scalar,
    check,
    check_option,
    masked,
    masked_difference,
    side_by_side,
)

Weighting = Literal["none", "best-of-n-outcome", "best-of-n-reward"]


def implicit_rewards(logprobs_BT: FloatBT, reference_BT: FloatBT, mask_BT: MaskBT, *, beta: float) -> FloatBT:
    """Return r_t = β (log π_φ - log π_ref) at each response token; the gradient flows through π_φ only."""
    return beta * masked_difference("reward-model logprobs", logprobs_BT, "reference logprobs", reference_BT, mask_BT)


def values_before(rewards_BT: FloatBT, mask_BT: MaskBT) -> FloatBT:
    r"""Return what the reward model thought of the answer before each token, $v_t = \sum_{s<t} r_s$.

    The prefix sum of implicit rewards is the model's estimate of the outcome, as a logit (arXiv 2412.01981, prop. 3.1).
    """
    kept_BT = masked("rewards", rewards_BT, mask_BT)
    # Shifted by one and then summed: a value owes nothing to its own token, not even a rounding error.
    return torch.where(mask_BT, pad(kept_BT, (1, 0))[:, :-1].cumsum(-1), 0)


def outcome_cross_entropy(
    rewards_BT: FloatBT, mask_BT: MaskBT, outcomes_B: FloatB, *, offset_B: FloatB | None = None
) -> FloatB:
    r"""Cross-entropy of the summed implicit reward, as a logit, with the outcome.

    $$\ell_i = -o_i \log\sigma(q_i) - (1 - o_i)\log(1 - \sigma(q_i)), \qquad q_i = \sum_t r_{i,t} + \text{offset}_i$$

    Outcomes in [0, 1] may be fractional (share of tests passed). The offset is a constant logit, for instance that of
    the group's mean outcome: then the model learns what sets a response apart from its group and not how hard the
    prompt is. 0 for rows without a token.
    """
    outcomes_B = _labels(outcomes_B, mask_BT.any(-1))
    logits_B = masked("rewards", rewards_BT, mask_BT).sum(-1)
    if offset_B is not None:
        logits_B = logits_B + offset_B.detach()
    losses_B = binary_cross_entropy_with_logits(logits_B, outcomes_B.to(logits_B.dtype), reduction="none")
    return torch.where(mask_BT.any(-1), losses_B, 0)


@dataclass(frozen=True)
class Opponents:
    """What each response is compared with; constants of the batch."""

    mean_B: Tensor  # the mean of the summed rewards on the other side of it
    sign_B: Tensor  # +1 where it should be above them, -1 where below
    weight_B: Tensor  # how much the comparison counts; 0 for a response without a label


def opponents(
    sums_B: FloatB, outcomes_B: FloatB, votes_B: MaskB, groups_B: IdsB, *, weighting: Weighting = "none"
) -> Opponents:
    """Return what `pairwise_losses` compares each response with.

    The mean is that of the responses of the group with a worse outcome if its own is above 0, and with a better one if
    its own is 0; it is 0 if there is none. Both as in verl's PRIME recipe, where any partial credit counts as right.
    Weighting "none" is the recipe's `dpo`; "best-of-n-outcome" and "best-of-n-reward" are its `bon_acc` and `bon_rm`,
    which weigh a response by its chance to win, w_i = n · P_j(x_j ≤ x_i)^{n-1}, x the outcome or q. Rows without a vote
    have no label. No gradient flows through the sums here.
    """
    check_option("weighting", weighting, ("none", "best-of-n-outcome", "best-of-n-reward"))
    outcomes_B = _labels(outcomes_B, votes_B)
    fixed_B = torch.where(votes_B, sums_B.detach(), 0)
    positive_B = outcomes_B > 0
    rows_GN, taken_GN = side_by_side(groups_B, votes_B)
    outcomes_GN, sums_GN = outcomes_B[rows_GN], fixed_B[rows_GN]
    worse_GNN = outcomes_GN[:, None, :] < outcomes_GN[:, :, None]  # [g, i, j]: j is worse than i
    better_GNN = outcomes_GN[:, None, :] > outcomes_GN[:, :, None]
    other_GNN = taken_GN[:, None, :] & torch.where((outcomes_GN > 0)[:, :, None], worse_GNN, better_GNN)
    mean_GN = (other_GNN * sums_GN[:, None, :]).sum(-1) / other_GNN.sum(-1).clamp(min=1)
    weight_GN = torch.ones_like(mean_GN)
    if weighting != "none":
        rank_GN = outcomes_GN if weighting == "best-of-n-outcome" else sums_GN
        count_G1 = taken_GN.sum(-1, keepdim=True)
        below_GNN = taken_GN[:, None, :] & (rank_GN[:, None, :] <= rank_GN[:, :, None])
        weight_GN = count_G1 * (below_GNN.sum(-1).to(mean_GN.dtype) / count_G1).pow(count_G1 - 1)
    mean_B, weight_B = torch.zeros_like(fixed_B), torch.zeros_like(fixed_B)
    rows_V = rows_GN[taken_GN]
    mean_B[rows_V], weight_B[rows_V] = mean_GN[taken_GN], weight_GN[taken_GN]
    return Opponents(mean_B, torch.where(positive_B, 1.0, -1.0).to(fixed_B.dtype), weight_B)


def pairwise_losses(sums_b: FloatB, mean_b: FloatB, sign_b: FloatB, weight_b: FloatB) -> FloatB:
    r"""Compare each response with its `opponents`: $\ell_i = -w_i \log\sigma\bigl(s_i (q_i - \bar q_i)\bigr)$.

    q_i are the summed rewards, with gradient. Where the weight is 0 nothing is read, and no gradient flows.
    """
    return -logsigmoid(torch.where(weight_b > 0, (sums_b - mean_b) * sign_b, 0)) * weight_b


def group_offsets(outcomes_B: FloatB, votes_B: MaskB, groups_B: IdsB) -> FloatB:
    r"""Return the logit of the group's mean outcome, $\log\frac{k + 1/2}{n - k + 1/2}$ with k the sum of n outcomes.

    As the offset of `outcome_cross_entropy` it takes the base rate out of what the model has to learn: without it, a
    batch with few right responses first teaches that every response is bad. The halves keep it finite (Haldane 1956).
    0 for rows without a vote.
    """
    groups = Groups(groups_B, votes_B)
    right_B = groups.total(_labels(outcomes_B, votes_B))
    offsets_B = torch.log((right_B + 0.5) / (groups.voters_B - right_B + 0.5))
    return torch.where(votes_B, offsets_B, 0).to(outcomes_B.dtype)


def pairwise_wins(sums_B: FloatB, outcomes_B: FloatB, votes_B: MaskB, groups_B: IdsB) -> tuple[Scalar, Scalar]:
    """Return the sum of the accuracies of the groups that can be ordered, and how many these are, both float64.

    A group's accuracy is how often the model orders two of its rollouts as their outcomes do. Pairs are weighted by
    the difference of their outcomes, and a tie of the model counts one half.
    """
    outcomes_B, sums_B = _labels(outcomes_B, votes_B).double(), torch.where(votes_B, sums_B, 0)
    rows_GN, taken_GN = side_by_side(groups_B, votes_B)
    outcomes_GN, sums_GN = outcomes_B[rows_GN], sums_B[rows_GN]
    pair_GNN = taken_GN[:, :, None] & taken_GN[:, None, :]
    weight_GNN = (outcomes_GN[:, :, None] - outcomes_GN[:, None, :]).clamp(min=0) * pair_GNN  # i is better than j
    difference_GNN = sums_GN[:, :, None] - sums_GN[:, None, :]
    right_GNN = (difference_GNN > 0).double() + (difference_GNN == 0).double() / 2
    possible_G, won_G = weight_GNN.sum((1, 2)), (weight_GNN * right_GNN).sum((1, 2))
    counted_G = possible_G > 0
    return (won_G[counted_G] / possible_G[counted_G]).sum(), counted_G.sum().double()


def _labels(outcomes_B: FloatB, votes_B: MaskB) -> FloatB:
    """Return the outcomes of the rows that vote, 0 for the others, which may hold anything."""
    kept_B = torch.where(votes_B, outcomes_B, 0)
    check(((kept_B >= 0) & (kept_B <= 1)).all(), _refuse_labels)
    return kept_B


def _refuse_labels() -> None:
    raise ValueError("outcomes must lie in [0, 1]; a failed outcome is no label: set its mask row to False")
