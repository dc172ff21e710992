r"""Implicit process rewards (PRIME): a language model trained on outcomes alone, read as a reward for every token.

$$r_t = \beta\,\bigl[\log\pi_\phi(y_t \mid y_{<t}) - \log\pi_{ref}(y_t \mid y_{<t})\bigr]$$

Cui et al. 2025 (PRIME), arXiv 2502.01456; Yuan et al. 2024, arXiv 2412.01981. The sum over a response is the reward
model's logit that the response is right, so the model is trained with a cross-entropy on that sum.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from rewardsmith.algorithms.groups import Groups
from rewardsmith.algorithms.sequences import last_token, sum_to_go
from rewardsmith.algorithms.shapes import (
    FloatB,
    FloatBT,
    IdsB,
    IntBT,
    MaskB,
    MaskBT,
    Scalar,
    check_option,
    masked,
    masked_difference,
)


def implicit_rewards(logprobs_BT: FloatBT, reference_BT: FloatBT, mask_BT: MaskBT, *, beta: float) -> FloatBT:
    """Return r_t = β (log π_φ - log π_ref) at each response token; the gradient flows through π_φ only."""
    return beta * masked_difference("reward-model logprobs", logprobs_BT, "reference logprobs", reference_BT, mask_BT)


def gather_steps(rewards_BT: FloatBT, mask_BT: MaskBT, steps_BT: IntBT | None = None) -> tuple[FloatBT, MaskBT]:
    """Move the rewards of each step onto the step's last token; without `steps_BT` the whole response is one step.

    Args:
        rewards_BT: [B, T].
        mask_BT: [B, T].
        steps_BT: [B, T], number of the step that each token belongs to, counted from 0 and not decreasing in a row.

    Returns:
        rewards [B, T], and the support [B, T]: True on the tokens that carry one.
    """
    kept_BT = masked("rewards", rewards_BT, mask_BT)
    if steps_BT is None:
        end_BT = last_token(mask_BT)
        return torch.where(end_BT, kept_BT.sum(-1, keepdim=True), 0), end_BT
    steps_BT = torch.where(mask_BT, steps_BT, 0).long()
    if steps_BT.numel() and (int(steps_BT.min()) < 0 or int(steps_BT.max()) >= mask_BT.shape[1]):
        raise ValueError("steps_BT counts the steps of a row from 0, and a row has at most T of them")
    sums_BT = torch.zeros_like(kept_BT).scatter_add(-1, steps_BT, kept_BT)  # column = step
    # A token ends its step if no later token that counts has the same number.
    columns_BT = torch.arange(mask_BT.shape[1], device=mask_BT.device).expand_as(steps_BT)
    ends = torch.full_like(columns_BT, -1).scatter_reduce(-1, steps_BT, torch.where(mask_BT, columns_BT, -1), "amax")
    end_BT = mask_BT & (ends.gather(-1, steps_BT) == columns_BT)
    return torch.where(end_BT, sums_BT.gather(-1, steps_BT), 0), end_BT


def smooth(rewards_BT: FloatBT, mask_BT: MaskBT, *, lam: float) -> FloatBT:
    """Return r_t = Σ_k λ^k r_{t+k}: each token also gets part of what follows it; λ = 0 changes nothing."""
    return sum_to_go(masked("rewards", rewards_BT, mask_BT), mask_BT, discount=lam)


def normalise_by_return(rewards_BT: FloatBT, mask_BT: MaskBT, *, eps: float = 1e-6) -> FloatBT:
    """Divide by the largest absolute return-to-go of the *whole* batch, which bounds all returns to [-1, 1].

    Must see the whole batch: a scale per shard would make shards incomparable. All-zero rewards stay zero.
    """
    if not rewards_BT.numel():
        return rewards_BT
    kept_BT = masked("rewards", rewards_BT, mask_BT)
    return kept_BT / (sum_to_go(kept_BT, mask_BT, discount=1.0).abs().amax() + eps)


def outcome_cross_entropy(
    rewards_BT: FloatBT, mask_BT: MaskBT, outcomes_B: FloatB, *, offset_B: FloatB | None = None
) -> FloatB:
    r"""Cross-entropy of the summed implicit reward, as a logit, with the outcome.

    $$\ell_i = -o_i \log\sigma(q_i) - (1 - o_i)\log(1 - \sigma(q_i)), \qquad q_i = \sum_t r_{i,t} + \text{offset}_i$$

    Args:
        rewards_BT: [B, T] from `implicit_rewards`, with gradient.
        mask_BT: [B, T].
        outcomes_B: [B] in [0, 1]; may be fractional (share of tests passed).
        offset_B: [B], a constant logit, for instance that of the group's mean outcome: then the model learns what sets
            a response apart from its group and not how hard the prompt is.

    Returns:
        [B]; 0 for rows without a token.
    """
    outcomes_B = _labels(outcomes_B, mask_BT.any(-1))
    logits_B = masked("rewards", rewards_BT, mask_BT).sum(-1)
    if offset_B is not None:
        logits_B = logits_B + offset_B.detach()
    losses_B = binary_cross_entropy_with_logits(logits_B, outcomes_B.to(logits_B.dtype), reduction="none")
    return torch.where(mask_BT.any(-1), losses_B, 0)


def pairwise_loss(
    rewards_BT: FloatBT,
    mask_BT: MaskBT,
    outcomes_B: FloatB,
    groups_B: IdsB,
    *,
    weighting: Literal["none", "best-of-n-outcome", "best-of-n-reward"] = "none",
) -> FloatB:
    r"""Compare each response with the mean of those of its group on the other side of it.

    $$\ell_i = -w_i \log\sigma\bigl(s_i (q_i - \bar q_i)\bigr)$$

    q_i is the summed reward; q̄_i the mean of the detached q_j with a worse outcome if o_i > 0, with a better outcome
    if o_i = 0, and 0 if there is none; s_i = +1 if o_i > 0, else -1. These are the `dpo`, `bon_acc` and `bon_rm` losses
    of verl's PRIME recipe. "best-of-n-*" weigh a response by its chance to win, w_i = n · P_j(x_j ≤ x_i)^{n-1}, with x
    the outcome or q; they sum to more than 1 and the original adds them up, while "none" is averaged.

    Args:
        rewards_BT: [B, T] with gradient.
        mask_BT: [B, T].
        outcomes_B: [B] in [0, 1].
        groups_B: [B].
        weighting: see above.

    Returns:
        [B]; 0 for rows without a token.
    """
    check_option("weighting", weighting, ("none", "best-of-n-outcome", "best-of-n-reward"))
    votes_B = mask_BT.any(-1)
    outcomes_B = _labels(outcomes_B, votes_B)
    sums_B = masked("rewards", rewards_BT, mask_BT).sum(-1)
    fixed_B = sums_B.detach()
    positive_B = outcomes_B > 0
    sibling_BB = (groups_B[:, None] == groups_B[None, :]) & votes_B[None, :]  # [i, j]: j votes in i's group
    worse_BB = outcomes_B[None, :] < outcomes_B[:, None]
    better_BB = outcomes_B[None, :] > outcomes_B[:, None]
    other_BB = sibling_BB & torch.where(positive_B[:, None], worse_BB, better_BB)
    mean_B = (other_BB * fixed_B[None, :]).sum(-1) / other_BB.sum(-1).clamp(min=1)
    losses_B = -logsigmoid((sums_B - mean_B) * torch.where(positive_B, 1.0, -1.0))
    if weighting != "none":
        rank_B = outcomes_B if weighting == "best-of-n-outcome" else fixed_B
        count_B = sibling_BB.sum(-1).clamp(min=1)
        share_B = (sibling_BB & (rank_B[None, :] <= rank_B[:, None])).sum(-1).to(losses_B.dtype) / count_B
        losses_B = losses_B * count_B * share_B.pow(count_B - 1)
    return torch.where(votes_B, losses_B, 0)


def pairwise_accuracy(sums_B: FloatB, outcomes_B: FloatB, votes_B: MaskB, groups_B: IdsB) -> Scalar:
    """Return how often the reward model orders two rollouts of a group as their outcomes do.

    Pairs are weighted by the difference of their outcomes, and a tie of the model counts one half. Groups are averaged;
    those without any difference in outcome are left out, and 0.5 (chance) stands for a batch that has no others.
    """
    outcomes_B, sums_B = _labels(outcomes_B, votes_B), torch.where(votes_B, sums_B, 0)
    pair_BB = (groups_B[:, None] == groups_B[None, :]) & votes_B[:, None] & votes_B[None, :]
    weight_BB = (outcomes_B[:, None] - outcomes_B[None, :]).clamp(min=0) * pair_BB  # i is better than j
    difference_BB = sums_B[:, None] - sums_B[None, :]
    right_BB = (difference_BB > 0).double() + (difference_BB == 0).double() / 2
    groups = Groups.of(groups_B, votes_B)
    possible_B, won_B = groups.total(weight_BB.sum(-1)), groups.total((weight_BB * right_BB).sum(-1))
    counted_B = votes_B & (possible_B > 0)
    share_B = torch.where(counted_B, won_B / possible_B.clamp(min=1e-300) / groups.voters_B.clamp(min=1), 0)
    number = torch.where(counted_B, 1 / groups.voters_B.clamp(min=1), 0).sum()
    accuracy = share_B.sum() / number.clamp(min=1e-300)
    return torch.where(number > 0, accuracy, 0.5).to(sums_B.dtype)


def _labels(outcomes_B: FloatB, votes_B: MaskB) -> FloatB:
    """Return the outcomes of the rows that vote, 0 for the others, which may hold anything."""
    kept_B = torch.where(votes_B, outcomes_B, 0)
    if not bool(((kept_B >= 0) & (kept_B <= 1)).all()):
        raise ValueError("outcomes must lie in [0, 1]; a failed outcome is no label: set its mask row to False")
    return kept_B
