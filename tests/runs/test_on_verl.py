"""`run --on verl` refuses what cannot run there before anything starts."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from rewardsmith.errors import RecipeError
from rewardsmith.recipe import parse_recipe
from rewardsmith.runs.preflight import check_for_cluster
from tests.command_line import call

RECIPE = """
[models.policy]
init = "tiny-llama"
[models.judge]
init = "tiny-llama"
[data.train]
type = "arithmetic"
[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 1
reward = REWARD
"""


def run(tmp_path: Path, reward: str) -> str:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.replace("REWARD", reward))
    outcome = call("run", str(recipe), "--on", "verl", "--folder", str(tmp_path / "run"))
    assert outcome.status == 2
    return outcome.err


def test_a_judge_in_this_process_is_refused(tmp_path: Path) -> None:
    error = run(tmp_path, '{ type = "rubric", model = "judge" }')
    assert "stages.0.reward.model" in error
    assert 'type = "managed"' in error
    assert not (tmp_path / "run").exists()


def test_optimizer_states_that_the_workers_do_not_have_are_refused(tmp_path: Path) -> None:
    rule = '{ type = "rule", rule = "arithmetic" }\noptimizer = { lr = 1e-3, states = "8bit", offload = true }\n'
    error = run(tmp_path, rule)
    assert "stages.0.optimizer.states" in error
    assert "stages.0.optimizer.offload" in error
    assert "stages.0.optimizer.offload" not in run(tmp_path, f"{rule}[scale]\noffload = true")


def test_servers_on_gpus_that_are_full_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def refused(*servers: dict[str, object], gpus: int = 4) -> list[str]:
        served = {f"s{i}": {"type": "managed", "command": "vllm", "model": "m", **of} for i, of in enumerate(servers)}
        stage = {"type": "policy", "model": "policy", "data": "train", "steps": 1}
        stage["reward"] = {"type": "rule", "rule": "arithmetic"}
        table = {"models": {"policy": {"init": "tiny-llama"}, **served}, "data": {"train": {"type": "arithmetic"}}}
        recipe = parse_recipe({**table, "scale": {"gpus_per_node": gpus}, "stages": [stage]})
        try:
            check_for_cluster(recipe, "recipe")
        except RecipeError as error:
            return [problem.path for problem in error.problems]
        return []

    assert refused({}) == []  # Ray reserves GPUs
    everywhere = {"devices": [0, 1, 2, 3], "tensor_parallel_size": 4}
    assert refused(everywhere) == ["models.s0.devices"]  # the trainer's GPUs, and nine tenths of them
    assert refused(everywhere | {"gpu_memory_utilization": 0.2}) == []
    assert refused({"devices": [4, 5], "tensor_parallel_size": 2}) == []
    assert refused({"devices": [4, 5]}, gpus=6) == ["models.s0.devices"]
    half = {"devices": [4], "gpu_memory_utilization": 0.5}
    assert refused(half, half | {"gpu_memory_utilization": 0.4}) == []
    assert refused(half, half) == ["models.s1.gpu_memory_utilization"]


@pytest.mark.skipif(find_spec("verl") is not None, reason="verl is installed")
def test_what_to_install_is_named(tmp_path: Path) -> None:
    assert 'pip install "rewardsmith[verl]"' in run(tmp_path, '{ type = "rule", rule = "arithmetic" }')
