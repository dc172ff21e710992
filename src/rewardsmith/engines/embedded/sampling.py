"""From logits to the next token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.engines.embedded.kernels.nucleus import nucleus_floor
from rewardsmith.engines.embedded.kernels.sample_tokens import pick, sample_tokens
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
    temperature, order_RV, floor_R = sampling.temperature, None, None
    if temperature and 0 < sampling.top_k < logits_RV.shape[-1]:
        logits_RV, order_RV = logits_RV.topk(sampling.top_k, dim=-1)
    if temperature and sampling.top_p < 1:
        floor_R = nucleus_floor(logits_RV, temperature, sampling.top_p)
    tokens_R, logprobs_R = sample_tokens(logits_RV, uniforms_R, temperature, floor_R)
    return tokens_R if order_RV is None else pick(order_RV, tokens_R), logprobs_R
