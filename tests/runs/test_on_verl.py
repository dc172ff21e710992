"""`run --on verl` refuses what cannot run there before anything starts."""

from importlib.util import find_spec
from pathlib import Path

import pytest

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


@pytest.mark.skipif(find_spec("verl") is not None, reason="verl is installed")
def test_what_to_install_is_named(tmp_path: Path) -> None:
    assert 'pip install "rewardsmith[verl]"' in run(tmp_path, '{ type = "rule", rule = "arithmetic" }')
