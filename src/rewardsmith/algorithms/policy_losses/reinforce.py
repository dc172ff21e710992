"""The plain policy gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from rewardsmith.algorithms.policy_losses.ratio import checked
from rewardsmith.algorithms.shapes import FloatBT, MaskBT


def reinforce(
    logprobs_BT: FloatBT, old_BT: FloatBT, advantages_BT: FloatBT, mask_BT: MaskBT
) -> tuple[FloatBT, dict[str, Tensor]]:
    r"""REINFORCE: $\ell_t = -A_t \log\pi(y_t)$ (Williams 1992). For one update per batch; nothing bounds the step."""
    log_ratio_BT, advantages_BT = checked(logprobs_BT.detach(), old_BT, advantages_BT, mask_BT)
    return -advantages_BT * torch.where(mask_BT, logprobs_BT, 0), {"kl_from_old": -log_ratio_BT}
