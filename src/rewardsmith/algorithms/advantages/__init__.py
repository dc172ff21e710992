r"""Advantage estimators: who gets credit, and how much.

All have one signature; keyword arguments are the settings that a recipe may give:

    estimator(rewards_BT, mask_BT, groups_B, values_BT=None, support_BT=None, *, discount=1.0, …) -> advantages_BT

    rewards_BT  [B, T] float   rewards; an outcome reward sits on any token of its row, usually the last
    mask_BT     [B, T] bool    True for response tokens. A row without any is a rollout that does not take part: it
                               failed or is empty. It has advantage 0 and no vote in its group's baseline or spread
    groups_B    [B]    int     which rollouts answer the same prompt; any ids, any order, any size
    values_BT   [B, T] float   a baseline that comes from outside: a critic's values (`gae`), or the reward of the
                               greedy answer (`remax`); None where the estimator makes its own
    support_BT  [B, T] bool    which tokens carry a reward of their own. None: the row's rewards are one outcome

With dense rewards a group estimator centres each reward by the group's mean reward *per carrying token* and then sums
from each token on (PRIME, arXiv 2502.01456, eq. 5). An outcome is the case of one carrying token, so both are one
formula: A_t = Σ_{s≥t} γ^{s-t} (r_s - b) over the tokens s that carry a reward.

Defined for every estimator here: a rollout without a voting sibling has advantage 0 wherever the baseline comes from
its group; an outcome group whose rewards are all equal has advantage exactly 0 (before whitening, which subtracts the
mean of the batch); masked tokens have advantage 0.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from rewardsmith.algorithms.advantages.gae import gae
from rewardsmith.algorithms.advantages.group import dr_grpo, grpo, opo, reinforce_plus_plus_baseline, rloo
from rewardsmith.algorithms.advantages.reinforce import process_value, reinforce, reinforce_plus_plus, remax
from rewardsmith.algorithms.advantages.streams import Stream, compares, credit

Estimator = Callable[..., Tensor]

ADVANTAGES: dict[str, Estimator] = {
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


def values_from(estimator: Callable[..., object]) -> str:
    """Return where an estimator's `values_BT` come from: "critic", "greedy", "process", or "" for nowhere.

    "greedy" is the reward of the greedy answer, "process" the sum of the process rewards before the token. An estimator
    of your own says so by an attribute: `my_estimator.values_from = "critic"`.
    """
    known: dict[Callable[..., object], str] = {gae: "critic", remax: "greedy", process_value: "process"}
    return known.get(estimator, getattr(estimator, "values_from", ""))


__all__ = [
    "ADVANTAGES",
    "Estimator",
    "Stream",
    "compares",
    "credit",
    "dr_grpo",
    "gae",
    "grpo",
    "opo",
    "process_value",
    "reinforce",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rloo",
    "values_from",
]
