"""A reward of ours in verl's own reward loop and in its own trainer: failures have no part, groups are whole."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rewardsmith import UserError
from rewardsmith.engines.embedded.tiny import make_tiny
from rewardsmith.integrations.peer_rows import ScoreFailedError

ROOT = Path(__file__).parents[2]
FUNCTION = "pkg://rewardsmith.integrations.verl_reward"
SUM = {
    "type": "sum",
    "parts": {"right": {"type": "rule", "rule": "exact"}, "short": {"type": "rule", "rule": "length", "weight": 0.5}},
}


spec = importlib.util.spec_from_file_location("verl_rows", ROOT / "examples" / "integrations" / "verl_rows.py")
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)
MANAGER = example.MANAGER
TOKENIZER: Any = make_tiny("tiny-llama", seed=0)[1]


def config(folder: Path, recipe: Any, *, manager: bool = False) -> Any:
    TOKENIZER.save_pretrained(folder)
    settings = example.verl_settings(str(folder), recipe, n=2)
    if not manager:
        settings.reward.custom_reward_function.path = FUNCTION
        settings.reward.reward_manager = {"source": "register", "name": "naive"}
    return settings


def scored(settings: Any, answers: list[str], uids: list[str], truth: Any = "42") -> list[dict[str, Any]]:
    return example.verl_scores(settings, example.verl_rows(TOKENIZER, "12 + 30 = ?", truth, answers, uids))


def test_the_function_gives_scores_with_parts(tmp_path: Path) -> None:
    found = scored(config(tmp_path, SUM), ["42", "41"], ["a", "a"])
    assert [one["reward_score"] for one in found] == [1.5, 0.5]
    assert found[0]["reward_extra_info"] == {"right": 1.0, "short": 1.0, "score": 1.5}


def test_the_manager_scores_groups_as_a_whole(tmp_path: Path) -> None:
    log = tmp_path / "scored.jsonl"
    recipe = {"type": "tests.scale.logged_rewards:Ranked", "file": str(log)}
    found = scored(config(tmp_path, recipe, manager=True), ["1b", "2", "cc", "e5"], ["x", "y", "y", "x"])
    groups = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(len(group["values"]) for group in groups) == [2, 2]
    assert {(group["prompt"], group["answer"]) for group in groups} == {("12 + 30 = ?", "42")}
    assert max(one["reward_score"] for one in found) == 0.0
    assert set(found[0]["reward_extra_info"]) == {"digits", "score"}


def test_the_example_scores_its_answers() -> None:
    assert example.main({"type": "rule", "rule": "math"}) == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("manager", [False, True])
def test_a_failure_is_raised_and_never_a_number(tmp_path: Path, manager: bool) -> None:
    settings = config(tmp_path, {"type": "rule", "rule": "exact"}, manager=manager)
    with pytest.raises(ScoreFailedError, match="invalid"):
        scored(settings, ["42", "41"], ["a", "a"], truth=None)


def test_what_cannot_work_is_refused_with_the_remedy(tmp_path: Path) -> None:
    ranked = {"type": "tests.scale.logged_rewards:Ranked", "file": str(tmp_path / "log")}
    with pytest.raises(UserError, match="GroupRewardManager"):
        scored(config(tmp_path, ranked), ["42"], ["a"])
    with pytest.raises(UserError, match="reward_kwargs"):
        scored(config(tmp_path, None), ["42"], ["a"])
    other = config(tmp_path, ranked, manager=True)
    other.actor_rollout_ref.rollout.val_kwargs.n = 1
    with pytest.raises(UserError, match="val_kwargs"):
        scored(other, ["42"], ["a"])


@pytest.mark.parametrize("kind", ["manager", pytest.param("function", marks=pytest.mark.slow)])
def test_verls_own_trainer_learns_from_what_could_be_scored(kind: str, tmp_path: Path) -> None:
    """Two GRPO steps; a third of the answers fail, and one group as a whole: the mean is that of the others."""
    log, metrics = tmp_path / "scored.jsonl", tmp_path / "metrics.jsonl"
    work = {"ranks": 1, "prompts": 4, "rollouts": 4, "tokens": 8, "mini_batches": 1, "lr": 1e-3, "steps": 2}
    work |= {"model": str(tmp_path / "model"), "data": str(tmp_path / "rows.parquet"), "folder": str(tmp_path)}
    failing = {"lost": "10", "failure": {"share": 1.0}}  # one of the questions of the first step
    recipe = {"type": "tests.scale.logged_rewards:Logged", "file": str(log), **failing}
    settings = {"reward.custom_reward_function.reward_kwargs": {"recipe": recipe}, "reward.num_workers": 2}
    # verl's mean of the advantages is over tokens: it is 0 only where all answers have the same length.
    settings |= {"actor_rollout_ref.rollout.ignore_eos": True}
    if kind == "manager":
        keys = {"source": MANAGER["source"], "name": MANAGER["name"], "module.path": MANAGER["module"]["path"]}
        settings |= {"reward.custom_reward_function.path": None}
        settings |= {f"reward.reward_manager.{key}": value for key, value in keys.items()}
    else:
        settings |= {"reward.custom_reward_function.path": FUNCTION}
    work |= {"metrics": str(metrics), "settings": settings}
    (tmp_path / "work.json").write_text(json.dumps(work))
    paths = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT / "src"), str(ROOT)])
    code = "import json, sys, pathlib, scale; work = json.loads(pathlib.Path(sys.argv[1]).read_text());"
    prepare = [sys.executable, "-c", f"{code} scale.prepare(pathlib.Path(work['folder']), work)"]
    train = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "verl_side.py")]
    for command in ([*prepare], [*train]):
        result = subprocess.run(
            [*command, str(tmp_path / "work.json")],
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    groups = [json.loads(line)["values"] for line in log.read_text().splitlines()]
    steps = [json.loads(line)["data"] for line in metrics.read_text().splitlines()]
    assert len(steps) == 2
    assert sum(map(len, groups)) == 32
    assert kind == "function" or [None] * 4 in groups
    if kind == "manager":
        assert [len(group) for group in groups] == [4] * 8
        groups = [[] if sum(value is not None for value in group) == 1 else group for group in groups]
    each = [value for group in groups for value in group]
    if kind == "function":
        first = [value for value in each[:16] if value is not None]
    else:
        first = [value for group in groups[:4] for value in group if value is not None]
    assert steps[0]["critic/score/mean"] == pytest.approx(sum(first) / len(first), abs=1e-5)
    for step in steps:
        assert step["critic/score/min"] >= 1.0  # a failure that counts as 0 would be below
        assert math.isfinite(step["actor/grad_norm"])
        if kind == "manager":  # an answer whose whole group failed would have its reward as its advantage
            assert abs(step["critic/advantages/mean"]) < 1e-3
