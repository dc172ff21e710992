"""Sampled tokens follow the distribution that their log-probabilities belong to."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from rewardsmith.engines.embedded.sampling import sample, uniforms
from rewardsmith.engines.protocol import Row, Sampling

from .running import answer, ask, hf_logits, hf_model, rows_of, shared_engine

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
    seen, wanted = counts[common], expected[common]
    if expected[~common].sum() >= 5:
        seen, wanted = np.append(seen, counts[~common].sum()), np.append(wanted, expected[~common].sum())
    if len(seen) > 1:
        assert chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue > 1e-4


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


def test_the_ends_of_the_unit_interval_are_safe() -> None:
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(1)) * 4
    logits[:, [0, 49]] = -torch.inf
    for sampling in CUTS:
        for number in (0.0, 1 - 2**-24, 2**-24):
            tokens, logprobs = sample(logits, torch.full((200,), number), sampling)
            assert bool(logprobs.isfinite().all())
            assert not set(tokens.tolist()) & {0, 49}


def test_greedy_takes_the_largest_and_says_how_likely_it_was() -> None:
    logits = torch.randn(30, 50, generator=torch.Generator().manual_seed(2))
    tokens, logprobs = sample(logits, torch.rand(30), Sampling(temperature=0, top_k=2))
    assert torch.equal(tokens, logits.argmax(-1))
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).max(-1).values)


# ---- random numbers --------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.integers(0, 50))
def test_random_numbers_are_in_the_unit_interval_and_begin_alike(seed: int, rollout: int, count: int) -> None:
    numbers = uniforms(seed, rollout, count)
    assert numbers.dtype == np.float32
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert np.array_equal(uniforms(seed, rollout, 60)[:count], numbers)
    assert not np.array_equal(uniforms(seed, rollout + 1, 60), uniforms(seed, rollout, 60))
    assert not np.array_equal(uniforms(seed ^ 1, rollout, 60), uniforms(seed, rollout, 60))


def test_random_numbers_are_uniform_and_not_correlated() -> None:
    table = np.stack([uniforms(seed, rollout, 64) for seed in range(20) for rollout in range(20)]).astype(float)
    assert chisquare(np.histogram(table, bins=32, range=(0, 1))[0]).pvalue > 1e-4
    correlation = np.corrcoef(table)[np.triu_indices(len(table), 1)]
    assert abs(correlation.mean()) < 0.01
    assert correlation.std() == pytest.approx(1 / np.sqrt(64), rel=0.1)


# ---- through the model -----------------------------------------------------------------------------------------------


def next_logits(text: str) -> NDArray[np.float32]:
    prompt = shared_engine("tiny-llama").encode(ask(text))
    with torch.no_grad():
        return hf_logits(hf_model("tiny-llama"), Row(prompt, np.zeros(1, np.int32)))[0].numpy()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=1),
        Sampling(max_tokens=1, top_p=0.5),
        Sampling(max_tokens=1, min_tokens=1, temperature=2.5),
    ],
    ids=str,
)
def test_first_tokens_follow_the_models_distribution(sampling: Sampling) -> None:
    engine = shared_engine("tiny-llama")
    logits = next_logits("7")
    if sampling.min_tokens:
        assert distribution(logits, sampling)[list(engine.stop_ids)].sum() > 1e-3  # else this would show nothing
        logits[list(engine.stop_ids)] = -np.inf
    (group,) = answer(engine, ["7"], sampling, n=3000)
    assert_follows(np.array([rollout.tokens[0] for rollout in group.rollouts]), distribution(logits, sampling))


def test_second_tokens_follow_the_first_ones() -> None:
    engine = shared_engine("tiny-llama")
    (group,) = answer(engine, ["7"], Sampling(max_tokens=2, min_tokens=2, top_k=2), n=1500)
    pairs = np.array([rollout.tokens for rollout in group.rollouts])
    for first in np.unique(pairs[:, 0]):
        mine = pairs[pairs[:, 0] == first, 1]
        row = Row(engine.encode(group.prompt), np.array([first, 0], dtype=np.int32))
        with torch.no_grad():
            logits = hf_logits(hf_model("tiny-llama"), row)[1].numpy()
        logits[list(engine.stop_ids)] = -np.inf
        assert_follows(mine, distribution(logits, Sampling(top_k=2)))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=12, top_k=9, top_p=0.8, temperature=1.3),
        Sampling(max_tokens=12, min_tokens=6),
    ],
    ids=str,
)
def test_log_probabilities_are_those_of_what_the_cuts_leave(sampling: Sampling) -> None:
    assert sampling.cuts
    engine = shared_engine("tiny-llama")
    groups = answer(engine, ["7", "7+5-3?"], sampling, n=4)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    for row, rollout in zip(rows_of(engine, groups), rollouts, strict=True):
        with torch.no_grad():
            logits = hf_logits(hf_model("tiny-llama"), row).numpy()
        logits[: sampling.min_tokens, list(engine.stop_ids)] = -np.inf
        expected = [np.log(distribution(x, sampling)[token]) for x, token in zip(logits, rollout.tokens, strict=True)]
        np.testing.assert_allclose(rollout.logprobs, expected, atol=2e-5)
