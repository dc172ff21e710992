"""From rewards per token to the tokens that carry them: smoothing, steps, normalisation. Numpy only, no torch.

B responses, T tokens. Tokens where `mask_BT` is False do not count; gaps inside a response are stepped over.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rewards = NDArray[np.floating]
Mask = NDArray[np.bool_]


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

    Args:
        rewards_BT: [B, T].
        mask_BT: [B, T].
        steps_BT: [B, T], number of the step that each token belongs to, not decreasing in a row.

    Returns:
        rewards [B, T], and the support [B, T]: True on the tokens that carry one.
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
    """Divide by the largest absolute return-to-go of the *whole* batch, which bounds all returns to [-1, 1].

    Must see the whole batch: a scale per shard would make shards incomparable. All-zero rewards stay zero.
    """
    kept_BT = np.where(mask_BT, rewards_BT, 0)
    largest = float(np.abs(np.cumsum(kept_BT[:, ::-1], axis=1)).max(initial=0))
    normalised_BT: Rewards = kept_BT / (largest + eps)
    return normalised_BT
