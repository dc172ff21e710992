"""How many steps a run has taken and has, when it is stopped or its recipe changes; a finished run can have more."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.runs.processes import RECIPE, Strike, assert_same, outcome, prepared, run
from tests.viewer.test_report import Page

LEARN = "rewardsmith.engines.embedded.learner:Learner.step"
SAVE = "rewardsmith.runs.folder:RunFolder.save"
SFT = RECIPE.split('[[stages]]\ntype = "policy"')[0]
SFT = SFT.replace("steps = 12", "steps = 4").replace('schedule = "cosine", ', "").replace("every = 4", "every = 2")
EVALUATE = RECIPE[RECIPE.index('[[stages]]\ntype = "evaluate"') :]
POLICY = RECIPE.removesuffix(EVALUATE).removeprefix(RECIPE.split('[[stages]]\ntype = "policy"')[0])
POLICY = POLICY.replace("steps = 6", "steps = 2").replace('schedule = "linear"', 'schedule = "constant"')
MORE = ("stages.sft.steps=6", "--accept-changes")


def counts(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the steps that each stage has taken and has, which the report must say too."""
    texts = json.loads((folder / "summary.json").read_text())["stages"]
    shown = Page((folder / "report.html").read_text()).data["stages"]
    found = [{stage["name"]: (stage["done"], stage["steps"]) for stage in stages} for stages in (texts, shown)]
    assert found[0] == found[1]
    return found[0]


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps and an evaluation that has ended."""
    folder = prepared(tmp_path_factory.mktemp("finished"), SFT + EVALUATE)
    status, output = run(folder)
    assert status == 0, output
    return folder


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_once, tmp_path / "it"))


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What comes of six steps in one go."""
    folder = prepared(tmp_path_factory.mktemp("six"), SFT + EVALUATE)
    status, output = run(folder, MORE[0])
    assert status == 0, output
    return outcome(folder / "runs/small")


def test_a_finished_run_that_gets_more_steps_ends_like_one_that_had_them_from_the_start(
    finished: Path, six: dict[str, Any]
) -> None:
    before = (finished / "runs/small/models/policy/model.safetensors").read_bytes()
    status, output = run(finished, *MORE)
    assert status == 0, output
    assert "run folder: runs/small\n" in output
    assert "resuming from 01-sft-000004" in output
    found = outcome(finished / "runs/small")
    assert found == six
    assert found["models"]["models/policy/model.safetensors"] != before
    assert counts(finished / "runs/small") == {"sft": (6, 6), "evaluate": (1, 1)}
    lineage = json.loads((finished / "runs/small/lineage.json").read_text())["stages"]
    assert lineage[0]["models"]["policy"]["after"] == lineage[1]["models"]["policy"]["before"]
    assert "has finished already" in run(finished, *MORE, "--folder", "runs/small")[1]


@pytest.mark.slow
@pytest.mark.parametrize("moment", [Strike(LEARN, 1), Strike("rewardsmith.runs.run:explain", 1), Strike(SAVE, 1)])
def test_a_kill_while_it_gets_more_steps_changes_nothing(moment: Strike, finished: Path, six: dict[str, Any]) -> None:
    assert run(finished, *MORE, strikes=[moment])[0] == -signal.SIGKILL
    status, output = run(finished, *MORE)
    assert status == 0, output
    assert outcome(finished / "runs/small") == six


def test_a_finished_run_stays_finished_when_the_longer_recipe_is_refused(finished: Path) -> None:
    mistake = 'data.train={ type = "jsonl", path = "none.jsonl" }'
    before = (finished / "runs/small/summary.json").read_bytes()
    assert run(finished, *MORE, mistake)[0] == 2
    assert (finished / "runs/small/summary.json").read_bytes() == before
    assert "none.jsonl" in (finished / "runs/small/run.log").read_text()
    status, output = run(finished, "--folder", "runs/small")
    assert (status, "has finished already" in output) == (0, True)


def test_a_stage_from_which_a_later_one_has_trained_cannot_have_more_steps(tmp_path: Path) -> None:
    folder = prepared(tmp_path, SFT + POLICY)
    assert run(folder, strikes=[Strike(LEARN, 4 + 1, signal.SIGINT)])[0] == 130
    before = outcome_files(folder / "runs/small")
    status, output = run(folder, *MORE)
    assert "Traceback" not in output
    assert status == 2, output
    assert "stages.0.steps = 6: the stage 'sft' has ended after 4 steps" in output
    assert "the stage 'policy' has trained since" in output
    assert "--resume never" in output
    assert outcome_files(folder / "runs/small") == before
    assert run(folder, "stages.policy.steps=3", "--accept-changes")[0] == 0  # the last one can
    assert counts(folder / "runs/small") == {"sft": (4, 4), "policy": (3, 3)}


def outcome_files(folder: Path) -> dict[str, bytes]:
    changing = ("run.log", "report.html")
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name not in changing}


@pytest.mark.slow
def test_a_policy_that_gets_more_steps_keeps_its_reference_and_its_surplus(tmp_path: Path) -> None:
    one, two = (prepared(tmp_path / name, SFT.replace("steps = 4", "steps = 2") + POLICY) for name in ("one", "two"))
    assert run(one)[0] == 0
    assert run(one, "stages.policy.steps=4", "--accept-changes")[0] == 0
    assert run(two, "stages.policy.steps=4")[0] == 0
    assert_same(outcome(one / "runs/small"), outcome(two / "runs/small"))


def test_stages_can_be_added_to_a_finished_run(finished: Path) -> None:
    added = EVALUATE.replace("[[stages]]", '[[stages]]\nname = "again"')
    (finished / "small.toml").write_text(SFT + EVALUATE + added)
    status, output = run(finished, "--accept-changes")
    assert status == 0, output
    assert "run folder: runs/small\n" in output
    assert counts(finished / "runs/small") == {"sft": (4, 4), "evaluate": (1, 1), "again": (1, 1)}
