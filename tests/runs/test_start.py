"""Which folder a run goes to, when it goes on, and what is in the folder afterwards."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.runs.processes import RECIPE, Strike, metrics, prepared, run
from tests.runs.test_trackers import scalars

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
    status, said = run(folder, strikes=[STOP])
    assert status == 130, said
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A prepared with a run that was stopped after two of four steps."""
    return Path(shutil.copytree(stopped_once, tmp_path / "stopped"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared with a run that has ended; a copy of the policy was evaluated, and a tracker followed."""
    stages = [EVALUATE.format(name="own", model="policy"), EVALUATE.format(name="copied", model="copy")]
    copy = '[models.copy]\ncopy_of = "policy"\n\n[data.train]'
    recipe = SFT.replace("[data.train]", copy).replace('title = "', 'trackers = ["tensorboard"]\ntitle = "')
    folder = prepared(tmp_path_factory.mktemp("finished"), "\n".join([recipe, *stages]))
    status, said = run(folder)
    assert status == 0, said
    return folder


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in metrics(folder) if line["stage"] == "sft"]


# ---- a recipe that has changed ---------------------------------------------------------------------------------------


def test_a_changed_recipe_is_refused_with_what_changed(stopped: Path) -> None:
    before = {p: p.read_bytes() for p in stopped.glob("runs/**/*") if p.is_file()}
    status, said = run(stopped, "seed=1", "stages.sft.steps=6", "stages.sft.max_tokens=60")
    assert status == 2, said
    assert said.splitlines()[1] == "error: the recipe has changed since the run in 'runs/small' stopped:"
    assert said.splitlines()[2:5] == [
        "  seed: 0 -> 1",
        "  stages.0.max_tokens: not set -> 60",
        "  stages.0.steps: 4 -> 6",
    ]
    assert "--accept-changes" in said
    assert "Traceback" not in said
    assert {p: p.read_bytes() for p in stopped.glob("runs/**/*") if p.is_file()} == before


def test_accepted_changes_take_effect(stopped: Path) -> None:
    first = metrics(stopped / "runs/small")
    status, said = run(stopped, "stages.sft.steps=6", "--accept-changes")
    assert status == 0, said
    assert "resuming from 01-sft-000002" in said
    assert steps(stopped / "runs/small") == [0, 1, 2, 3, 4, 5, 6]
    assert metrics(stopped / "runs/small")[:3] == first
    assert "steps = 6 " in (stopped / "runs/small/recipe.toml").read_text()


def test_changes_that_the_checkpoint_cannot_follow_are_named(stopped: Path) -> None:
    status, said = run(stopped, "models.policy.init=tiny-gpt2", "--accept-changes")
    assert "Traceback" not in said
    assert status == 2, said
    assert "it was saved by another one" in said


def test_another_layout_of_the_same_recipe_is_no_change(stopped: Path) -> None:
    recipe = stopped / "small.toml"
    recipe.write_text("# a comment\nseed = 0\n" + recipe.read_text())
    assert run(stopped)[0] == 0


# ---- --resume and --folder -------------------------------------------------------------------------------------------


def test_auto_goes_on_and_then_starts_anew(stopped: Path) -> None:
    assert "resuming from 01-sft-000002" in run(stopped)[1]
    assert steps(stopped / "runs/small") == [0, 1, 2, 3, 4]
    status, said = run(stopped)
    assert status == 0
    assert "run folder: runs/small-2" in said
    assert "going on" not in said


def test_never_starts_anew_beside_a_stopped_run(stopped: Path) -> None:
    assert "run folder: runs/small-2" in run(stopped, "--resume", "never", strikes=[STOP])[1]
    assert "run folder: runs/small-2" in run(stopped)[1]  # the newest that has not ended
    assert steps(stopped / "runs/small") == [0, 1, 2]


def test_never_does_not_touch_a_folder_with_a_run(stopped: Path) -> None:
    status, said = run(stopped, "--resume", "never", "--folder", "runs/small")
    assert status == 2
    assert "error: 'runs/small' holds a run already: use another --folder, or --resume auto" in said
    assert steps(stopped / "runs/small") == [0, 1, 2]


def test_must_insists_on_a_run(stopped: Path) -> None:
    status, said = run(stopped, "--resume", "must", "--folder", "elsewhere")
    assert (status, "there is no run in 'elsewhere' to go on with" in said) == (2, True)
    assert not (stopped / "elsewhere").exists()
    assert run(stopped, "--resume", "must")[0] == 0
    status, said = run(stopped, "--resume", "must")
    assert (status, "there is nothing to go on with" in said) == (2, True)


def test_must_does_not_take_a_folder_without_a_run(tmp_path: Path) -> None:
    """Bad data is found before the recipe is written; the folder is there by then."""
    prepared(tmp_path, SFT)
    assert run(tmp_path, 'data.train={ type = "jsonl", path = "none.jsonl" }')[0] == 2
    assert run(tmp_path, "--resume", "must")[0] == 2


def test_a_finished_run_is_not_run_again(finished: Path) -> None:
    before = (finished / "runs/small/metrics.jsonl").read_bytes()
    status, said = run(finished, "--folder", "runs/small")
    assert status == 0
    assert said.splitlines()[1:] == ["runs/small has finished already; its report is runs/small/report.html"]
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


@pytest.mark.parametrize("other", ["policy", "copy"])
def test_a_model_cannot_be_a_copy_of_itself(other: str, tmp_path: Path) -> None:
    models = f'[models.policy]\ncopy_of = "{other}"\n\n[models.copy]\ncopy_of = "policy"\n'
    recipe = SFT.replace('[models.policy]\ninit = "tiny-llama"\n', models)
    status, said = run(prepared(tmp_path, recipe))
    assert "Traceback" not in said
    assert status == 2, said
    assert "copy_of" in said


def test_the_tracker_got_the_metrics(finished: Path) -> None:
    lines = [line["metrics"] for line in metrics(finished / "runs/small") if line["stage"] == "sft" and line["step"]]
    expected = [(i + 1, round(line["loss"], 4)) for i, line in enumerate(lines)]
    assert scalars(finished / "runs/small", "sft/loss") == expected


def test_the_summary_says_what_came_of_it(finished: Path) -> None:
    table = json.loads((finished / "runs/small/summary.json").read_text())
    assert (table["title"], table["state"]) == ("a small run", "finished")
    assert [stage["name"] for stage in table["stages"]] == ["sft", "own", "copied"]
    sft, *_ = table["stages"]
    assert sft["before"]["validation/loss"] > sft["after"]["validation/loss"]
    assert 0 < sum(stage["seconds"] for stage in table["stages"]) <= table["seconds"]


def test_there_is_a_report_after_every_end(finished: Path, stopped: Path) -> None:
    assert "a small run" in (finished / "runs/small/report.html").read_text()
    assert "stopped" in (stopped / "runs/small/report.html").read_text()
    status, _ = run(stopped, "models.policy.init=./nowhere", "--folder", "failed")
    assert status == 2
    assert (stopped / "failed/report.html").read_text().startswith("<!")


def test_the_resolved_recipe_can_be_run_itself(finished: Path, tmp_path: Path) -> None:
    again = prepared(tmp_path, (finished / "runs/small/recipe.toml").read_text())
    status, said = run(again)
    assert status == 0, said
    assert metrics(again / "runs/small") == metrics(finished / "runs/small")


def test_a_stage_that_was_removed_does_not_shift_the_others(tmp_path: Path) -> None:
    first = SFT[SFT.index("[[stages]]") :]
    second = first.replace("[[stages]]", '[[stages]]\nname = "second"')
    folder = prepared(tmp_path, SFT + second)
    strike = Strike(STOP.function, 4 + 2, signal.SIGINT)
    assert run(folder, strikes=[strike])[0] == 130
    (folder / "small.toml").write_text(SFT.replace(first, second))
    status, said = run(folder, "--accept-changes")
    done = [line["step"] for line in metrics(folder / "runs/small") if line["stage"] == "second"]
    assert (status, done) == (0, [0, 1, 2, 3, 4]), said
    # What is left of the old numbering must not pass for the last checkpoint.
    assert sorted(path.name for path in (folder / "runs/small/checkpoints").iterdir())[-1] == "01-second-000004"


# ---- messages while a run starts -------------------------------------------------------------------------------------


def test_a_run_says_that_it_imports_torch_before_it_does(tmp_path: Path) -> None:
    """Importing takes seconds; a torch that cannot be imported shows what was printed until then."""
    folder = prepared(tmp_path, SFT)
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text("raise SystemExit('torch is imported now')")
    path = os.pathsep.join([str(tmp_path / "broken"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "rewardsmith.cli", "run", "small.toml"],
        cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    first, last = done.stderr.splitlines()
    assert "torch" in first
    assert last == "torch is imported now"


def test_a_run_says_what_it_checks_loads_and_writes(tmp_path: Path) -> None:
    rule = 'reward = { type = "rule", rule = "arithmetic" }'
    evaluate = EVALUATE.format(name="own", model="policy").replace('reward = "digits:Digits"', rule)
    status, said = run(prepared(tmp_path, SFT + evaluate))
    assert status == 0, said
    places = [
        said.index(text)
        for text in ("importing torch", "checking stages.1.reward: rule", "loading policy", "sft: 4", "writing models/")
    ]
    assert places == sorted(places)
