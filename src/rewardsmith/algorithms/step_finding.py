"""Whether rewards of steps point at the step that is wrong. Numpy only, no torch.

R rollouts; each has one reward and one truth for each of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rewardsmith.algorithms.calibration import pearson, roc_auc


@dataclass(frozen=True)
class StepFinding:
    """How well rewards of steps agree with what is true of the steps.

    Attributes:
        found: share of the rollouts with a wrong step whose lowest reward is that of the first wrong step; of several
            lowest ones each is as good as any. NaN without such a rollout.
        chance: what rewards without any knowledge find, the mean of 1 / steps over the same rollouts; NaN without any.
        correlation: of reward and truth over all steps, in [-1, 1] (point-biserial); NaN when one of them is constant.
        auc: chance that a right step has a higher reward than a wrong one, a tie counting one half; NaN when one kind
            is missing.
        judged: rollouts with at least one step.
        wrong: those of them with a wrong step.
        steps: of all rollouts.
    """

    found: float
    chance: float
    correlation: float
    auc: float
    judged: int
    wrong: int
    steps: int


def step_finding(rewards: Sequence[ArrayLike], truths: Sequence[ArrayLike]) -> StepFinding:
    r"""Return how well the rewards of steps agree with the truth.

    With $m = \min_k r_k$ and the first wrong step f, a rollout counts $[r_f = m] / |\{k : r_k = m\}|$.

    Args:
        rewards: for each of R rollouts, finite numbers, one for each of its steps.
        truths: for each of R rollouts, booleans: whether the step is right.
    """
    pairs = [
        (np.asarray(reward, dtype=np.float64), np.asarray(truth, dtype=bool))
        for reward, truth in zip(rewards, truths, strict=True)
    ]
    for i, (reward, truth) in enumerate(pairs):
        if reward.ndim != 1 or reward.shape != truth.shape:
            raise ValueError(f"rollout {i} has rewards {reward.shape} and truths {truth.shape}: one of each per step")
        if not np.isfinite(reward).all():
            raise ValueError(f"rollout {i} has a reward that is not finite: leave out what could not be scored")
    wrong = [(reward, truth) for reward, truth in pairs if not truth.all()]
    hits = []
    for reward, truth in wrong:
        lowest = reward == reward.min()
        hits.append(float(lowest[int(truth.argmin())]) / int(lowest.sum()))
    every_reward = np.concatenate([np.empty(0), *(reward for reward, _ in pairs)])
    every_truth = np.concatenate([np.empty(0, dtype=bool), *(truth for _, truth in pairs)])
    return StepFinding(
        found=float(np.mean(hits)) if hits else math.nan,
        chance=float(np.mean([1 / len(truth) for _, truth in wrong])) if wrong else math.nan,
        correlation=pearson(every_reward, every_truth),
        auc=roc_auc(every_reward, every_truth),
        judged=sum(len(truth) > 0 for _, truth in pairs),
        wrong=len(wrong),
        steps=len(every_truth),
    )


__all__ = ["StepFinding", "step_finding"]
