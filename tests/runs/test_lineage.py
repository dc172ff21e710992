"""The record of where each model of a run comes from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from rewardsmith.recipe import parse_recipe
from rewardsmith.runs.lineage import LINEAGE
from rewardsmith.runs.start import start

WORLD = {"type": "arithmetic", "operations": 1}
RECIPE: dict[str, Any] = {
    "models": {"policy": {"init": "tiny-qwen3"}, "other": {"copy_of": "policy"}},
    "data": {"train": WORLD, "graded": {"type": "arithmetic-grading"}},
    "stages": [
        {"type": "sft", "model": "policy", "data": "train", "steps": 2, "batch_size": 2},
        {
            "type": "policy",
            "model": "other",
            "data": "train",
            "steps": 1,
            "prompts_per_step": 1,
            "rollouts_per_prompt": 2,
            "sampling": {"max_tokens": 4},
            "validation": {"data": "graded", "prompts": 2, "reward": "grade_accuracy"},
            "reward": {"type": "sum", "parts": {"answer": {"type": "rule", "rule": "arithmetic"}}},
        },
    ],
}


def lineage(folder: Path) -> list[dict[str, Any]]:
    stages: list[dict[str, Any]] = json.loads((folder / LINEAGE).read_text())["stages"]
    return stages


def test_each_stage_tells_what_it_began_with_and_what_became_of_it(tmp_path: Path) -> None:
    first, second = lineage(start(parse_recipe(RECIPE), "x", folder=tmp_path / "run"))
    policy, other = first["models"]["policy"], second["models"]["other"]
    assert (first["stage"], first["type"], second["stage"]) == ("sft", "sft", "policy")
    assert policy["init"] == "tiny-qwen3"
    assert other["init"] == "copy of policy"
    assert policy["before"] != policy["after"] == other["before"]  # the copy is of what the first stage made
    assert first["data"] == {"train": {"type": "arithmetic"}}
    assert second["data"]["graded"]["template"] == "rubric_short"
    assert len(second["data"]["graded"]["template_sha256"]) == 64
    assert first["rewards"] == {}
    assert {path: facts["type"] for path, facts in second["rewards"].items()} == {
        "reward": "sum",
        "reward.answer": "rule",
        "validation.reward": "grade_accuracy",
    }
    assert second["rewards"]["validation.reward"]["parser"].startswith("grade-")


def test_a_run_that_goes_on_keeps_what_was_recorded(tmp_path: Path) -> None:
    whole = lineage(start(parse_recipe(RECIPE), "x", folder=tmp_path / "whole"))
    cut = tmp_path / "cut"
    start(parse_recipe(RECIPE | {"stages": RECIPE["stages"][:1]}), "x", folder=cut)
    assert lineage(cut) == whole[:1]
    (cut / "summary.json").unlink()
    start(parse_recipe(RECIPE), "x", folder=cut, accept_changes=True)
    assert lineage(cut) == whole


def test_files_are_told_by_their_hash(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1?", "response": "2"}\n')
    table = RECIPE | {"data": {"train": {"type": "jsonl", "path": str(rows)}}, "stages": RECIPE["stages"][:1]}
    (stage,) = lineage(start(parse_recipe(table), "x", folder=tmp_path / "run"))
    (file,) = stage["data"]["train"]["files"]
    assert (file["path"], file["bytes"]) == (str(rows), 36)
    assert file["sha256"] == hashlib.sha256(rows.read_bytes()).hexdigest()


def test_a_damaged_record_does_not_end_a_run(tmp_path: Path) -> None:
    start(parse_recipe(RECIPE | {"stages": RECIPE["stages"][:1]}), "x", folder=tmp_path)
    (tmp_path / LINEAGE).write_text('{"stages": 7}')
    (tmp_path / "summary.json").unlink()
    start(parse_recipe(RECIPE), "x", folder=tmp_path, accept_changes=True)
    assert lineage(tmp_path)[-1]["stage"] == "policy"
