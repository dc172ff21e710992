"""However a run ends, its folder says why; one that never began leaves a folder that the next start uses."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.runs.processes import RECIPE, prepared, run
from tests.viewer.test_report import Page
from tests.viewer.test_report_page import run_page

pytestmark = pytest.mark.slow  # whole runs in processes of their own

SFT = RECIPE.split('[[stages]]\ntype = "policy"')[0].replace("steps = 12", "steps = 2")
NO_DATA = 'data.train={ type = "jsonl", path = "none.jsonl" }'  # found before any file of the run is written
NO_MODEL = "models.policy.init=./nowhere"  # found later
HEADING = "console.log(page.all('header').map((one) => one.text()).join(' '))"


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


def reported(folder: Path) -> dict[str, Any]:
    return Page((folder / "report.html").read_text()).data


# ---- a start that fails ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_after_a_failed_start_the_next_one_uses_the_same_folder(resume: str, tmp_path: Path) -> None:
    prepared(tmp_path, SFT)
    for mistake in (NO_DATA, NO_MODEL):
        status, output = run(tmp_path, mistake, "--resume", resume)
        assert status == 2, output
        error = output.partition("error: ")[2].strip()
        folder = tmp_path / "runs/small"
        assert error in (folder / "run.log").read_text().replace("\n    ", "\n")
        assert (summary(folder)["state"], summary(folder)["error"]) == ("failed", error)
        assert (reported(folder)["state"], reported(folder)["error"]) == ("failed", error)
        assert [path.name for path in (tmp_path / "runs").iterdir()] == ["small"]
    status, output = run(tmp_path, "--resume", resume)
    assert status == 0, output
    assert "run folder: runs/small\n" in output
    assert (summary(folder)["state"], summary(folder)["error"]) == ("finished", "")
    assert reported(folder)["error"] == ""
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["small"]


# ---- run.log ---------------------------------------------------------------------------------------------------------


def fail_in_the_second_step() -> None:
    from rewardsmith.trainers.sft import SftTrainer

    before = SftTrainer._learn

    def learn(trainer: SftTrainer, number: int, lr: float) -> Any:
        if number == 2:
            raise RuntimeError("a fault of ours\x1b[31m")
        return before(trainer, number, lr)

    SftTrainer._learn = learn  # type: ignore[method-assign]


def test_an_error_that_nobody_expected_has_its_traceback_in_the_log(tmp_path: Path) -> None:
    folder = prepared(tmp_path, SFT) / "runs/small"
    assert run(tmp_path, set_up=fail_in_the_second_step)[0] == 1
    log = (folder / "run.log").read_text()
    assert "Traceback (most recent call last)" in log
    assert "RuntimeError: a fault of ours\\x1b[31m" in log
    assert summary(folder)["error"].startswith("RuntimeError: a fault of ours")
    assert summary(folder)["state"] == "failed"
    assert run(tmp_path)[0] == 0
    assert (summary(folder)["state"], summary(folder)["error"]) == ("finished", "")
    assert "RuntimeError" in (folder / "run.log").read_text()  # what happened stays


def test_a_warning_of_this_package_reaches_the_log_and_the_console(tmp_path: Path) -> None:
    prepared(tmp_path, SFT.replace('title = "', 'trackers = ["tracking:Broken"]\ntitle = "'))
    (tmp_path / "tracking.py").write_text(BROKEN)
    status, output = run(tmp_path)
    assert status == 0, output
    for text in (output, (tmp_path / "runs/small/run.log").read_text()):
        assert text.count("no connection") == 1


BROKEN = '''
class Broken:
    """A tracker that fails."""

    def start(self, folder, name, recipe):
        pass

    def log(self, step, metrics):
        raise OSError("no connection")

    def close(self):
        pass
'''


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the page")
def test_the_report_shows_the_error_as_text(tmp_path: Path) -> None:
    table = {
        "title": "t",
        "state": "failed",
        "seconds": 1.0,
        "error": "the disk <b>is full</b>\nMake room",
        "stages": [],
    }
    (tmp_path / "summary.json").write_text(json.dumps(table))
    shown = run_page(tmp_path, HEADING)
    assert "the disk <b>is full</b>\nMake room" in shown
    (tmp_path / "summary.json").write_text(json.dumps(table | {"error": "", "state": "finished"}))
    assert "ended by an error" not in run_page(tmp_path, HEADING)
