"""Group sequence policy optimisation: one ratio per response, the geometric mean of the tokens' ratios."""

from __future__ import annotations

from torch import Tensor

from rewardsmith.algorithms.policy_losses.ratio import High, Low, bounded_ratio, checked, clipped_surrogate
from rewardsmith.algorithms.sequences import token_counts
from rewardsmith.algorithms.shapes import FloatBT, MaskBT


def gspo(
    logprobs_BT: FloatBT,
    old_BT: FloatBT,
    advantages_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    low: Low = 3e-4,
    high: High = 4e-4,
) -> tuple[FloatBT, dict[str, Tensor]]:
    r"""GSPO's clipped loss with a sequence-level ratio, in the form that keeps a gradient for every token.

    $$s_i = \exp\Bigl(\tfrac{1}{|y_i|}\sum_t \log\rho_{i,t}\Bigr), \quad
      s_{i,t} = \mathrm{sg}[s_i]\,\frac{\pi(y_{i,t})}{\mathrm{sg}[\pi(y_{i,t})]}, \quad
      \ell_{i,t} = \max(-A\,s_{i,t}, -A\,\mathrm{clip}(s_{i,t}, 1-\epsilon_{low}, 1+\epsilon_{high}))$$

    Zheng et al. 2025, arXiv 2507.18071, eq. 5, 7 and the token form of section 4.3. sg stops the gradient. The paper
    averages per sequence: use the reduction `sequence-mean-token-mean`.
    """
    log_ratio_BT, advantages_BT = checked(logprobs_BT, old_BT, advantages_BT, mask_BT)
    lengths_B1 = token_counts(mask_BT)[:, None].clamp(min=1)
    log_sequence_B1 = (log_ratio_BT.sum(-1, keepdim=True) / lengths_B1).detach()
    ratio_BT = bounded_ratio(log_sequence_B1 + (log_ratio_BT - log_ratio_BT.detach()))
    losses_BT, report = clipped_surrogate(ratio_BT, advantages_BT, low=low, high=high)
    return losses_BT, report | {"kl_from_old": -log_ratio_BT.detach()}
