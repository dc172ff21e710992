"""Losses for reward models that learn from comparisons: Bradley-Terry on pairs, Plackett-Luce on whole lists."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rewardsmith.algorithms.shapes import FloatG, FloatGN, FloatN, IntGN, MaskGN, MaskN


def bradley_terry(
    chosen_N: FloatN,
    rejected_N: FloatN,
    *,
    margin_N: FloatN | None = None,
    tied_N: MaskN | None = None,
    tie_width: float = 0.0,
) -> FloatN:
    r"""Negative log-likelihood of each pair, with d = r_chosen - r_rejected.

    $$\ell = -\log\sigma(d - m - \eta) \quad\text{for a win with margin } m$$

    Bradley & Terry 1952; the margin as in Llama 2 (arXiv 2307.09288). Ties follow Rao & Kupper 1967: with width
    η = `tie_width` > 0, P(tie) = 1 - σ(d - η) - σ(-d - η). With η = 0 a tie has no likelihood of its own and counts as
    half a win for either side: ℓ = -½ log σ(d) - ½ log σ(-d).

    Args:
        chosen_N: rewards of the better answers (of either, in a tie).
        rejected_N: rewards of the others.
        margin_N: at least 0; None means 0. Ignored for ties.
        tied_N: which pairs are ties; None means none.
        tie_width: η, at least 0.

    Returns:
        [N], to be averaged by the caller.
    """
    _check("chosen", chosen_N, chosen_N)
    _check("rejected", rejected_N, chosen_N)
    if margin_N is not None:
        _check("margin", margin_N, chosen_N)
        if bool((margin_N < 0).any()):
            raise ValueError("a margin is negative: swap chosen and rejected instead")
    if not 0 <= tie_width < math.inf:
        raise ValueError(f"tie_width is {tie_width}: it must be finite and at least 0")
    difference_N = chosen_N - rejected_N
    win_N = -logsigmoid(difference_N - (0 if margin_N is None else margin_N) - tie_width)
    if tied_N is None:
        return win_N
    if tie_width > 0:
        # 1 - σ(d-η) - σ(-d-η) = σ(η-d)·σ(η+d)·(1 - e^{-2η}), which cannot cancel
        constant = math.log(-math.expm1(-2.0 * tie_width))
        tie_N = -(logsigmoid(tie_width - difference_N) + logsigmoid(tie_width + difference_N) + constant)
    else:
        tie_N = -(logsigmoid(difference_N) + logsigmoid(-difference_N)) / 2
    return torch.where(tied_N, tie_N, win_N)


def reward_centering(chosen_N: FloatN, rejected_N: FloatN) -> FloatN:
    """Return (r_chosen + r_rejected)², which keeps rewards around 0 (Eisenstein et al. 2023, arXiv 2312.09244)."""
    return (chosen_N + rejected_N).square()


def plackett_luce(scores_GN: FloatGN, levels_GN: IntGN, mask_GN: MaskGN) -> FloatG:
    r"""Negative log-likelihood of whole rankings.

    $$\ell = -\sum_i \Bigl[ s_i - \log \sum_{j:\ \mathrm{level}_j \ge \mathrm{level}_i} e^{s_j} \Bigr]$$

    Plackett 1975, Luce 1959; ListMLE (Xia et al. 2008). Tied items share a level and stand in each other's denominators
    (Breslow's treatment). For two items that are not tied this is Bradley-Terry; a tie of two counts as a win each.

    Args:
        scores_GN: [G, N] the model's rewards.
        levels_GN: [G, N] place of each item, smaller is better; equal numbers are ties.
        mask_GN: [G, N] True for items that exist.

    Returns:
        [G]; 0 for a list of fewer than two items.
    """
    if scores_GN.shape != levels_GN.shape or scores_GN.shape != mask_GN.shape or scores_GN.dim() != 2:
        shapes = ", ".join(str(tuple(t.shape)) for t in (scores_GN, levels_GN, mask_GN))
        raise ValueError(f"scores, levels and mask have shapes {shapes}: all are [G, N]")
    kept_GN = torch.where(mask_GN, scores_GN, 0)
    if not bool(torch.isfinite(kept_GN).all()):
        raise ValueError("scores holds a value that is not finite: leave out what could not be scored (mask False)")
    exists = mask_GN[:, None, :] & mask_GN[:, :, None]  # [G, i, j]
    remaining = exists & (levels_GN[:, None, :] >= levels_GN[:, :, None])
    # Rows of items that do not exist stay all zero instead of all -inf, whose gradient would be NaN.
    filled = torch.where(remaining | ~mask_GN[:, :, None], kept_GN[:, None, :], -torch.inf)
    return torch.where(mask_GN, torch.logsumexp(filled, dim=-1) - kept_GN, 0).sum(-1)


def _check(name: str, values_N: Tensor, like_N: Tensor) -> None:
    """Raise a ValueError unless the values are finite and have the one dimension [N]."""
    if values_N.dim() != 1 or values_N.shape != like_N.shape:
        raise ValueError(f"{name} has shape {tuple(values_N.shape)}: it must be [N], one number per pair")
    if not bool(torch.isfinite(values_N).all()):
        raise ValueError(f"{name} holds a value that is not finite: leave out the pairs that could not be scored")
