r"""Process rewards per token: smoothing, steps, normalisation; how far they are trusted; how well they find errors.

Numpy only, no torch. B responses, T tokens. Tokens where `mask_BT` is False do not count; gaps inside a response are
stepped over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rewardsmith.algorithms.judge_statistics import roc_auc
from rewardsmith.algorithms.ranks import pearson

Rewards = NDArray[np.floating]
Mask = NDArray[np.bool_]
By = Literal["nothing", "scale", "gate"]


def smooth(rewards_BT: Rewards, mask_BT: Mask, *, lam: float) -> Rewards:
    """Return r_t = Σ_k λ^k r_{t+k}: each token also gets part of what follows it; λ = 0 changes nothing."""
    smoothed_BT = np.where(mask_BT, rewards_BT, 0)
    if lam:
        carried_B = np.zeros(len(rewards_BT), rewards_BT.dtype)
        for t in range(rewards_BT.shape[1] - 1, -1, -1):
            carried_B = np.where(mask_BT[:, t], smoothed_BT[:, t] + lam * carried_B, carried_B)
            smoothed_BT[:, t] = np.where(mask_BT[:, t], carried_B, 0)
    return smoothed_BT


def gather_steps(
    rewards_BT: Rewards, mask_BT: Mask, steps_BT: NDArray[np.integer] | None = None
) -> tuple[Rewards, Mask]:
    """Move the rewards of each step onto its last token; without `steps_BT` the whole response is one step.

    `steps_BT` is the number of the step that each token belongs to, not decreasing in a row. Returns the rewards
    [B, T], and the support [B, T]: True on the tokens that carry one.
    """
    values_BT, support_BT = np.zeros_like(rewards_BT), np.zeros_like(mask_BT)
    rows_N, _ = np.nonzero(mask_BT)  # the N tokens that count, row by row
    if len(rows_N):
        steps_N = np.zeros_like(rows_N) if steps_BT is None else steps_BT[mask_BT]
        ends_N = np.append((rows_N[1:] != rows_N[:-1]) | (steps_N[1:] != steps_N[:-1]), True)
        support_BT[mask_BT] = ends_N
        starts = np.append(0, np.flatnonzero(ends_N)[:-1] + 1)
        values_BT[support_BT] = np.add.reduceat(rewards_BT[mask_BT], starts)
    return values_BT, support_BT


def normalise_by_return(rewards_BT: Rewards, mask_BT: Mask, *, eps: float = 1e-6) -> Rewards:
    """Divide by the largest absolute return-to-go of the *whole* batch, which bounds all returns to [-1, 1]."""
    kept_BT = np.where(mask_BT, rewards_BT, 0)
    largest = float(np.abs(np.cumsum(kept_BT[:, ::-1], axis=1)).max(initial=0))
    normalised_BT: Rewards = kept_BT / (largest + eps)
    return normalised_BT


def running_accuracy(before: float | None, won: float, groups: float, *, memory: float) -> float | None:
    r"""Return the accuracy over the last steps, $\bar a \leftarrow m\,\bar a + (1 - m)\,a$; it begins at chance.

    `before` is the result of the step before (None for the first), `won` the sum of the accuracies of this step's
    `groups` that can be ordered. Without any such group nothing changes.
    """
    if not groups:
        return before
    return memory * (0.5 if before is None else before) + (1 - memory) * (won / groups)


def trust(accuracy: float | None, *, by: By, floor: float) -> float:
    r"""Return the factor of the process reward's weight, in [0, 1], by its pairwise accuracy on fresh rollouts.

    A process reward that is scaled to the size of the outcome, as PRIME does, costs progress when it is noise. "scale"
    grows from 0 at `floor` to 1 for a perfect order, $\max(0, (a - f) / (1 - f))$; "gate" is 1 above `floor` and 0 up
    to it; "nothing" is always 1. An accuracy that is not known earns no trust.
    """
    if by == "nothing":
        return 1.0
    if accuracy is None or accuracy <= floor:
        return 0.0
    return 1.0 if by == "gate" else (accuracy - floor) / (1 - floor)


def step_finding(rewards: Sequence[ArrayLike], truths: Sequence[ArrayLike]) -> dict[str, float]:
    r"""Return how well rewards point at wrong steps; for each rollout a reward and a truth (right?) of each step.

    `found` is the share of rollouts with a wrong step whose lowest reward is that of the first wrong step f: with
    $m = \min_k r_k$ a rollout counts $[r_f = m] / |\{k : r_k = m\}|$. `chance` is the same for rewards without any
    knowledge, the mean of 1 / steps. `correlation` (point-biserial) and `auc` (a tie counting one half) of reward and
    truth are over all steps. `judged` are the rollouts with a step. What cannot be measured is left out.
    """
    pairs = [
        (np.asarray(reward, dtype=np.float64), np.asarray(truth, dtype=bool))
        for reward, truth in zip(rewards, truths, strict=True)
        if len(np.asarray(truth))
    ]
    if not pairs:
        return {}
    hits, chances = [], []
    for reward, truth in pairs:
        if not truth.all():
            lowest = reward == reward.min()
            hits.append(float(lowest[int(truth.argmin())]) / int(lowest.sum()))
            chances.append(1 / len(truth))
    every_reward, every_truth = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
    result = {"found": float(np.mean(hits)), "chance": float(np.mean(chances))} if hits else {}
    result |= {"correlation": pearson(every_reward, every_truth), "auc": roc_auc(every_reward, every_truth)}
    return {name: value for name, value in result.items() if not math.isnan(value)} | {"judged": float(len(pairs))}
