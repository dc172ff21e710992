"""The functions of `token_rewards` for tests that work on tensors."""

import torch
from torch import Tensor

from rewardsmith.algorithms import token_rewards


def smooth(rewards_BT: Tensor, mask_BT: Tensor, *, lam: float) -> Tensor:
    return torch.from_numpy(token_rewards.smooth(rewards_BT.numpy(), mask_BT.numpy(), lam=lam))


def gather_steps(rewards_BT: Tensor, mask_BT: Tensor, steps_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
    steps = None if steps_BT is None else steps_BT.numpy()
    values, support = token_rewards.gather_steps(rewards_BT.numpy(), mask_BT.numpy(), steps)
    return torch.from_numpy(values), torch.from_numpy(support)


def normalise_by_return(rewards_BT: Tensor, mask_BT: Tensor, *, eps: float = 1e-6) -> Tensor:
    return torch.from_numpy(token_rewards.normalise_by_return(rewards_BT.numpy(), mask_BT.numpy(), eps=eps))
