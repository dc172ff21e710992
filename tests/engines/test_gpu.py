"""What only a GPU can show: CUDA graphs, bfloat16 with master weights, sleep and wake, states in host memory."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rewardsmith import Message, Prompt
from rewardsmith.engines import ModelSettings, OptimizerSettings
from rewardsmith.engines.embedded import block_cache, streamed_adamw
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.embedded.generate import Generator
from rewardsmith.engines.embedded.learner import Learner
from rewardsmith.engines.embedded.recompute import recompute_layers, run_layer
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


@pytest.mark.parametrize("min_shared", [0, 4])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3", "tiny-gpt2", "tiny-gemma2", "tiny-gemma3"])
def test_the_gpu_writes_what_the_cpu_writes(name: str, min_shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_cache, "MIN_SHARED", min_shared)  # 0: every shared prompt is read once
    here, there = (
        EmbeddedEngine.open(ModelSettings(init=name, device=device, dtype="float32", rows=8))
        for device in ("cuda", "cpu")
    )
    for sampling in (Sampling(temperature=0, max_tokens=60), Sampling(max_tokens=60), Sampling(max_tokens=30, top_k=5)):
        assert texts(groups(here, PROMPTS * 3, sampling)) == texts(groups(there, PROMPTS * 3, sampling))


def test_graphs_stay_valid_while_weights_learn_and_the_cache_moves() -> None:
    sampling = Sampling(temperature=0, max_tokens=40)
    engine, other = (
        EmbeddedEngine.open(ModelSettings(init="tiny-qwen3", device="cuda", dtype="float32")) for _ in "ab"
    )
    row = Row(engine.encode(PROMPTS[0]), engine.encode_response("7+5=12;12-3=9;#9"))
    for one in (engine, other):
        one.learn_with(OptimizerSettings(lr=1e-2))
    groups(engine, PROMPTS, sampling)
    state = engine._state
    assert state is not None
    graphs = dict(state._graphs)
    hindrance = []
    for _ in range(3):
        for one in (engine, other):
            one.update([row], lambda out: -out.logprobs_bT.sum(), lr=1e-2)
        hindrance.append(torch.empty(2**24, device="cuda"))  # the next cache lies elsewhere
        fresh = groups(other, PROMPTS, sampling)
        assert texts(groups(engine, PROMPTS, sampling)) == texts(fresh)
        other._state = None  # recorded again each time
    assert engine._state is state
    assert all(state._graphs[key] is graph for key, graph in graphs.items() if graph is not None)
    engine.sleep()
    engine.wake()
    assert texts(groups(engine, PROMPTS, sampling)) == texts(fresh)


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-gemma2"])
def test_rows_wait_for_blocks_and_answer_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = EmbeddedEngine.open(ModelSettings(init=name, device="cuda", dtype="float32"))
    sampling = Sampling(max_tokens=150, min_tokens=140)
    expected = texts(groups(engine, PROMPTS * 4, sampling))
    preempted = []
    preempt = Generator._preempt
    monkeypatch.setattr(Generator, "_preempt", lambda *given: preempted.append(given) or preempt(*given))
    monkeypatch.setattr(EmbeddedEngine, "_blocks", lambda *_: 40)
    assert texts(groups(engine, PROMPTS * 4, sampling)) == expected
    assert preempted


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


def test_recomputation_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewardsmith.engines.embedded.recompute.MIN_OFFLOADED", 1)
    norms = []
    for recompute in (False, True, "offload", "auto"):
        settings = ModelSettings(init="tiny-gemma3", device="cuda", dtype="float32", recompute=recompute)
        engine = EmbeddedEngine.open(settings)
        engine.learn_with(OptimizerSettings(lr=1e-3))
        rows = [Row(engine.encode(p), engine.encode_response("12" * (i + 1))) for i, p in enumerate(PROMPTS)]
        norms.append(engine.update(rows, lambda out: -out.logprobs_bT.sum(), lr=1e-3).grad_norm)
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-5)


def test_recomputed_layers_keep_their_inputs_and_offloaded_ones_nothing() -> None:
    layers = [nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda() for _ in range(8)]
    kept, found = {}, {}
    for name, options in {"all": (0, False), "inputs": (8, False), "none": (8, True)}.items():
        before = torch.cuda.memory_allocated()
        hidden = torch.linspace(-1, 1, 2**23, device="cuda").view(-1, 1024).requires_grad_()
        with recompute_layers(options[0], offload=options[1]):
            for layer in layers:
                hidden = run_layer(layer, hidden)
        torch.cuda.synchronize()
        kept[name] = torch.cuda.memory_allocated() - before
        hidden.square().sum().backward()  # type: ignore[no-untyped-call]
        found[name] = [p.grad.clone() for layer in layers for p in layer.parameters()]  # type: ignore[union-attr]
        for layer in layers:
            layer.zero_grad()
        del hidden
    vector = 4 * 2**23
    assert kept["all"] > kept["inputs"] + 8 * 4 * vector
    assert kept["inputs"] - kept["none"] == pytest.approx(7 * vector, abs=1.5 * vector)
    assert all(torch.equal(a, b) for name in ("inputs", "none") for a, b in zip(found["all"], found[name], strict=True))


# ---- optimizer states that take less memory --------------------------------------------------------------------------


def learning(dtype: str, options: dict[str, Any]) -> EmbeddedEngine:
    engine = EmbeddedEngine.open(ModelSettings(init="tiny-qwen3", device="cuda", dtype=dtype))
    engine.learn_with(OptimizerSettings(lr=1e-3, weight_decay=0.1, **options))
    return engine


def learn(engine: EmbeddedEngine, steps: int = 5) -> list[float]:
    rows = [Row(engine.encode(p), engine.encode_response("12" * (i + 1))) for i, p in enumerate(PROMPTS)]
    return [engine.update(rows, lambda out: -out.logprobs_bT.sum(), lr=1e-3).grad_norm for _ in range(steps)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("states", ["float32", "8bit"])
def test_states_in_host_memory_change_no_bit(dtype: torch.dtype, states: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_adamw, "PIECE", 64 * streamed_adamw.BLOCK)  # many pieces, on both streams
    found = []
    for offload in (False, True):
        torch.manual_seed(0)
        shapes = {"large": (700, 1001), "vector": (9000,), "small": (3, 5)}
        mine = {name: nn.Parameter(torch.randn(shape, device="cuda", dtype=dtype)) for name, shape in shapes.items()}
        settings = {"lr": 1.0, "weight_decay": 0.1, "states": states, "offload": offload}
        learner = Learner(mine, OptimizerSettings.model_validate(settings))
        for _ in range(6):
            for p in mine.values():
                p.grad = torch.randn(p.shape, device="cuda")
            learner.step(1e-2)
        state = learner.state()
        assert all(tensor.device.type == "cpu" for tensor in state.values()) == offload
        found.append({name: p.detach().cpu() for name, p in mine.items()} | {n: t.cpu() for n, t in state.items()})
    assert set(found[0]) == set(found[1])
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_memory_is_what_the_table_of_the_docs_says() -> None:
    used = {}
    for name, options in {"float32": {}, "8bit": {"states": "8bit"}, "offload": {"offload": True}}.items():
        gc.collect()
        before = torch.cuda.memory_allocated()
        engine = learning("bfloat16", options)
        learn(engine, 1)
        parameters = sum(p.numel() for p in engine.model.parameters())
        used[name] = (torch.cuda.memory_allocated() - before) / parameters  # gradients are gone
        del engine
    assert used["float32"] == pytest.approx(2 + 4 + 8, rel=0.1)
    assert used["offload"] == pytest.approx(2, rel=0.3)
    assert used["8bit"] < 2 + 4 + 8 - 3  # small parameters stay in float32


@pytest.mark.parametrize("options", [{"offload": True}, {"states": "8bit"}, {"states": "8bit", "offload": True}])
def test_sleep_and_a_file_are_exact_also_for_them(options: dict[str, Any], tmp_path: Path) -> None:
    whole, again = (learning("bfloat16", options) for _ in range(2))
    learn(whole, 2)
    whole.save(tmp_path)
    whole.sleep()
    whole.wake()
    again.load(tmp_path)
    again.load_learner(tmp_path)
    ours, theirs = (engine._learner.state() for engine in (whole, again) if engine._learner is not None)
    assert all(torch.equal(tensor.cpu(), theirs[name].cpu()) for name, tensor in ours.items())
    assert learn(whole) == pytest.approx(learn(again), rel=1e-3)
