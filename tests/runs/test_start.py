"""Which folder a run goes to, when it goes on, and what is in the folder afterwards."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.runs.processes import RECIPE, Strike, metrics, prepared, run

SFT = RECIPE.split('[[stages]]\ntype = "policy"')[0].replace("steps = 12", "steps = 4")
STOP = Strike("rewardsmith.engines.embedded.learner:Learner.step", 2, signal.SIGINT)
EVALUATE = """
[[stages]]
name = "{name}"
type = "evaluate"
model = "{model}"
data = "held_out"
prompts = 4
sampling = {{ max_tokens = 8 }}
reward = "digits:Digits"
"""


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = prepared(tmp_path_factory.mktemp("stopped"), SFT)
    status, output = run(folder, strikes=[STOP])
    assert status == 130, output
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A folder with a run that was stopped after two of four steps."""
    return Path(shutil.copytree(stopped_once, tmp_path / "stopped"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that has ended; a copy of the policy was evaluated, and a tracker followed."""
    stages = [EVALUATE.format(name="own", model="policy"), EVALUATE.format(name="copied", model="copy")]
    copy = '[models.copy]\ncopy_of = "policy"\n\n[data.train]'
    recipe = SFT.replace("[data.train]", copy).replace('title = "', 'trackers = ["tensorboard"]\ntitle = "')
    folder = prepared(tmp_path_factory.mktemp("finished"), "\n".join([recipe, *stages]))
    status, output = run(folder)
    assert status == 0, output
    return folder


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in metrics(folder) if line["stage"] == "sft"]


# ---- a recipe that has changed ---------------------------------------------------------------------------------------


def test_a_changed_recipe_is_refused_with_what_changed(stopped: Path) -> None:
    before = {p: p.read_bytes() for p in stopped.glob("runs/**/*") if p.is_file()}
    status, output = run(stopped, "seed=1", "stages.sft.steps=6", "stages.sft.max_tokens=60")
    assert status == 2, output
    assert output.splitlines()[1] == "error: the recipe has changed since the run in 'runs/small' stopped:"
    assert output.splitlines()[2:5] == [
        "  seed: 0 -> 1",
        "  stages.0.max_tokens: not set -> 60",
        "  stages.0.steps: 4 -> 6",
    ]
    assert "--accept-changes" in output
    assert "Traceback" not in output
    assert {p: p.read_bytes() for p in stopped.glob("runs/**/*") if p.is_file()} == before


def test_accepted_changes_take_effect(stopped: Path) -> None:
    first = metrics(stopped / "runs/small")
    status, output = run(stopped, "stages.sft.steps=6", "--accept-changes")
    assert status == 0, output
    assert "resuming from 01-sft-000002" in output
    assert steps(stopped / "runs/small") == [0, 1, 2, 3, 4, 5, 6]
    assert metrics(stopped / "runs/small")[:3] == first
    assert "steps = 6 " in (stopped / "runs/small/recipe.toml").read_text()


def test_changes_that_the_checkpoint_cannot_follow_are_named(stopped: Path) -> None:
    status, output = run(stopped, "models.policy.init=tiny-gpt2", "--accept-changes")
    assert "Traceback" not in output
    assert status == 2, output
    assert "of another model" in output


# ---- --resume and --folder -------------------------------------------------------------------------------------------


def test_auto_resumes_and_then_starts_a_new_run(stopped: Path) -> None:
    assert "resuming from 01-sft-000002" in run(stopped)[1]
    assert steps(stopped / "runs/small") == [0, 1, 2, 3, 4]
    status, output = run(stopped)
    assert status == 0
    assert "run folder: runs/small-2" in output
    assert "resuming" not in output


def test_never_does_not_touch_a_folder_with_a_run(stopped: Path) -> None:
    status, output = run(stopped, "--resume", "never", "--folder", "runs/small")
    assert status == 2
    assert "error: 'runs/small' holds a run already: use another --folder, or --resume auto" in output
    assert steps(stopped / "runs/small") == [0, 1, 2]


def test_must_insists_on_a_run(stopped: Path) -> None:
    status, output = run(stopped, "--resume", "must", "--folder", "elsewhere")
    assert (status, "there is no run in 'elsewhere' to resume" in output) == (2, True)
    assert not (stopped / "elsewhere").exists()
    assert run(stopped, "--resume", "must")[0] == 0
    status, output = run(stopped, "--resume", "must")
    assert (status, "there is nothing to resume" in output) == (2, True)


def test_a_finished_run_is_not_run_again(finished: Path) -> None:
    before = (finished / "runs/small/metrics.jsonl").read_bytes()
    status, output = run(finished, "--folder", "runs/small")
    assert status == 0
    assert output.splitlines()[1:] == ["runs/small has finished already; its report is runs/small/report.html"]
    assert (finished / "runs/small/metrics.jsonl").read_bytes() == before


# ---- what is in the folder -------------------------------------------------------------------------------------------


def test_the_trained_model_is_an_ordinary_folder(finished: Path) -> None:
    folder = finished / "runs/small/models/policy"
    assert [f.name for f in folder.parent.iterdir()] == ["policy"]  # not the copy, which nobody trained
    assert "learner.safetensors" not in [f.name for f in folder.iterdir()]
    model = AutoModelForCausalLM.from_pretrained(folder)
    saved = AutoModelForCausalLM.from_pretrained(finished / "runs/small/checkpoints/01-sft-000004/policy")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), saved.parameters(), strict=True))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "7+5?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert model.generate(**prompt, max_new_tokens=4, do_sample=False).shape[1] > prompt["input_ids"].shape[1]


def test_a_copy_has_the_weights_of_the_moment_when_it_is_first_needed(finished: Path) -> None:
    folder = finished / "runs/small/checkpoints/03-copied-000001"
    original, copy = ((folder / name / "model.safetensors").read_bytes() for name in ("policy", "copy"))
    assert original == copy


def test_the_summary_says_what_came_of_it(finished: Path) -> None:
    table = json.loads((finished / "runs/small/summary.json").read_text())
    assert (table["title"], table["state"]) == ("a small run", "finished")
    assert [stage["name"] for stage in table["stages"]] == ["sft", "own", "copied"]
    sft, *_ = table["stages"]
    assert sft["before"]["validation/loss"] > sft["after"]["validation/loss"]
    assert 0 < sum(stage["seconds"] for stage in table["stages"]) <= table["seconds"]


def test_the_resolved_recipe_can_be_run_itself(finished: Path, tmp_path: Path) -> None:
    again = prepared(tmp_path, (finished / "runs/small/recipe.toml").read_text())
    status, output = run(again)
    assert status == 0, output
    assert metrics(again / "runs/small") == metrics(finished / "runs/small")


def test_a_stage_that_was_removed_does_not_shift_the_others(tmp_path: Path) -> None:
    first = SFT[SFT.index("[[stages]]") :]
    second = first.replace("[[stages]]", '[[stages]]\nname = "second"')
    folder = prepared(tmp_path, SFT + second)
    strike = Strike(STOP.function, 4 + 2, signal.SIGINT)
    assert run(folder, strikes=[strike])[0] == 130
    (folder / "small.toml").write_text(SFT.replace(first, second))
    status, output = run(folder, "--accept-changes")
    done = [line["step"] for line in metrics(folder / "runs/small") if line["stage"] == "second"]
    assert (status, done) == (0, [0, 1, 2, 3, 4]), output
    # What is left of the old numbering must not pass for the last checkpoint.
    assert sorted(path.name for path in (folder / "runs/small/checkpoints").iterdir())[-1] == "01-second-000004"
