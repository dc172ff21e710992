"""From logits to the next token."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.engines.protocol import Sampling


def uniforms(seed: int, rollout: int, count: int) -> NDArray[np.float32]:
    """Return the random numbers in [0, 1) of one rollout, one per token: they depend on (seed, rollout) alone."""
    key = np.array([seed, rollout], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).random(count, dtype=np.float32)


def sample(logits_RV: Tensor, uniforms_R: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return a token for each row and its log-probability, both [R].

    The token is the one at which the cumulative probability passes the row's uniform number. The log-probability is
    that of the distribution sampled from: after temperature, top-k and top-p; for a greedy token, of the softmax.
    """
    if sampling.temperature == 0:
        tokens_R = logits_RV.argmax(-1)
        return tokens_R, _pick(logits_RV.log_softmax(-1), tokens_R)
    if sampling.temperature != 1:
        logits_RV = logits_RV / sampling.temperature
    if sampling.top_k or sampling.top_p < 1:
        logits_RV, order_RV = _truncate(logits_RV, sampling)
        ranks_R, logprobs_R = _invert(logits_RV, uniforms_R)
        return _pick(order_RV, ranks_R), logprobs_R
    return _invert(logits_RV, uniforms_R)


def _invert(logits_RV: Tensor, uniforms_R: Tensor) -> tuple[Tensor, Tensor]:
    p_RV = logits_RV.softmax(-1)
    cumulative_RV = p_RV.cumsum(-1)
    # Rounding may leave the last sum a little off 1, so the target is scaled by it and stays below it. A token of
    # probability 0 is never the first to pass. The clamp is for logits that are NaN, which the caller reports.
    target_R1 = (uniforms_R * cumulative_RV[:, -1])[:, None]
    index_R = torch.searchsorted(cumulative_RV, target_R1, right=True).squeeze(-1).clamp_(max=logits_RV.shape[-1] - 1)
    return index_R, _pick(p_RV, index_R).log()


def _truncate(logits_RV: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return the logits that top-k and then top-p leave, likeliest first, and their tokens."""
    count = min(sampling.top_k or logits_RV.shape[-1], logits_RV.shape[-1])
    logits_RV, order_RV = logits_RV.topk(count, dim=-1)
    if sampling.top_p < 1:
        p_RV = logits_RV.softmax(-1)
        before_RV = p_RV.cumsum(-1) - p_RV  # the token that reaches top_p is kept too
        logits_RV = logits_RV.masked_fill(before_RV >= sampling.top_p, -math.inf)
    return logits_RV, order_RV


def _pick(values_RV: Tensor, index_R: Tensor) -> Tensor:
    return values_RV.gather(-1, index_R[:, None]).squeeze(-1)
