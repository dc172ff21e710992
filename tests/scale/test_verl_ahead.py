"""Rollout servers with GPUs of their own, and answers that they write while the model learns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.engines.protocol import Meter, Sampling
from rewardsmith.errors import RecipeError
from rewardsmith.recipe import load_recipe
from rewardsmith.runs.preflight import check_for_cluster
from rewardsmith.scale.cluster import Cluster
from rewardsmith.scale.scale_settings import RolloutSettings, ScaleSettings
from tests.scale.test_verl_engine import OPTIMIZER, PROMPTS, pair, rows, squares
from tests.scale.test_verl_run import HEAD, STAGE, run, write_recipe

__all__ = ["rows"]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two ranks that learn, and two servers that write."""
    settings = ScaleSettings(device="cpu", gpus_per_node=2, rollout=RolloutSettings(gpus=2))
    cluster = Cluster(settings, tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


async def write(engine: Any, version: int = 0) -> dict[int, list[str]]:
    groups = engine.generate(PROMPTS, Sampling(max_tokens=12), n=3, seeds=[4, 5, 6], version=version)
    return {index: [r.text for r in group.rollouts] async for index, group in groups}


def test_servers_of_their_own_write_with_the_weights_that_they_hold(apart: Cluster, rows: Any) -> None:
    here, there = pair(apart, "writer", writes=True)
    assert there.writes_apart

    async def both() -> None:
        before = await write(here)
        await there.hold_writer()
        assert await write(there) == before
        for engine in (here, there):
            engine.learn_with(OPTIMIZER)
            engine.update(rows, squares(lambda o: o.logprobs_bT, Meter()), lr=1e-2)
        after = await write(here)
        assert after != before
        assert await write(there) == before  # the servers have the weights of before the update
        there.release_writer()
        assert await write(there) == after

    asyncio.run(both())


@pytest.mark.slow
def test_another_model_takes_over_the_gpus_of_the_servers(apart: Cluster) -> None:
    for name in ("second", "third"):
        here, there = pair(apart, name, writes=True)
        assert asyncio.run(write(there)) == asyncio.run(write(here))


def test_answers_are_written_while_the_model_learns(apart: Cluster, rows: Any) -> None:
    """Seen by the clock of both sides, not by how long anything took: an answer came in the midst of an update."""
    _, there = pair(apart, "busy", writes=True)
    there.learn_with(OPTIMIZER)
    updates: list[tuple[float, float]] = []
    answers: list[float] = []

    def learn() -> None:
        last = False
        while not last and len(updates) < 200:
            last = bool(answers)  # one more update after the answer: it came before the end of the last one
            begun = time.monotonic()
            there.update(rows, squares(lambda o: o.logprobs_bT, Meter()), lr=1e-4)
            updates.append((begun, time.monotonic()))

    async def both() -> None:
        await there.hold_writer()
        learning = asyncio.create_task(asyncio.to_thread(learn))
        while not updates and not learning.done():
            await asyncio.sleep(0.01)
        await write(there)
        answers.append(time.monotonic())
        await learning
        there.release_writer()

    asyncio.run(both())
    assert updates[0][0] < answers[0] < updates[-1][1]


def test_an_adapter_on_servers_of_their_own_is_refused(tmp_path: Path) -> None:
    text = HEAD.replace("gpus_per_node = 2", "rollout = { gpus = 1 }").replace(
        "[models.policy]", "[models.policy]\nlora = {}"
    )
    with pytest.raises(RecipeError, match=r"models\.policy\.lora"):
        check_for_cluster(load_recipe(write_recipe(tmp_path, text)), "recipe")


@pytest.mark.parametrize("gpus", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_run_that_writes_ahead_is_that_of_one_device(gpus: int, tmp_path: Path) -> None:
    more = 'ahead = 1\nadvantage = "grpo"\nvalidation = { data = "train", every = 2, prompts = 4 }'
    text = HEAD.replace("gpus_per_node = 2", f"gpus_per_node = 1\nrollout = {{ gpus = {gpus} }}")
    recipe = write_recipe(tmp_path, text + STAGE.format(name="policy", steps=4, more=more))
    here, there = run(recipe, tmp_path / "here"), run(recipe, tmp_path / "there", "--on", "verl")
    assert here.keys() == there.keys()
    for step, values in here.items():
        kept = {name: value for name, value in values.items() if not name.startswith("idle/")}
        assert {name: there[step][name] for name in kept} == pytest.approx(kept, rel=2e-3, abs=5e-4), step
    assert [here["policy", step]["policy/staleness"] for step in (1, 2, 3, 4)] == [0, 1, 1, 1]
