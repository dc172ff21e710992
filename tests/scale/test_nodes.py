"""Two Ray nodes on one machine, with one rank on each: the same numbers, and what a cluster refuses in time."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.cluster_utils import Cluster as RayNodes
from ray.exceptions import ActorDiedError, RayTaskError

from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.engines.protocol import Outputs, Row
from rewardsmith.errors import UserError
from rewardsmith.learning import OptimizerSettings
from rewardsmith.scale import ray_start, workers
from rewardsmith.scale.cluster import Cluster
from rewardsmith.scale.launch import worker_error
from rewardsmith.scale.scale_settings import ScaleSettings
from rewardsmith.scale.verl_engine import VerlEngine, open_engine, start_folder
from tests.scale.test_verl_run import HEAD, STAGE, metrics, run, start, write_recipe


@pytest.fixture(scope="module")
def nodes() -> Iterator[str]:
    """Start two nodes with a logical GPU each; return the address."""
    cluster = RayNodes()
    for _ in range(2):
        cluster.add_node(num_gpus=1, num_cpus=9, include_dashboard=False)
    yield cluster.address
    cluster.shutdown()


def test_two_nodes_learn_as_one_process(nodes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = ScaleSettings(device="cpu", nodes=2, gpus_per_node=1, address=nodes)
    cluster = Cluster(scale, tmp_path)
    try:
        monkeypatch.setattr(ray_start, "JOIN_TIMEOUT", 0.0)
        with pytest.raises(UserError, match=r"16 CPUs on each\. The nodes of Ray have 1 GPUs and 9 CPUs, 1 GPUs"):
            ray_start._require_room(scale.model_copy(update={"nodes": 1, "gpus_per_node": 2}))
        with monkeypatch.context() as patch:
            patch.setattr(ray_start.platform, "python_version", lambda: "2.7.18")  # of this process alone
            with pytest.raises(UserError, match=r"has Python 3.* and this process 2\.7"):
                ray_start._require_same_nodes(tmp_path)
        with pytest.raises(UserError, match=r"2 of 2 nodes with 1 free GPUs each are missing after scale.wait = 0.5 s"):
            ray_start._reserve(scale.model_copy(update={"wait": 0.5}))
        settings = ModelSettings(init="tiny-llama", device="cpu")
        folder = start_folder(settings, tmp_path / "start", seed=3, name="policy")
        settings = settings.model_copy(update={"init": str(folder)})
        here = EmbeddedEngine.open(settings, name="policy")
        there = open_engine(cluster, settings, folder, name="policy", writes=False)
        node_of = [w.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for w in ranks(there)]
        assert len(set(ray.get(node_of))) == 2
        random = np.random.default_rng(0)
        lengths = [(3, 1), (8, 6), (2, 4), (5, 5), (7, 2)]
        rows = [Row(*(random.integers(5, 90, n).astype(np.int32) for n in pair)) for pair in lengths]
        for engine in (here, there):
            engine.learn_with(OptimizerSettings(lr=1e-3))
        for _ in range(3):
            norms = [engine.update(rows, square, lr=1e-3).grad_norm for engine in (here, there)]
            assert norms[1] == pytest.approx(norms[0], rel=1e-5)
        torch.testing.assert_close(there.logprobs(rows), here.logprobs(rows), atol=1e-5, rtol=0)
    finally:
        cluster.close()


@pytest.mark.slow
def test_two_runs_share_a_cluster_of_two_nodes(tmp_path: Path) -> None:
    """Each has a rank on each node; both have the metrics of the run in one process."""
    text = HEAD + STAGE.format(name="policy", steps=2, more='advantage = "grpo"')
    recipe = write_recipe(tmp_path, text.replace("gpus_per_node = 2", "nodes = 2"))
    cluster = RayNodes()
    for _ in range(2):
        cluster.add_node(num_gpus=2, num_cpus=18, include_dashboard=False)
    try:
        options = ("--on", "verl", f"scale.address={cluster.address}")
        both = [start(recipe, tmp_path / name, *options) for name in ("first", "second")]
        here = run(recipe, tmp_path / "here")
        for process in both:
            printed, _ = process.communicate(timeout=400)
            assert process.returncode == 0, printed[-4000:]
    finally:
        cluster.shutdown()
    for name in ("first", "second"):
        there = metrics(tmp_path / name)
        assert there.keys() == here.keys()
        for step, values in here.items():
            assert there[step] == pytest.approx(values, rel=2e-3, abs=5e-4), (name, step)


def ranks(engine: VerlEngine) -> list[Any]:
    return list(engine._workers.group.workers)


def square(outputs: Outputs) -> torch.Tensor:
    return (outputs.logprobs_bT * outputs.mask_bT).square().sum() / 20


def test_an_address_that_does_not_answer_is_reported_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_start, "CONNECT_TIMEOUT", 1.0)
    with socket.socket() as deaf:  # it takes connections and says nothing
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        for address in (f"127.0.0.1:{deaf.getsockname()[1]}", "127.0.0.1:1"):
            begun = time.monotonic()
            with pytest.raises(UserError, match=f"no Ray answers at {address}"):
                Cluster(ScaleSettings(device="cpu", address=address), tmp_path)
            assert time.monotonic() - begun < 60  # Ray itself would wait for many minutes
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UserError, match=r"no Ray answers at 127\.0\.0\.1:1"):
        Cluster(ScaleSettings(device="cpu", address="auto"), tmp_path)


def test_a_plug_in_that_fails_is_not_swallowed_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    workers.require_plugins()

    class Broken:
        name = "broken"

        def load(self) -> None:
            raise ImportError("no such thing")

    monkeypatch.setattr(workers, "entry_points", lambda group: [Broken()] * (group == "verl.plugins"))
    with pytest.raises(
        RuntimeError, match=r"plug-in 'broken' cannot be loaded: ImportError.*VERL_USE_EXTERNAL_PLUGINS"
    ):
        workers.require_plugins()
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    workers.require_plugins()
    monkeypatch.setattr(workers, "get_device_name", lambda: "cuda")
    with pytest.raises(RuntimeError, match="verl runs on 'cuda' in this worker: it did not load"):
        workers.require_plugins()


def test_what_ray_says_becomes_a_cause_and_a_remedy() -> None:
    died = worker_error(ActorDiedError())
    assert "a worker of the cluster died: The actor died unexpectedly" in str(died)
    assert "The same command resumes" in str(died)
    broken = RayTaskError("__init__", "Traceback\nRuntimeError: verl's plug-in 'x' cannot be loaded", RuntimeError())
    assert "cannot start: RuntimeError: verl's plug-in 'x' cannot be" in str(worker_error(ActorDiedError(broken)))
    texts = {
        "torch.OutOfMemoryError: CUDA out of memory.": "scale.rollout.memory_share",
        "RuntimeError: [gloo] Connection closed by peer [127.0.0.1]": "a worker of the cluster died",
        "ZeroDivisionError: of a user's own loss": "None",
    }
    for text, expected in texts.items():
        assert expected in str(worker_error(RayTaskError("update", f"Traceback\n{text}", RuntimeError())))
    assert worker_error(ValueError("no error of Ray")) is None
