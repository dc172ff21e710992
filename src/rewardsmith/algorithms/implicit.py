r"""Implicit process rewards (PRIME): a language model trained on outcomes alone, read as a reward for every token.

$$r_t = \beta\,\bigl[\log\pi_\phi(y_t \mid y_{<t}) - \log\pi_{ref}(y_t \mid y_{<t})\bigr]$$

Cui et al. 2025 (PRIME), arXiv 2502.01456; Yuan et al. 2024, arXiv 2412.01981. The sum over a response is the reward
model's logit that the response is right, so the model is trained with a cross-entropy on that sum
(`implicit_losses`).
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from rewardsmith.algorithms.sequences import last_token, sum_to_go
from rewardsmith.algorithms.shapes import FloatBT, IntBT, MaskBT, masked, masked_difference


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


def values_before(rewards_BT: FloatBT, mask_BT: MaskBT) -> FloatBT:
    r"""Return what the reward model thought of the answer before each token, $v_t = \sum_{s<t} r_s$.

    The prefix sum of implicit rewards is the model's estimate of the outcome, as a logit (arXiv 2412.01981, prop. 3.1).
    """
    kept_BT = masked("rewards", rewards_BT, mask_BT)
    # Shifted by one and then summed: a value owes nothing to its own token, not even a rounding error.
    return torch.where(mask_BT, pad(kept_BT, (1, 0))[:, :-1].cumsum(-1), 0)
