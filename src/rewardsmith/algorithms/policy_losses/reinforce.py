"""The plain policy gradient."""

from __future__ import annotations

from rewardsmith.algorithms.policy_losses.ratio import checked
from rewardsmith.algorithms.shapes import FloatBT, MaskBT


def reinforce(
    logprobs_BT: FloatBT, old_BT: FloatBT, advantages_BT: FloatBT, mask_BT: MaskBT
) -> tuple[FloatBT, dict[str, FloatBT]]:
    r"""REINFORCE: $\ell_t = -A_t \log\pi(y_t)$ (Williams 1992). For one update per batch; nothing bounds the step."""
    logprobs_BT, log_ratio_BT, advantages_BT = checked(logprobs_BT, old_BT, advantages_BT, mask_BT)
    return -advantages_BT * logprobs_BT, {"kl_from_old": -log_ratio_BT.detach()}
