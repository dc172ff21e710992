"""The record of where each model of a run comes from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.engines import ModelSettings
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.recipe import parse_recipe
from rewardsmith.runs.lineage import LINEAGE
from rewardsmith.runs.preflight import warnings
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


def test_each_stage_records_its_models_before_and_after_and_a_resumed_run_keeps_the_record(tmp_path: Path) -> None:
    whole = lineage(start(parse_recipe(RECIPE), "x", folder=tmp_path / "run"))
    cut = tmp_path / "cut"
    start(parse_recipe(RECIPE | {"stages": RECIPE["stages"][:1]}), "x", folder=cut)
    assert lineage(cut) == whole[:1]
    start(parse_recipe(RECIPE), "x", folder=cut, accept_changes=True)
    assert lineage(cut) == whole
    first, second = whole
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


def test_files_are_recorded_with_their_hash(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1?", "response": "2"}\n')
    table = RECIPE | {"data": {"train": {"type": "jsonl", "path": str(rows)}}, "stages": RECIPE["stages"][:1]}
    (stage,) = lineage(start(parse_recipe(table), "x", folder=tmp_path / "run"))
    (file,) = stage["data"]["train"]["files"]
    assert (file["path"], file["bytes"]) == (str(rows), 36)
    assert file["sha256"] == hashlib.sha256(rows.read_bytes()).hexdigest()


# ---- process reward models -------------------------------------------------------------------------------------------


def taught(*parts: dict[str, Any], **models: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe with a stage for each part, in which a process reward model learns."""
    stages = [
        {
            "type": "process_model",
            "name": f"learn-{i}",
            "model": "policy",
            "data": "train",
            "steps": 1,
            "prompts_per_step": 1,
            "rollouts_per_prompt": 2,
            "sampling": {"max_tokens": 4},
            "reward": {
                "type": "sum",
                "parts": {
                    "answer": {"type": "tests.trainers.world:Digits"},
                    "process": {"type": "implicit", "model": "prm", "learn": {"optimizer": {"lr": 1e-3}}} | part,
                },
            },
        }
        for i, part in enumerate(parts)
    ]
    named = {"policy": {"init": "tiny-llama"}, "prm": {"copy_of": "policy"}, "base": {"copy_of": "policy"}} | models
    return {"models": named, "data": {"train": WORLD}, "stages": stages}


def test_a_process_reward_model_and_its_reference_are_recorded(tmp_path: Path) -> None:
    parts = [{"beta": 0.5}, {"reference_model": "base", "learn": {"offset": "group-mean"}}, {"reference": "policy"}]
    stages = lineage(start(parse_recipe(taught(*parts)), "x", folder=tmp_path / "run"))
    first, second, third = (stage["rewards"]["reward.process"] for stage in stages)
    policy = stages[0]["models"]["policy"]["before"]
    prm = [stage["models"]["prm"] for stage in stages]
    assert prm[0]["before"] == policy
    assert prm[0]["before"] != prm[0]["after"] == prm[1]["before"]  # all of its weights have been learned
    assert first == {
        "type": "implicit",
        "model": "prm",
        "beta": 0.5,
        "reference": "start",
        "update": "after",
        "loss": "cross-entropy",
        "offset": "none",
        "reference_weights": policy,
    }
    assert (second["reference"], second["reference_weights"], second["offset"]) == ("base", policy, "group-mean")
    assert third["reference"] == "policy"
    assert "reference_weights" not in third  # it is another at each step


def test_a_reference_without_its_adapter_is_recorded_as_the_weights_below(tmp_path: Path) -> None:
    init = str(tmp_path / "base")
    EmbeddedEngine.open(ModelSettings(init="tiny-llama", device="cpu")).publish(tmp_path / "base")
    models = {"policy": {"init": init}, "prm": {"init": init, "lora": {"rank": 2}}}
    table = taught({"reference": "adapter-off"}, **models)
    (stage,) = lineage(start(parse_recipe(table), "x", folder=tmp_path / "run"))
    policy, prm = stage["models"]["policy"]["before"], stage["models"]["prm"]
    assert stage["rewards"]["reward.process"]["reference_weights"] == policy
    assert prm["before"] != policy
    assert prm["after"] != prm["before"]
    assert prm["after"].partition("+")[0] == prm["before"].partition("+")[0] == policy


@pytest.mark.parametrize(
    ("parts", "models", "warned"),
    [
        ([{}], {}, []),
        ([{}, {}], {}, [1]),
        ([{}, {"reference_model": "base"}], {}, []),
        ([{"reference": "adapter-off"}] * 2, {"prm": {"init": "tiny-llama", "lora": {"rank": 2}}}, []),
        ([{}, {"model": "other"}], {"other": {"copy_of": "prm"}}, [1]),  # a copy knows what the model knew
    ],
)  # fmt: skip
def test_a_reference_that_discards_what_a_model_has_learned_is_warned_about(
    parts: list[dict[str, Any]], models: dict[str, Any], warned: list[int]
) -> None:
    found = list(warnings(parse_recipe(taught(*parts, **models))))
    assert [text.partition(":")[0] for text in found] == [f"stages.{i}" for i in warned]
    assert all("parts.process.reference_model" in text for text in found)
