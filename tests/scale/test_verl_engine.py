"""A model on verl's workers against the same model in this process: measuring, learning, writing, files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.model_settings import LoraSettings, ModelSettings
from rewardsmith.engines.protocol import Meter, Outputs, Row, Sampling
from rewardsmith.learning import OptimizerSettings
from rewardsmith.scale.cluster import Cluster
from rewardsmith.scale.scale_settings import ScaleSettings
from rewardsmith.scale.verl_engine import VerlEngine, open_engine, start_folder
from rewardsmith.types import Message, Prompt

OPTIMIZER = OptimizerSettings(lr=1e-3, weight_decay=0.1)
PROMPTS = [Prompt(str(i), [Message("user", f"{i} + {i * 7} = ?")]) for i in range(3)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two ranks on this machine."""
    cluster = Cluster(ScaleSettings(device="cpu", gpus_per_node=2), tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Five rows: with two ranks one is filled up."""
    random = np.random.default_rng(0)
    lengths = [(3, 1), (8, 6), (2, 4), (5, 5), (7, 2)]
    return [Row(*(random.integers(5, 90, n).astype(np.int32) for n in pair)) for pair in lengths]


def pair(cluster: Cluster, name: str, *, writes: bool = False, **settings: Any) -> tuple[EmbeddedEngine, VerlEngine]:
    """Return a tiny model in this process, and on the cluster."""
    wanted = ModelSettings(init="tiny-llama", device="cpu", **settings)
    folder = start_folder(wanted, cluster.folder / f"start-{name}", seed=3, name=name)
    wanted = wanted.model_copy(update={"init": str(folder)})
    return EmbeddedEngine.open(wanted, name=name), open_engine(cluster, wanted, folder, name=name, writes=writes)


def squares(get: Callable[[Outputs], Tensor], meter: Meter) -> Callable[[Outputs], Tensor]:
    """Return a loss that weighs every token differently."""
    target_BT = torch.arange(40.0).reshape(5, 8).sin()

    def loss(outputs: Outputs) -> Tensor:
        error = get(outputs) - target_BT[outputs.rows, : outputs.mask_bT.shape[1]]
        meter.add("output", get(outputs), outputs.mask_bT)
        meter.sum("loss", (error * outputs.mask_bT).square().sum() / 20)
        return (error * outputs.mask_bT).square().sum() / 20

    return loss


@pytest.mark.parametrize("head", ["language", "scalar"])
def test_a_model_learns_on_the_cluster_as_in_this_process(
    cluster: Cluster, rows: list[Row], tmp_path: Path, head: str
) -> None:
    here, there = pair(cluster, head, head=head)
    measure = (lambda e: e.logprobs(rows)) if head == "language" else (lambda e: e.values(rows))
    get = (lambda o: o.logprobs_bT) if head == "language" else (lambda o: o.values_bT)
    torch.testing.assert_close(measure(there), measure(here), atol=1e-5, rtol=0)
    for engine in (here, there):
        engine.learn_with(OPTIMIZER)
    for step in range(3):
        meters = Meter(), Meter()
        steps = [
            engine.update(rows, squares(get, meter), lr=3e-4, meter=meter)
            for engine, meter in zip((here, there), meters, strict=True)
        ]
        assert steps[1].grad_norm == pytest.approx(steps[0].grad_norm, rel=1e-5)
        assert meters[1].means() == pytest.approx(meters[0].means(), rel=1e-5)
        if step == 0:
            there.publish(tmp_path)
            published = EmbeddedEngine.open(ModelSettings(init=str(tmp_path), device="cpu", head=head))
            weights = dict(published.model.named_parameters())
            # AdamW divides by the gradient: a weight whose gradient is rounding alone may go either way.
            off = torch.cat([(weights[n] - w).detach().abs().flatten() for n, w in here.model.named_parameters()])
            assert (off > 1e-5).float().mean() < 1e-5
            assert off.max() < 3e-4
    torch.testing.assert_close(measure(there), measure(here), atol=1e-5, rtol=0)
    assert there.is_finite


def test_a_checkpoint_continues_exactly_and_a_copy_stays(cluster: Cluster, rows: list[Row], tmp_path: Path) -> None:
    _, engine = pair(cluster, "saved")
    engine.learn_with(OPTIMIZER)
    learn = lambda: engine.update(rows, squares(lambda o: o.logprobs_bT, Meter()), lr=1e-3)  # noqa: E731
    learn()
    engine.save(tmp_path)
    frozen, before = engine.copy(name="frozen"), engine.logprobs(rows)
    learn()
    after = engine.logprobs(rows)
    engine.load(tmp_path)
    engine.load_learner(tmp_path)
    assert torch.equal(engine.logprobs(rows), before)
    learn()
    assert torch.equal(engine.logprobs(rows), after)
    assert torch.equal(frozen.logprobs(rows), before)


def test_answers_are_those_of_the_embedded_engine_and_follow_the_weights(cluster: Cluster, rows: list[Row]) -> None:
    here, there = pair(cluster, "writer", writes=True)
    sampling = Sampling(max_tokens=12)

    async def write(engine: Any) -> dict[int, list[str]]:
        groups = engine.generate(PROMPTS, sampling, n=3, seeds=[4, 5, 6], ends=True)
        return {index: [r.text for r in group.rollouts] async for index, group in groups}

    assert asyncio.run(write(there)) == asyncio.run(write(here))
    other_here, other_there = pair(cluster, "second_writer", writes=True)  # takes over the servers
    assert asyncio.run(write(other_there)) == asyncio.run(write(other_here))
    for engine in (here, there):
        engine.learn_with(OPTIMIZER)
        engine.update(rows, squares(lambda o: o.logprobs_bT, Meter()), lr=1e-2)
    assert asyncio.run(write(there)) == asyncio.run(write(here))


def test_an_adapter_learns_writes_and_is_switched_off_for_the_reference(
    cluster: Cluster, rows: list[Row], tmp_path: Path
) -> None:
    _, engine = pair(cluster, "adapter", lora=LoraSettings(rank=4, alpha=16), writes=True)
    before = engine.reference_logprobs(rows)
    torch.testing.assert_close(engine.logprobs(rows), before, atol=1e-6, rtol=0)
    engine.learn_with(OPTIMIZER)
    for _ in range(2):
        engine.update(rows, squares(lambda o: o.logprobs_bT, Meter()), lr=1e-2)
    assert not torch.equal(engine.logprobs(rows), before)
    torch.testing.assert_close(engine.reference_logprobs(rows), before, atol=1e-6, rtol=0)
    learned = engine.logprobs(rows)
    engine.publish(tmp_path)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    merged = EmbeddedEngine.open(ModelSettings(init=str(tmp_path), device="cpu"), seed=0, name="merged")
    torch.testing.assert_close(merged.logprobs(rows), learned, atol=1e-5, rtol=0)
    sampling, seeds = Sampling(max_tokens=12), [4, 5, 6]

    async def write(engine: Any) -> dict[int, list[str]]:
        groups = engine.generate(PROMPTS, sampling, n=2, seeds=seeds)
        return {index: [r.text for r in group.rollouts] async for index, group in groups}

    assert asyncio.run(write(engine)) == asyncio.run(write(merged))


def test_rows_may_share_a_sequence_as_they_do_on_gpus(
    cluster: Cluster, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = cluster.scale.model_copy(update={"verl": {"actor_rollout_ref.model.use_remove_padding": True}})
    monkeypatch.setattr(cluster, "scale", packed)
    here, there = pair(cluster, "packed", head="scalar")
    for engine in (here, there):
        engine.learn_with(OPTIMIZER)
        engine.update(rows, squares(lambda o: o.values_bT, Meter()), lr=1e-2)
    torch.testing.assert_close(there.values(rows), here.values(rows), atol=1e-5, rtol=0)
