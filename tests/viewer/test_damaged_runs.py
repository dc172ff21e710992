"""Run folders with damaged files: what can be read is shown, in the list, in the overview and in the report."""

import json
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.viewer.report import write_report
from rewardsmith.viewer.run_list import RunList
from tests.runs.fake_run import write_fake_run

EVALUATION = {"kind": "reward", "metrics": {"accuracy": 0.5}, "main": ["accuracy"], "tables": []}
SUMMARY = {"state": "running", "title": "t", "stages": [{"name": "policy", "steps": 8, "after": {"validation/a": 1}}]}


def shown(folder: Path) -> dict[str, Any]:
    """Return the overview, after the list of runs and the report were made too."""
    runs = RunList([folder.parent])
    content = [runs.entries(), runs.run(folder.name).overview()]
    json.dumps(content, allow_nan=False)
    assert [entry["name"] for entry in runs.entries()] == ["good", "run"]
    assert write_report(folder).exists()
    return dict(runs.run(folder.name).overview())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_fake_run(tmp_path / "good", steps=8, prompts=1)
    return write_fake_run(tmp_path / "run", steps=8, prompts=1)


@pytest.mark.parametrize(
    "content",
    [
        "", "null", "[1]", '"text"', "[" * 100_000, '{"title": "cut', '{"title": 5, "state": null, "error": []}',
        '{"stages": [{}, null, {"name": 5}, {"name": "policy"}]}', '{"stages": {"name": "policy"}}',
        '{"facts": null, "models": [1]}', '{"facts": {"versions": [1], "started": NaN}, "models": {"judge": 5}}',
        json.dumps(SUMMARY).replace("8", "NaN").replace("1", '"one"'), '{"seconds": 1e999, "state": "running"}',
        json.dumps(SUMMARY | {"stages": [{"name": "policy", "before": [1], "after": None, "steps": "x", "done": {}}]}),
    ],
)  # fmt: skip
def test_a_damaged_summary(run: Path, content: str) -> None:
    (run / "summary.json").write_text(content)
    found = shown(run)
    assert "policy" in [stage["name"] for stage in found["stages"]]
    assert next(stage for stage in found["stages"] if stage["name"] == "policy")["curves"]


@pytest.mark.parametrize("content", ["", "null", '{"kind": "rew', "{}", json.dumps(EVALUATION | {"tables": [[1]]})])
def test_a_damaged_evaluation_is_left_out(run: Path, content: str) -> None:
    (run / "evaluations").mkdir()
    (run / "evaluations" / "a.json").write_text(content)
    (run / "evaluations" / "b.json").write_text(json.dumps(EVALUATION))
    (run / "evaluations" / "c.json").write_text(json.dumps(EVALUATION | {"kind": float("inf")}))
    assert [one["name"] for one in shown(run)["evaluations"]] == ["b"]


@pytest.mark.parametrize(
    "content",
    [
        "null", "[1]", "{}", '{"stage": 5, "step": 1}', '{"stage": "policy", "step": NaN, "metrics": {}}',
        '{"stage": "policy", "step": "1", "metrics": {}}', '{"stage": "policy", "step": 3, "metrics": [1]}',
        '{"stage": "policy", "step": 3, "metrics": {"new": 1, "reward/mean": {}}}',
    ],
)  # fmt: skip
def test_a_damaged_line_of_metrics_is_counted(run: Path, content: str) -> None:
    (run / "summary.json").write_text('{"state": "running"}')
    before = shown(run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(content + "\n")
    found = shown(run)
    assert found["unread"] == 1
    assert found["stages"] == before["stages"]


@pytest.mark.parametrize(
    "content", ["", "null", "[1]", '{"a": 1}', '{"scored": {"scores": [{"parts": 5}]}}', '{"scored": {"scores": []}}']
)
def test_a_strange_first_rollout(run: Path, content: str) -> None:
    rollouts = run / "rollouts" / "policy.jsonl"
    rollouts.write_text(f"{content}\n{rollouts.read_text()}")
    policy = next(stage for stage in shown(run)["stages"] if stage["name"] == "policy")
    assert policy["parts"] == []


@pytest.mark.parametrize(
    "content", ["models = 5\nstages = [1]", "[models]\npolicy = 1", "stages = 5", "[[stages]]\nname = 5"]
)
def test_a_strange_recipe(run: Path, content: str) -> None:
    (run / "recipe.toml").write_text(content)
    assert shown(run)["recipe"] == content
