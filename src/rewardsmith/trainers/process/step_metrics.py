"""Whether a process reward points at the steps that are wrong, in a world that knows which these are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rewardsmith.algorithms.step_finding import step_finding
from rewardsmith.config import Chosen
from rewardsmith.rewards.steps import judged_by
from rewardsmith.text.steps import sums_by_step, tokens_of_judged
from rewardsmith.types import RolloutGroup


def step_metrics(
    groups: Sequence[RolloutGroup], values: Sequence[Sequence[NDArray[np.floating]]], truth: Chosen
) -> dict[str, float]:
    """Return how well rewards per token agree with the truth about steps; see `rewardsmith.algorithms.step_finding`.

    A step's reward is the sum of the rewards of its tokens. Left out are rollouts of which the truth knows nothing, and
    those that do not say where their tokens end or that have a step without a token of its own.

    Args:
        groups: the rollouts.
        values: for each group and rollout [T], the reward of each token, before it was moved or normalised.
        truth: a step truth (`rewardsmith.data.arithmetic`).

    Returns:
        `found`, `chance`, `correlation` and `auc`, as far as they are known, and `judged`, the number of rollouts;
        nothing where none was judged.
    """
    rewards: list[NDArray[np.float64]] = []
    truths: list[NDArray[np.bool_]] = []
    for group, each in zip(groups, values, strict=True):
        for rollout, tokens in zip(group.rollouts, each, strict=True):
            if rollout.ends is None or not len(rollout.ends):
                continue
            try:
                judged = judged_by(truth, group.prompt, rollout.text)
            except Exception:  # noqa: BLE001 it is not of this world, or a user's own truth fails: it only measures
                continue
            numbers = tokens_of_judged(rollout.ends, judged)
            if np.bincount(numbers, minlength=len(judged)).all():
                rewards.append(sums_by_step(tokens, numbers, len(judged)))
                truths.append(np.array([step.right for step in judged], dtype=bool))
    result = step_finding(rewards, truths)
    if not result.judged:
        return {}
    found = {name: getattr(result, name) for name in ("found", "chance", "correlation", "auc")}
    known = {name: float(value) for name, value in found.items() if not math.isnan(value)}
    return {**known, "judged": float(result.judged)}


__all__ = ["step_metrics"]
