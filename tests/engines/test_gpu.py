"""What only a GPU can show: CUDA graphs, bfloat16 with master weights, sleep and wake."""

import asyncio

import numpy as np
import pytest
import torch

from rewardsmith import Message, Prompt
from rewardsmith.engines import ModelSettings, OptimizerSettings
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.protocol import Row, Sampling

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

PROMPTS = [Prompt(f"p{i}", [Message("user", text)]) for i, text in enumerate(["7+5-3?", "1?", "abc" * 20, "2+2?"])]


def groups(engine: EmbeddedEngine, prompts: list[Prompt], sampling: Sampling, n: int = 3) -> list:
    async def run() -> list:
        seeds = list(range(len(prompts)))
        found = {i: group async for i, group in engine.generate(prompts, sampling, n=n, seeds=seeds)}
        return [found[i] for i in range(len(prompts))]

    return asyncio.run(run())


def texts(found: list) -> list[list[list[int]]]:
    return [[r.tokens.tolist() for r in group.rollouts] for group in found]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3", "tiny-gpt2", "tiny-gemma2", "tiny-gemma3"])
def test_the_gpu_writes_what_the_cpu_writes(name: str) -> None:
    here, there = (
        EmbeddedEngine.open(ModelSettings(init=name, device=device, dtype="float32", rows=8))
        for device in ("cuda", "cpu")
    )
    for sampling in (Sampling(temperature=0, max_tokens=60), Sampling(max_tokens=60), Sampling(max_tokens=30, top_k=5)):
        assert texts(groups(here, PROMPTS * 3, sampling)) == texts(groups(there, PROMPTS * 3, sampling))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampler_and_learner_agree(dtype: str) -> None:
    engine = EmbeddedEngine.open(ModelSettings(init="tiny-qwen3", device="cuda", dtype=dtype, rows=16))
    found = groups(engine, PROMPTS, Sampling(max_tokens=50, temperature=0.8), n=6)
    rows = [Row(engine.encode(g.prompt), r.tokens) for g in found for r in g.rollouts]
    learner = engine.logprobs(rows, temperature=0.8).cpu().numpy()
    gaps = [
        np.abs(learner[i, : len(r.tokens)] - r.logprobs).max()
        for i, r in enumerate(r for g in found for r in g.rollouts)
    ]
    assert max(gaps) < (1e-4 if dtype == "float32" else 0.15)


def test_small_updates_are_not_lost_in_bfloat16() -> None:
    engine = EmbeddedEngine.open(ModelSettings(init="tiny-llama", device="cuda", dtype="bfloat16"))
    engine.learn_with(OptimizerSettings(lr=1e-5))
    row = Row(engine.encode(PROMPTS[0]), engine.encode_response("7+5=12;12-3=9;#9"))
    before = float(engine.logprobs([row]).sum())
    for _ in range(200):
        step = engine.update([row], lambda out: -out.logprobs_bT.sum(), lr=1e-5)
        assert not step.skipped
    assert float(engine.logprobs([row]).sum()) > before + 1


def test_sleep_frees_the_device_and_wake_is_exact() -> None:
    engine = EmbeddedEngine.open(ModelSettings(init="tiny-llama", device="cuda", dtype="bfloat16"))
    engine.learn_with(OptimizerSettings(lr=1e-3))
    row = Row(engine.encode(PROMPTS[0]), engine.encode_response("9"))
    engine.update([row], lambda out: -out.logprobs_bT.sum(), lr=1e-3)
    before = engine.logprobs([row])
    used = torch.cuda.memory_allocated()
    engine.sleep()
    parameters = sum(p.numel() for p in engine.model.parameters())
    assert used - torch.cuda.memory_allocated() >= parameters * (2 + 4 + 8)  # weights, masters, moments
    engine.wake()
    assert torch.equal(engine.logprobs([row]), before)
    engine.update([row], lambda out: -out.logprobs_bT.sum(), lr=1e-3)


def test_recomputation_changes_nothing() -> None:
    norms = []
    for recompute in (False, True):
        settings = ModelSettings(init="tiny-gemma3", device="cuda", dtype="float32", recompute=recompute)
        engine = EmbeddedEngine.open(settings)
        engine.learn_with(OptimizerSettings(lr=1e-3))
        rows = [Row(engine.encode(p), engine.encode_response("12" * (i + 1))) for i, p in enumerate(PROMPTS)]
        norms.append(engine.update(rows, lambda out: -out.logprobs_bT.sum(), lr=1e-3).grad_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
