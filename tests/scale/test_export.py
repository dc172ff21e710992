"""What `export verl` writes, and that it runs as a job of a real Ray cluster."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ray.cluster_utils import Cluster as RayNodes

import rewardsmith
from rewardsmith.recipe import load_recipe
from tests.command_line import call
from tests.scale.test_verl_run import HEAD, STAGE, write_recipe


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Export a recipe with a reward of the user's own and a file of rows, from the folder of both."""
    text = HEAD + STAGE.format(name="policy", steps=2, more='advantage = "grpo"')
    text = text.replace("steps = 30", "steps = 2").replace(
        'type = "arithmetic"', 'type = "jsonl"\npath = "rows/*.jsonl"', 1
    )
    recipe = write_recipe(tmp_path, text)
    (tmp_path / "rows").mkdir()
    rows = [
        {"prompt": f"{i} + {i} = ?", "response": str(2 * i), "reward_model": {"ground_truth": str(2 * i)}}
        for i in range(9)
    ]
    (tmp_path / "rows" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    outcome = call("export", "verl", str(recipe), "job", "stages.policy.rollouts_per_prompt=2")
    assert outcome.status == 0, outcome.err
    return tmp_path / "job"


def test_the_folder_holds_the_whole_job(exported: Path, tmp_path: Path) -> None:
    recipe = load_recipe(exported / "recipe.toml")
    assert recipe.scale is not None
    assert recipe.scale.address == "auto"
    assert recipe.stages[1].settings.rollouts_per_prompt == 2  # type: ignore[attr-defined]
    assert str(tmp_path / "rows" / "*.jsonl") in (exported / "recipe.toml").read_text()
    assert str(tmp_path / "rows") in (exported / "README.md").read_text()
    assert (exported / "own_rewards.py").read_text() == (tmp_path / "own_rewards.py").read_text()
    assert "models.policy.init" in (exported / "verl.yaml").read_text()
    assert yaml.safe_load((exported / "runtime_env.yaml").read_text())["env_vars"]
    subprocess.run(["bash", "-n", exported / "submit.sh"], check=True)
    assert call("export", "verl", str(exported / "recipe.toml"), str(exported)).status == 2  # it is not empty


@pytest.mark.slow
def test_the_job_runs_on_a_cluster(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(rewardsmith.__file__).parents[1]))  # the job runs in a folder of its own
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"num_gpus": 2, "num_cpus": 20, "include_dashboard": True, "dashboard_port": port}
    nodes = RayNodes(initialize_head=True, head_node_args=options)
    try:
        environment = os.environ | {
            "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{port}",
            "RUN_FOLDER": str(tmp_path / "run"),
            "PYTHON": sys.executable,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        assert shutil.which("ray", path=environment["PATH"])
        done = subprocess.run(
            [exported / "submit.sh"], env=environment, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["state"] == "finished"
    finally:
        nodes.shutdown()
