r"""Policy losses: how far, and in which direction, an advantage may move a token's probability.

All have one signature; keyword arguments are the settings that a recipe may give:

    loss(logprobs_BT, old_BT, advantages_BT, mask_BT, *, …) -> (losses_BT, statistics)

    logprobs_BT    [B, T]  log-probabilities of the sampled tokens under the policy being trained; carries the gradient
    old_BT         [B, T]  the same under the policy before this update; no gradient
    advantages_BT  [B, T]  no gradient
    mask_BT        [B, T]  bool, the tokens that count
    losses_BT      [B, T]  the loss of each token, to be reduced by `reductions`; zero where masked
    statistics     name -> [B, T] numbers or flags without gradient; the metrics show their mean over the tokens

A loss is per token and a reduction is linear, so any loss goes with any reduction and any split into micro-batches.
The log-ratio is bounded to ±20 before it is exponentiated: beyond that the gradient of the ratio is noise.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from rewardsmith.algorithms.policy_losses.cispo import cispo
from rewardsmith.algorithms.policy_losses.clip import clip
from rewardsmith.algorithms.policy_losses.gmpo import gmpo
from rewardsmith.algorithms.policy_losses.gspo import gspo
from rewardsmith.algorithms.policy_losses.reinforce import reinforce

PolicyLoss = Callable[..., tuple[Tensor, dict[str, Tensor]]]

POLICY_LOSSES: dict[str, PolicyLoss] = {
    "clip": clip,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "reinforce": reinforce,
}

__all__ = ["POLICY_LOSSES", "PolicyLoss", "cispo", "clip", "gmpo", "gspo", "reinforce"]
