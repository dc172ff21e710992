"""Functions of `token_rewards` on tensors, and the pairwise loss and accuracy of a whole batch."""

import torch
from torch import Tensor

from rewardsmith.algorithms import token_rewards
from rewardsmith.algorithms.implicit_rewards import opponents, pairwise_losses, pairwise_wins


def smooth(rewards_BT: Tensor, mask_BT: Tensor, *, lam: float) -> Tensor:
    return torch.from_numpy(token_rewards.smooth(rewards_BT.numpy(), mask_BT.numpy(), lam=lam))


def gather_steps(rewards_BT: Tensor, mask_BT: Tensor, steps_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
    steps = None if steps_BT is None else steps_BT.numpy()
    values, support = token_rewards.gather_steps(rewards_BT.numpy(), mask_BT.numpy(), steps)
    return torch.from_numpy(values), torch.from_numpy(support)


def normalise_by_return(rewards_BT: Tensor, mask_BT: Tensor, *, eps: float = 1e-6) -> Tensor:
    return torch.from_numpy(token_rewards.normalise_by_return(rewards_BT.numpy(), mask_BT.numpy(), eps=eps))


def pairwise_loss(
    rewards_BT: Tensor, mask_BT: Tensor, outcomes_B: Tensor, groups_B: Tensor, *, weighting: str = "none"
) -> Tensor:
    """Return the pairwise losses of a whole batch, [B]; 0 for rows without a token."""
    sums_B = torch.where(mask_BT, rewards_BT, 0).sum(-1)
    others = opponents(sums_B, outcomes_B, mask_BT.any(-1), groups_B, weighting=weighting)  # type: ignore[arg-type]
    return pairwise_losses(sums_B, others.mean_B, others.sign_B, others.weight_B)


def pairwise_accuracy(sums_B: Tensor, outcomes_B: Tensor, votes_B: Tensor, groups_B: Tensor) -> float:
    """Return the mean accuracy of the groups that can be ordered; 0.5 if there is none."""
    won, number = pairwise_wins(sums_B, outcomes_B, votes_B, groups_B)
    return float(won / number) if number else 0.5
