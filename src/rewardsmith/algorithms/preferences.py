"""Losses for reward models that learn from comparisons: Bradley-Terry on pairs, Plackett-Luce on whole lists.

`bradley_terry` and `plackett_luce` are the likelihoods. The losses of `PREFERENCE_LOSSES` are what a recipe chooses by
name: they take groups of answers, a pair being a group of two, and share one signature:

    loss(rewards_GN, levels_GN, quality_GN, mask_GN, *, …) -> losses_G

    rewards_GN  [G, N] float  the model's rewards
    levels_GN   [G, N] int    place of each answer, smaller is better; equal numbers are ties
    quality_GN  [G, N] float  annotated quality, whose differences are the margins
    mask_GN     [G, N] bool   True for answers that exist
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from rewardsmith.algorithms.tensors import FloatG, FloatGN, FloatN, IntGN, MaskGN, MaskN


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
    half a win for either side: ℓ = -½ log σ(d) - ½ log σ(-d). Margins are ignored for ties.
    """
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


def plackett_luce(scores_GN: FloatGN, levels_GN: IntGN, mask_GN: MaskGN) -> FloatG:
    r"""Negative log-likelihood of whole rankings.

    $$\ell = -\sum_i \Bigl[ s_i - \log \sum_{j:\ \mathrm{level}_j \ge \mathrm{level}_i} e^{s_j} \Bigr]$$

    Plackett 1975, Luce 1959; ListMLE (Xia et al. 2008). Tied items share a level and stand in each other's denominators
    (Breslow's treatment). For two items that are not tied this is Bradley-Terry; a tie of two counts as a win each.
    0 for a list of fewer than two items.
    """
    kept_GN = torch.where(mask_GN, scores_GN, 0)
    exists = mask_GN[:, None, :] & mask_GN[:, :, None]  # [G, i, j]
    remaining = exists & (levels_GN[:, None, :] >= levels_GN[:, :, None])
    # Rows of items that do not exist stay all zero instead of all -inf, whose gradient would be NaN.
    filled = torch.where(remaining | ~mask_GN[:, :, None], kept_GN[:, None, :], -torch.inf)
    return torch.where(mask_GN, torch.logsumexp(filled, dim=-1) - kept_GN, 0).sum(-1)


def pair_losses(
    rewards_GN: FloatGN,
    levels_GN: IntGN,
    quality_GN: FloatGN,
    mask_GN: MaskGN,
    *,
    margin: Annotated[
        bool | Annotated[float, Field(ge=0)],
        Field(description="the better answer must lead by the annotated margin: true as it is, or that many times it"),
    ] = False,
    tie_width: Annotated[
        float, Field(ge=0, description="rewards this near are a likely tie (Rao-Kupper); 0: a tie is half a win each")
    ] = 0.0,
    smoothing: Annotated[
        float, Field(ge=0, lt=0.5, description="share of the pairs that may be annotated the wrong way round")
    ] = 0.0,
) -> FloatG:
    r"""Bradley-Terry likelihood of every pair of answers to one prompt.

    $$\ell_g = \frac{1}{|P_g|}\sum_{(i,j)\in P_g} (1-\epsilon)\,\ell(r_i, r_j, m_{ij}) + \epsilon\,\ell(r_j, r_i, 0)$$

    P_g are the pairs of group g with i not worse than j, each once, and ℓ is `bradley_terry` with the difference in
    quality as m_ij. A group of k answers counts once and not k(k-1)/2 times, as in InstructGPT (arXiv 2203.02155,
    eq. 1). The margin is that of Llama 2 (arXiv 2307.09288, eq. 2). ε > 0 keeps rewards from running away over pairs
    that were annotated wrongly (Mitchell 2023, "A note on DPO with noisy preferences"), of which no margin is known.
    0 for a group of fewer than two answers.
    """
    earlier_NN = torch.ones(levels_GN.shape[1], levels_GN.shape[1], dtype=torch.bool, device=mask_GN.device).triu(1)
    better_GNN = levels_GN[:, :, None] < levels_GN[:, None, :]
    tied_GNN = (levels_GN[:, :, None] == levels_GN[:, None, :]) & earlier_NN
    exists_GNN = mask_GN[:, :, None] & mask_GN[:, None, :]
    g, i, j = ((better_GNN | tied_GNN) & exists_GNN).nonzero(as_tuple=True)
    chosen_P, rejected_P, tied_P = rewards_GN[g, i], rewards_GN[g, j], levels_GN[g, i] == levels_GN[g, j]
    margin_P = float(margin) * (quality_GN[g, i] - quality_GN[g, j]) if margin else None
    losses_P = bradley_terry(chosen_P, rejected_P, margin_N=margin_P, tied_N=tied_P, tie_width=tie_width)
    if smoothing:
        wrong_P = bradley_terry(rejected_P, chosen_P, tied_N=tied_P, tie_width=tie_width)
        losses_P = (1 - smoothing) * losses_P + smoothing * wrong_P
    pairs_G = torch.bincount(g, minlength=len(rewards_GN)).clamp(min=1)
    return rewards_GN.new_zeros(len(rewards_GN)).index_add(0, g, losses_P) / pairs_G


def list_losses(rewards_GN: FloatGN, levels_GN: IntGN, quality_GN: FloatGN, mask_GN: MaskGN) -> FloatG:
    """Plackett-Luce likelihood of the order of all answers to one prompt; see `plackett_luce`. Margins do not count."""
    return plackett_luce(rewards_GN, levels_GN, mask_GN)


def group_centering(rewards_GN: FloatGN, mask_GN: MaskGN) -> FloatG:
    r"""Mean of (r_i + r_j)² over the pairs of each group, which keeps rewards around 0; 0 for fewer than two answers.

    $$\sum_{i<j} (r_i + r_j)^2 = (n-2)\sum_i r_i^2 + \Bigl(\sum_i r_i\Bigr)^2$$

    For pairs it is that of Eisenstein et al. 2023, arXiv 2312.09244.
    """
    kept_GN, n_G = torch.where(mask_GN, rewards_GN, 0), mask_GN.sum(-1)
    total_G = (n_G - 2) * kept_GN.square().sum(-1) + kept_GN.sum(-1).square()
    return torch.where(n_G > 1, total_G * 2 / (n_G * (n_G - 1)).clamp(min=1), 0)


PREFERENCE_LOSSES: dict[str, Callable[..., Tensor]] = {"bradley-terry": pair_losses, "plackett-luce": list_losses}
