"""A run with process reward models that is killed and goes on ends exactly as one that was never interrupted."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runs.processes import Strike, assert_same, outcome, prepared, run

pytestmark = pytest.mark.slow

RECIPE = """
title = "a small run"

[models.policy]
init = "tiny-llama"

[models.prm]
copy_of = "policy"

[data.train]
type = "arithmetic"

[[stages]]
type = "process_model"
name = "alone"
model = "policy"
data = "train"
steps = 3
prompts_per_step = 2
rollouts_per_prompt = 3
sampling = { max_tokens = 6 }
validation = { data = "train", every = 2, prompts = 2, rollouts_per_prompt = 2 }
save = { every = 1 }

[stages.reward]
type = "sum"
parts.answer = "digits:Digits"
parts.process = { type = "implicit", model = "prm", beta = 0.5, learn = { optimizer = { lr = 1e-3 } } }

[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 6
prompts_per_step = 3
rollouts_per_prompt = 3
sampling = { max_tokens = 6 }
select = { oversample = 1.5, staleness = 2 }
advantage = { type = "rloo", combine = "after" }
optimizer = { lr = 2e-3, schedule = "linear" }
save = { every = 2, keep = 2 }

[stages.reward]
type = "sum"
parts.answer = "digits:Digits"

[stages.reward.parts.process]
type = "implicit"
model = "prm"
beta = 0.5
reference = "start"
trust = { by = "scale", memory = 0.5 }
learn.offset = "group-mean"
learn.mini_batch = 5
learn.warmup = 1
learn.replay = { groups = 4, per_step = 2 }
learn.optimizer = { lr = 2e-3, schedule = "linear", weight_decay = 0.01 }
"""

VARIANTS = {
    "full": [],
    "ahead": [("select = {", "ahead = 1\nselect = {"), ('reference = "start"', 'reference = "policy"')],
    "sampler": [
        ('init = "tiny-llama"', 'init = "tiny-llama"\ndtype = "bfloat16"'),
        ('reference = "start"', 'reference = "policy"'),
    ],
    "lora": [('copy_of = "policy"', 'init = "tiny-llama"\nlora = { rank = 4 }')],
    "by step": [
        ('learn.offset = "group-mean"', 'update = "reverse"\nlearn.loss = "best-of-n-reward"'),
        ('copy_of = "policy"', 'copy_of = "policy"\ndtype = "bfloat16"'),
        ('reference = "start"', 'reference = "start"\ngranularity = "step"\nseparator = "1"'),
    ],
}

PROCESS = "rewardsmith.trainers.process.process_model:_Losses.for_rows"
OPTIMIZE = "rewardsmith.trainers.policy:PolicyTrainer._optimize"
SCORE = "rewardsmith.trainers.collect:score"
WRITE = "rewardsmith.engines.embedded.engine:write_tensors"
LOG = "rewardsmith.runs.folder:RunFolder.log"
COPY = "rewardsmith.trainers.reference:new_folder"
SYNC = "rewardsmith.storage:_sync"
SAVE = "rewardsmith.runs.folder:RunFolder.save"

# In the order in which successive attempts meet them.
MOMENTS = [
    Strike(SYNC, 5),  # while the first reference is written
    Strike(PROCESS, 2),  # between two steps of the first stage
    Strike(COPY, 1),  # the reference of the second stage is not written yet
    Strike(SCORE, 8),  # while answers of the second stage are written
    Strike(PROCESS, 4),  # the first mini-batch of a step is learned, the second is not
    Strike(OPTIMIZE, 2),  # the process model has learned, the policy has not
    Strike(WRITE, 2),  # one optimizer is saved, the other is not
    Strike(LOG, 2),  # rollouts are written, metrics are not
    Strike(SAVE, 1),
]


def recipe(variant: str) -> str:
    text = RECIPE
    for before, after in VARIANTS[variant]:
        assert before in text
        text = text.replace(before, after)
    return text


def everything(folder: Path) -> dict[str, Any]:
    """Return the outcome of a run, its references, and all that its checkpoints hold."""
    kept = [f for place in ("references", "checkpoints") for f in folder.glob(f"{place}/**/*") if f.is_file()]
    timed = ("checkpoint.json", "SHA256SUMS")  # the first has times, the second its hash
    files = {str(f.relative_to(folder)): f.read_bytes() for f in kept if f.name not in timed}
    states = {f.parent.name: json.loads(f.read_text())["state"] for f in folder.glob("checkpoints/*/checkpoint.json")}
    for batch in (batch for state in states.values() for batch in state.get("ahead", ())):  # some are scored already
        batch["rounds"] = [[group.get("group", group) for group in one] for one in batch["rounds"]]
    return outcome(folder) | {"files": files, "states": states}


def assert_all_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert_same(found, expected)
    assert found["files"].keys() == expected["files"].keys()
    assert [name for name, content in expected["files"].items() if found["files"][name] != content] == []
    assert found["states"] == expected["states"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """What comes of each variant without an interruption."""
    found: dict[str, dict[str, Any]] = {}

    def outcome_of(variant: str) -> dict[str, Any]:
        if variant not in found:
            folder = prepared(tmp_path_factory.mktemp(variant), recipe(variant))
            status, output = run(folder)
            assert status == 0, output
            found[variant] = everything(folder / "runs/small")
        return found[variant]

    return outcome_of


def test_what_is_compared_would_show_a_difference(expected: Callable[[str], dict[str, Any]]) -> None:
    whole = expected("full")
    lines = [line["metrics"] for line in whole["metrics"] if line["stage"] == "policy" and line["step"]]
    assert len(lines) == 6
    assert all(m["learned/process/grad_norm"] > 1e-3 for m in lines)
    assert ["policy/grad_norm" in m for m in lines] == [False] + [True] * 5  # the warm-up
    assert len({m["learned/process/accuracy_running"] for m in lines}) > 3
    assert any(m.get("groups/reused") for m in lines)
    assert len({m["learned/process/lr"] for m in lines}) == 6
    state = whole["states"]["02-policy-000006"]["process"]["process"]
    assert len(state["replay"]) == 4
    assert 0 < state["accuracy"] < 1
    assert whole["models"]["models/policy/model.safetensors"] != whole["models"]["models/prm/model.safetensors"]
    folders = {Path(name).parts[:2] for name in whole["files"]}
    assert {("references", "alone.process"), ("references", "policy.process")} <= folders
    saved = "checkpoints/02-policy-000006/{}/learner.safetensors"
    assert all(saved.format(model) in whole["files"] for model in ("policy", "prm"))
    adapter = expected("lora")["files"]
    # In its first stage the reference is the model without its adapter; in the second it is a copy.
    assert {Path(name).parts[1] for name in adapter if name.startswith("references")} == {"policy.process"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_killed_at_the_worst_moments(variant: str, tmp_path: Path, expected: Callable[[str], dict[str, Any]]) -> None:
    folder = prepared(tmp_path, recipe(variant))
    for moment in MOMENTS if variant == "full" else [Strike(OPTIMIZE, 3), MOMENTS[6]]:  # in step 4, saved after 2
        status, output = run(folder, strikes=[moment])
        assert status == -signal.SIGKILL, f"{moment} was not reached:\n{output}"
    status, output = run(folder)
    assert status == 0, output
    assert_all_same(everything(folder / "runs/small"), expected(variant))


@pytest.mark.parametrize("moment", [Strike(PROCESS, 6, signal.SIGTERM), Strike(SCORE, 14, signal.SIGINT)])
def test_a_stop_signal_does_not_learn_a_step_twice(
    moment: Strike, tmp_path: Path, expected: Callable[[str], dict[str, Any]]
) -> None:
    folder = prepared(tmp_path, recipe("full"))
    status, output = run(folder, strikes=[moment])
    assert status == 130, output
    status, output = run(folder)
    assert status == 0, output
    assert_same(outcome(folder / "runs/small"), expected("full"))
