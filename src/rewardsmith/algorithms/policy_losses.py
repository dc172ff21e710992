r"""What a policy update minimises: policy losses, what is added to them, KL from a reference, and reductions.

    loss(logprobs_BT, old_BT, advantages_BT, mask_BT, *, …) -> (losses_BT, statistics)

    logprobs_BT    [B, T]  log-probabilities of the sampled tokens under the policy being trained; carries the gradient
    old_BT         [B, T]  the same under the policy before this update; no gradient
    advantages_BT  [B, T]  no gradient
    mask_BT        [B, T]  bool, the tokens that count
    losses_BT      [B, T]  the loss of each token, to be reduced; zero where masked
    statistics     name -> [B, T] numbers or flags without gradient; the metrics show their mean over the tokens

A loss is per token and a reduction is linear, so any loss goes with any reduction and any split into micro-batches.
The log-ratio is bounded to ±20 before it is exponentiated: beyond that the gradient of the ratio is noise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from rewardsmith.algorithms.tensors import (
    FloatB,
    FloatBT,
    IdsB,
    MaskBT,
    Scalar,
    check_option,
    masked,
    masked_difference,
    token_counts,
)

Losses = tuple[FloatBT, dict[str, Tensor]]
KlEstimator = Literal["k1", "k2", "k3"]

Low = Annotated[float, Field(ge=0, description="the ratio is clipped below 1 - low")]
OpenLow = Annotated[float, Field(ge=0, description="the weight is clipped below 1 - low; 1 means no lower bound")]
High = Annotated[float, Field(ge=0, description="the ratio is clipped above 1 + high")]
LogLow = Annotated[float, Field(ge=0, description="the log-ratio is clipped below -low")]
LogHigh = Annotated[float, Field(ge=0, description="the log-ratio is clipped above +high")]
Dual = Annotated[float | None, Field(gt=1, description="bound of the ratio for negative advantages (dual clip)")]

LOG_RATIO_BOUND = 20.0


def clip(
    logprobs_BT: FloatBT,
    old_BT: FloatBT,
    advantages_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    low: Low = 0.2,
    high: High = 0.2,
    dual: Dual = None,
) -> Losses:
    r"""PPO's clipped loss.

    $$\ell_t = \max\bigl(-A_t\,\rho_t,\; -A_t\,\mathrm{clip}(\rho_t, 1-\epsilon_{low}, 1+\epsilon_{high})\bigr),
      \qquad \rho_t = \pi(y_t) / \pi_{old}(y_t)$$

    Schulman et al. 2017, arXiv 1707.06347, eq. 7; separate bounds: DAPO, arXiv 2503.14476. With `dual` = c the loss
    of a token with A < 0 is at most -A·c (Ye et al. 2020, arXiv 1912.09729).
    """
    log_ratio_BT, advantages_BT = _checked(logprobs_BT, old_BT, advantages_BT, mask_BT)
    ratio_BT = _bounded_ratio(log_ratio_BT)
    losses_BT, statistics = _clipped_surrogate(ratio_BT, advantages_BT, low=low, high=high, dual=dual)
    return losses_BT, statistics | {"kl_from_old": -log_ratio_BT.detach()}


def gspo(
    logprobs_BT: FloatBT,
    old_BT: FloatBT,
    advantages_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    low: Low = 3e-4,
    high: High = 4e-4,
) -> Losses:
    r"""GSPO's clipped loss with a sequence-level ratio, in the form that keeps a gradient for every token.

    $$s_i = \exp\Bigl(\tfrac{1}{|y_i|}\sum_t \log\rho_{i,t}\Bigr), \quad
      s_{i,t} = \mathrm{sg}[s_i]\,\frac{\pi(y_{i,t})}{\mathrm{sg}[\pi(y_{i,t})]}, \quad
      \ell_{i,t} = \max(-A\,s_{i,t}, -A\,\mathrm{clip}(s_{i,t}, 1-\epsilon_{low}, 1+\epsilon_{high}))$$

    Zheng et al. 2025, arXiv 2507.18071, eq. 5, 7 and the token form of section 4.3. sg stops the gradient. The paper
    averages per sequence: use the reduction `sequence-mean-token-mean`.
    """
    log_ratio_BT, advantages_BT = _checked(logprobs_BT, old_BT, advantages_BT, mask_BT)
    lengths_B1 = token_counts(mask_BT)[:, None].clamp(min=1)
    log_sequence_B1 = (log_ratio_BT.sum(-1, keepdim=True) / lengths_B1).detach()
    ratio_BT = _bounded_ratio(log_sequence_B1 + (log_ratio_BT - log_ratio_BT.detach()))
    losses_BT, statistics = _clipped_surrogate(ratio_BT, advantages_BT, low=low, high=high)
    return losses_BT, statistics | {"kl_from_old": -log_ratio_BT.detach()}


def gmpo(
    logprobs_BT: FloatBT,
    old_BT: FloatBT,
    advantages_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    low: LogLow = 0.4,
    high: LogHigh = 0.4,
) -> Losses:
    r"""GMPO's loss: the advantage times the geometric mean of the tokens' pessimistically clipped ratios.

    $$\ell_i = -A_i \exp\Bigl(\tfrac{1}{|y_i|}\sum_t \sigma_{i,t}
      \min\bigl(\sigma_{i,t} \log\rho_{i,t},\; \sigma_{i,t}\,\mathrm{clip}(\log\rho_{i,t}, -\epsilon_{low},
      \epsilon_{high})\bigr)\Bigr), \qquad \sigma_{i,t} = \mathrm{sgn}(A_{i,t})$$

    Zhao et al. 2025, arXiv 2507.20673, eq. 4; the paper's clip range is (e^-0.4, e^0.4) and its advantage one number
    per response. Where advantages differ within a response, A_i is their mean, as in verl and TRL, whose names for the
    bounds these are. Every token holds ℓ_i, so the reduction `sequence-mean-token-mean` is the paper's mean over
    responses.
    """
    log_ratio_BT, advantages_BT = _checked(logprobs_BT, old_BT, advantages_BT, mask_BT)
    lengths_B1 = token_counts(mask_BT)[:, None].clamp(min=1)
    advantage_B1 = advantages_BT.sum(-1, keepdim=True) / lengths_B1
    # Pessimistic: a token that should become likelier is bounded above only, one that should not, below only.
    rising_BT, number = advantages_BT > 0, partial(log_ratio_BT.new_full, ())
    lower_BT = torch.where(rising_BT, number(-torch.inf), number(-low))
    upper_BT = torch.where(rising_BT, number(high), number(torch.inf))
    pessimistic_BT = torch.where(advantages_BT == 0, 0, log_ratio_BT.clamp(lower_BT, upper_BT))
    ratio_B1 = _bounded_ratio(pessimistic_BT.sum(-1, keepdim=True) / lengths_B1)
    statistics = {
        "clipped_low": (log_ratio_BT < lower_BT) & (advantages_BT < 0),
        "clipped_high": log_ratio_BT > upper_BT,
        "kl_from_old": -log_ratio_BT.detach(),
    }
    return torch.where(mask_BT, -advantage_B1 * ratio_B1, 0), statistics


def cispo(
    logprobs_BT: FloatBT,
    old_BT: FloatBT,
    advantages_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    low: OpenLow = 1.0,
    high: High = 4.0,
) -> Losses:
    r"""REINFORCE with a clipped, detached importance weight, so that clipped tokens still learn.

    $$\ell_t = -\mathrm{sg}\bigl[\mathrm{clip}(\rho_t, 1-\epsilon_{low}, 1+\epsilon_{high})\bigr] A_t \log\pi(y_t)$$

    MiniMax 2025 (CISPO), arXiv 2506.13585, eq. 4 and 5; the paper leaves the lower side open, which is the default.
    """
    log_ratio_BT, advantages_BT = _checked(logprobs_BT.detach(), old_BT, advantages_BT, mask_BT)
    ratio_BT = _bounded_ratio(log_ratio_BT)
    weights_BT = ratio_BT.clamp(1 - low, 1 + high) * -advantages_BT
    statistics = {
        "clipped_low": ratio_BT < 1 - low,
        "clipped_high": ratio_BT > 1 + high,
        "kl_from_old": -log_ratio_BT,
    }
    return weights_BT * torch.where(mask_BT, logprobs_BT, 0), statistics


def reinforce(logprobs_BT: FloatBT, old_BT: FloatBT, advantages_BT: FloatBT, mask_BT: MaskBT) -> Losses:
    r"""REINFORCE: $\ell_t = -A_t \log\pi(y_t)$ (Williams 1992). For one update per batch; nothing bounds the step."""
    log_ratio_BT, advantages_BT = _checked(logprobs_BT.detach(), old_BT, advantages_BT, mask_BT)
    return -advantages_BT * torch.where(mask_BT, logprobs_BT, 0), {"kl_from_old": -log_ratio_BT}


POLICY_LOSSES: dict[str, Callable[..., Losses]] = {
    "clip": clip,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "reinforce": reinforce,
}


def _checked(logprobs_BT: FloatBT, old_BT: FloatBT, advantages_BT: FloatBT, mask_BT: MaskBT) -> tuple[FloatBT, FloatBT]:
    """Return (unbounded log-ratio, advantages), zero where masked; the log-ratio has the gradient of the logprobs."""
    log_ratio_BT = masked_difference("logprobs", logprobs_BT, "old logprobs", old_BT, mask_BT)
    return log_ratio_BT, masked("advantages", advantages_BT.detach(), mask_BT)


def _bounded_ratio(log_ratio_BT: Tensor) -> Tensor:
    return torch.exp(log_ratio_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def _clipped_surrogate(
    ratio_BT: FloatBT, advantages_BT: FloatBT, *, low: float, high: float, dual: float | None = None
) -> Losses:
    r"""Return $\max(-A\rho, -A\,\mathrm{clip}(\rho, 1-low, 1+high))$, and which tokens the clip holds back.

    Written as $-A\,\mathrm{clamp}(\rho, lower(A), upper(A))$, which is the same: a token that should become likelier
    is bounded above by 1 + high only, one that should become unlikelier below by 1 - low, and above by `dual`.
    """
    falling_BT = advantages_BT < 0
    number = partial(ratio_BT.new_full, ())  # made on the device: a copy of a number would wait for it
    lower_BT = torch.where(falling_BT, number(1 - low), number(0.0))
    upper_BT = torch.where(falling_BT, number(torch.inf if dual is None else dual), number(1 + high))
    losses_BT = -advantages_BT * ratio_BT.clamp(lower_BT, upper_BT)
    above_BT = ratio_BT > upper_BT
    statistics = {"clipped_low": ratio_BT < lower_BT, "clipped_high": above_BT & (advantages_BT > 0)}
    if dual is not None:
        statistics["clipped_dual"] = above_BT & falling_BT
    return losses_BT, statistics


def importance_weights(
    learner_BT: FloatBT,
    sampler_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    level: Literal["token", "sequence"] = "token",
    cap: float = 2.0,
    floor: float = 0.0,
    outside: Literal["truncate", "drop"] = "truncate",
) -> FloatBT:
    r"""Return $w = \pi_{learner} / \pi_{sampler}$, bounded, without gradient; multiply the token losses by it.

    `truncate` is truncated importance sampling (Ionides 2008), as used for the gap between inference engines and
    trainers; `drop` with a floor is the masked form (IcePop). "sequence" takes the product over the response. Weights
    are 0 where masked.
    """
    check_option("level", level, ("token", "sequence"))
    check_option("outside", outside, ("truncate", "drop"))
    difference_BT = masked_difference("learner logprobs", learner_BT.detach(), "sampler logprobs", sampler_BT, mask_BT)
    if level == "sequence":
        difference_BT = difference_BT.sum(-1, keepdim=True).expand_as(difference_BT)
    weights_BT = _bounded_ratio(difference_BT)
    if outside == "truncate":
        weights_BT = weights_BT.clamp(floor, cap)
    else:
        weights_BT = torch.where((weights_BT >= floor) & (weights_BT <= cap), weights_BT, 0)
    return torch.where(mask_BT, weights_BT, 0)


# ---- value loss, imitation, overlong penalty -------------------------------------------------------------------------


def value_loss(
    values_BT: FloatBT, old_values_BT: FloatBT, returns_BT: FloatBT, mask_BT: MaskBT, *, clip: float | None = None
) -> tuple[FloatBT, dict[str, Tensor]]:
    r"""Squared error of a critic, optionally clipped around its old values as in PPO.

    $$\ell_t = \tfrac12 \max\bigl((V_t - G_t)^2, (\mathrm{clip}(V_t, V^{old}_t \pm c) - G_t)^2\bigr)$$

    V carries the gradient, V^old are the values that the advantages were computed with, and the targets G are unscaled
    GAE plus V^old. Returns the losses [B, T] and the statistic `clipped`.
    """
    values_BT = masked("values", values_BT, mask_BT)
    returns_BT = masked("returns", returns_BT, mask_BT).detach()
    errors_BT = (values_BT - returns_BT).square()
    if clip is None:
        return errors_BT / 2, {"clipped": torch.zeros_like(mask_BT)}
    old_values_BT = masked("old values", old_values_BT, mask_BT).detach()
    clipped_BT = (values_BT.clamp(old_values_BT - clip, old_values_BT + clip) - returns_BT).square()
    return torch.maximum(errors_BT, clipped_BT) / 2, {"clipped": clipped_BT > errors_BT}


def positive_sft_loss(logprobs_BT: FloatBT, advantages_BT: FloatBT, mask_BT: MaskBT) -> tuple[FloatBT, MaskBT]:
    r"""Imitate what went well: $\ell_t = -\max(A_t, 0) \log\pi(y_t)$.

    GRRM (arXiv 2602.14028) adds it with a coefficient of 0.1, so that the tiny steps of GSPO do not stall. Returns the
    losses [B, T] and the mask [B, T] of the tokens with A > 0: reduce with the weights of that mask, so that the mean
    is over rows that have something to imitate.
    """
    positive_BT = mask_BT & (masked("advantages", advantages_BT, mask_BT) > 0)
    return -torch.where(positive_BT, advantages_BT.detach(), 0) * masked("logprobs", logprobs_BT, mask_BT), positive_BT


def overlong_penalty(lengths_B: IdsB, *, limit: int, buffer: int, factor: float = 1.0) -> FloatB:
    r"""Return 0 up to `limit - buffer` tokens, then a linear fall to -factor at `limit`, and -factor beyond.

    $$p(l) = -f \cdot \mathrm{clip}\Bigl(\frac{l - (L - c)}{c}, 0, 1\Bigr)$$

    Yu et al. 2025 (DAPO), arXiv 2503.14476, eq. 13.
    """
    return -factor * ((lengths_B - (limit - buffer)) / buffer).clamp(0, 1)


# ---- KL(π ‖ π_ref) from the log-probability of a sampled token -------------------------------------------------------
# With d = log π(y) - log π_ref(y) and y sampled from π (Schulman 2020, "Approximating KL divergence"):
#
# | name | value         | its mean          | expected gradient of the value as a loss                      |
# |------|---------------|-------------------|---------------------------------------------------------------|
# | k1   | d             | KL(π ‖ π_ref)     | 0: E[∇ log π] = 0, so as a loss term it does nothing but noise |
# | k2   | d² / 2        | not KL, close     | ∇ KL(π ‖ π_ref), the one that is wanted                        |
# | k3   | e^-d - 1 + d  | KL(π ‖ π_ref)     | ∇ KL(π_ref ‖ π), the other direction                           |
#
# So k1 belongs into the reward (`kl_reward`), where the policy gradient gives it its meaning; in the loss use k2, or
# `kl_loss` with `unbiased=True`, which shows the value of k1 or k3 and has the gradient of k2.


def kl_estimate(logprobs_BT: FloatBT, reference_BT: FloatBT, mask_BT: MaskBT, *, estimator: KlEstimator) -> FloatBT:
    """Return the estimate at each token, [B, T], zero where masked. The reference gets no gradient.

    k3 bounds d below at -20 before exponentiating: a token that the reference likes e^20 times better has an estimate
    of 5e8 and no gradient.
    """
    check_option("estimator", estimator, ("k1", "k2", "k3"))
    difference_BT = masked_difference("logprobs", logprobs_BT, "reference logprobs", reference_BT, mask_BT)
    if estimator == "k1":
        return difference_BT
    if estimator == "k2":
        return difference_BT.square() / 2
    bounded_BT = difference_BT.clamp(min=-LOG_RATIO_BOUND)
    return torch.expm1(-bounded_BT) + bounded_BT  # e^-d - 1 would lose all digits for small d


def kl_loss(
    logprobs_BT: FloatBT,
    reference_BT: FloatBT,
    mask_BT: MaskBT,
    *,
    estimator: KlEstimator = "k2",
    unbiased: bool = False,
) -> FloatBT:
    """Return a KL loss per token, to be weighted and reduced like a policy loss; `unbiased` has the gradient of k2."""
    value_BT = kl_estimate(logprobs_BT, reference_BT, mask_BT, estimator=estimator)
    if not unbiased or estimator == "k2":
        return value_BT
    gradient_BT = kl_estimate(logprobs_BT, reference_BT, mask_BT, estimator="k2")
    return value_BT.detach() + (gradient_BT - gradient_BT.detach())


def kl_reward(
    logprobs_BT: FloatBT, reference_BT: FloatBT, mask_BT: MaskBT, *, estimator: KlEstimator = "k1"
) -> FloatBT:
    """Return the penalty as a reward per token: -k(d), detached. Multiply by the coefficient, add to the rewards."""
    return -kl_estimate(logprobs_BT.detach(), reference_BT, mask_BT, estimator=estimator)


# ---- reductions: from a loss per token to one number, exactly, over any split into micro-batches ---------------------
# Every reduction is a weighted sum Σ w_bt·ℓ_bt whose weights depend only on the mask of the whole batch. So compute the
# weights once, split both, and the gradients of the parts add up to the gradient of the whole.


def reduce(losses_BT: FloatBT, weights_BT: FloatBT) -> Scalar:
    """Return Σ w·ℓ. Losses of weight 0 are not read, so they may be NaN; no rows at all give 0."""
    return torch.where(weights_BT != 0, losses_BT * weights_BT, 0).sum()


def token_mean(mask_BT: MaskBT, dtype: torch.dtype = torch.float32) -> FloatBT:
    """Weigh every token alike: 1 / (tokens of the batch). Long responses count more (DAPO, arXiv 2503.14476)."""
    return mask_BT.to(dtype) / token_counts(mask_BT).sum().clamp(min=1)


def sequence_mean_token_mean(mask_BT: MaskBT, dtype: torch.dtype = torch.float32) -> FloatBT:
    """Average within each response, then over responses: 1 / (rows · own tokens). The original GRPO and GSPO."""
    return mask_BT.to(dtype) / (token_counts(mask_BT).long().clamp(min=1) * _rows(mask_BT))[:, None]


def sequence_mean_token_sum(mask_BT: MaskBT, dtype: torch.dtype = torch.float32) -> FloatBT:
    """Sum within each response, average over responses: 1 / rows. The policy gradient."""
    return mask_BT.to(dtype) / _rows(mask_BT)


def constant_length(
    mask_BT: MaskBT,
    dtype: torch.dtype = torch.float32,
    *,
    length: Annotated[int, Field(ge=1, description="tokens to divide by, e.g. the token limit")],
) -> FloatBT:
    """Sum within each response, divide by a constant: 1 / (rows · length). Dr. GRPO (arXiv 2503.20783)."""
    return mask_BT.to(dtype) / (_rows(mask_BT) * length)


def _rows(mask_BT: MaskBT) -> Tensor:
    """Count the rows that have any token; at least 1, so that an empty batch has loss 0."""
    return (token_counts(mask_BT) > 0).sum().clamp(min=1)


REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "token-mean": token_mean,
    "sequence-mean-token-mean": sequence_mean_token_mean,
    "sequence-mean-token-sum": sequence_mean_token_sum,
    "constant-length": constant_length,
}
