"""Sampled tokens follow the distribution that their log-probabilities belong to."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from rewardsmith.engines.embedded.sampling import sample, uniforms
from rewardsmith.engines.protocol import Sampling

Numbers = NDArray[np.float64]


def distribution(logits: Numbers, sampling: Sampling) -> Numbers:
    """Return the probabilities of one position: temperature, then top-k, then top-p, one token at a time."""
    x = np.asarray(logits, dtype=np.float64) / sampling.temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda v: -p[v])
    if sampling.top_k:
        order = order[: sampling.top_k]
    total, kept, reached = sum(p[v] for v in order), [], 0.0
    for v in order:
        kept.append(v)
        reached += p[v] / total
        if reached >= sampling.top_p:
            break
    cut = np.zeros_like(p)
    cut[kept] = p[kept] / p[kept].sum()
    return cut


def assert_follows(tokens: NDArray[np.integer], p: Numbers) -> None:
    """Compare counts with probabilities by a chi-square test; rare tokens are counted together."""
    counts = np.bincount(tokens, minlength=len(p)).astype(float)
    assert not counts[p == 0].any()
    expected = p * len(tokens)
    common = expected >= 5
    found, share = counts[common], expected[common]
    if expected[~common].sum() >= 5:
        found, share = np.append(found, counts[~common].sum()), np.append(share, expected[~common].sum())
    if len(found) > 1:
        assert chisquare(found, share * found.sum() / share.sum()).pvalue > 1e-4


CUTS = [
    Sampling(),
    Sampling(temperature=0.5),
    Sampling(top_k=4),
    Sampling(top_k=1000),
    Sampling(top_p=0.6),
    Sampling(temperature=0.7, top_k=6, top_p=0.8),
]


@pytest.mark.parametrize("sampling", CUTS, ids=str)
def test_tokens_follow_the_distribution(sampling: Sampling) -> None:
    logits = np.random.default_rng(0).normal(size=20).astype(np.float32) * 1.5
    logits[[0, 7, 19]] = -np.inf  # never, be it the first or the last
    p = distribution(logits, sampling)
    draws = 20_000
    numbers = torch.from_numpy(uniforms(3, 0, draws))
    tokens, logprobs = sample(torch.from_numpy(logits).expand(draws, -1), numbers, sampling)
    assert_follows(tokens.numpy(), p)
    np.testing.assert_allclose(logprobs.numpy(), np.log(p[tokens.numpy()]), atol=1e-5)


# ---- random numbers --------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.integers(0, 50))
def test_random_numbers_are_in_the_unit_interval_and_begin_alike(seed: int, rollout: int, count: int) -> None:
    numbers = uniforms(seed, rollout, count)
    assert numbers.dtype == np.float32
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert np.array_equal(uniforms(seed, rollout, 60)[:count], numbers)
    assert not np.array_equal(uniforms(seed, rollout + 1, 60), uniforms(seed, rollout, 60))
    assert not np.array_equal(uniforms(seed ^ 1, rollout, 60), uniforms(seed, rollout, 60))
