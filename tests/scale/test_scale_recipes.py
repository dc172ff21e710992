"""The recipes of clusters: each passes every check, and runs two steps on Ray and verl's workers with tiny models."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster
from rich.console import Console

from rewardsmith.recipe import Recipe, explain, load_recipe
from rewardsmith.runs.preflight import RewardTrees, check_for_cluster
from rewardsmith.runs.start import start
from rewardsmith.runs.verl_command import explain_verl
from tests.command_line import call
from tests.data.prepare.serving import Serving
from tests.recipe_stand_ins import reply_as_judge, scale_stand_ins
from tests.test_recipes import CLUSTERS, small

RECIPES = {path.stem: path for path in CLUSTERS}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_of_a_cluster_passes_every_check(name: str) -> None:
    recipe = load_recipe(RECIPES[name])
    RewardTrees(recipe)
    check_for_cluster(recipe, name)
    assert "gpus_per_node" in explain(recipe)
    assert "n_gpus_per_node" in explain_verl(recipe, everything=True)  # verl's own check has passed


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[Recipe, Path]]]:
    """Runs a recipe once, on one Ray and with one server for all judges; returns it and its folder."""
    ray = Cluster(initialize_head=True, head_node_args={"num_cpus": 12, "num_gpus": 1, "include_dashboard": False})
    with Serving(reply_as_judge) as judge:

        @cache
        def run(name: str) -> tuple[Recipe, Path]:
            folder = tmp_path_factory.mktemp(name)
            changes = scale_stand_ins(RECIPES[name], folder, judge.server.url)
            changes += [f'scale={{ device = "cpu", address = "{ray.address}" }}', 'cache=""', "workers=1"]
            if name == "grrm_rl":
                changes.append(f'models.ranker.init="{run("grrm_sft")[1] / "models" / "ranker"}"')
            recipe = small(RECIPES[name], changes)
            return recipe, start(recipe, name, folder=folder / "run", on="verl", console=Console(quiet=True))

        yield run
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_learns_on_a_cluster(run: Callable[[str], tuple[Recipe, Path]], name: str) -> None:
    recipe, folder = run(name)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(math.isfinite(value) for line in lines for value in line["metrics"].values())
    assert json.loads((folder / "summary.json").read_text())["state"] == "finished"
    for stage in recipe.stages:
        settings: Any = stage.settings
        steps = [line["metrics"] for line in lines if line["stage"] == settings.name and line["step"] > 0]
        assert len(steps) >= 2
        assert (folder / "models" / settings.model / "model.safetensors").is_file()
        if stage.name == "policy":
            assert sum(step["tokens/learned"] for step in steps) > 0
            assert max(step.get("policy/sampler_gap", 0.0) for step in steps) < 1e-5
            assert not [name for step in steps for name in step if name.startswith("failures/")]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECIPES.keys() - {"grrm_sft", "prime"}))  # PRIME's has learned since
def test_rewards_of_a_run_are_those_of_score(run: Callable[[str], tuple[Recipe, Path]], name: str) -> None:
    folder = run(name)[1]
    reward = f"{folder / 'recipe.toml'}:policy"
    ended = call("score", str(folder), "--kind", "train", "--reward", reward, "--compare", "--json")
    assert ended.status == 0, ended.err
    compared = json.loads(ended.out)["compared"]
    assert (compared["changed"], compared["both"]) == (0, compared["rollouts"])
    assert compared["both"] >= 32
