"""Trackers: what they write is read back with the library itself, and none can hurt a run."""

import json
import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from rewardsmith import UserError
from rewardsmith.runs.trackers import TRACKERS, Guarded, TensorBoard, Tracker, Trackio, Wandb, settings_by_path

RECIPE = (
    'title = "t"\n[[stages]]\ntype = "sft"\n[[stages]]\ntype = "policy"\nbetas = [0.9, 0.95]\nloss = {high = 0.28}\n'
)


@pytest.fixture(autouse=True)
def no_state_of_accelerate() -> None:
    """Each tracker starts as the only one of a run: accelerate keeps its state in the process."""
    from accelerate.state import PartialState

    PartialState._reset_state()


# ---- tensorboard -----------------------------------------------------------------------------------------------------


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "trackers" / "tensorboard"))
    events.Reload()
    return [(event.step, round(event.value, 4)) for event in events.Scalars(tag)]


def follow(tracker: Tracker, folder: Path, values: Mapping[int, float]) -> None:
    tracker.start(folder, "quickstart", RECIPE)
    for step, value in values.items():
        tracker.log(step, {"reward/mean": value, "loss/policy": -value})
    tracker.close()


def test_tensorboard_reads_back_what_was_logged(tmp_path: Path) -> None:
    follow(TensorBoard(), tmp_path, {0: 0.25, 1: 0.5})
    assert scalars(tmp_path, "reward/mean") == [(0, 0.25), (1, 0.5)]
    assert scalars(tmp_path, "loss/policy") == [(0, -0.25), (1, -0.5)]


def test_tensorboard_replaces_the_steps_that_a_resumed_run_repeats(tmp_path: Path) -> None:
    follow(TensorBoard(), tmp_path, {1: 0.1, 2: 0.2, 3: 0.3})
    follow(TensorBoard(), tmp_path, {2: 0.7, 3: 0.8})
    assert scalars(tmp_path, "reward/mean") == [(1, 0.1), (2, 0.7), (3, 0.8)]


# ---- wandb -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def wandb_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.mark.usefixtures("wandb_home")
def test_wandb_offline_keeps_one_run_over_a_resume(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    follow(Wandb(mode="offline", project="p"), folder, {1: 0.25, 2: 0.5})
    follow(Wandb(mode="offline", project="p"), folder, {2: 0.75})
    known = json.loads((folder / "trackers" / "wandb.json").read_text())["id"]
    # Two starts within a second differ in a suffix only.
    files = sorted(folder.glob("trackers/wandb/offline-run-*/*.wandb"), key=lambda path: path.parent.name)
    assert [path.name for path in files] == [f"run-{known}.wandb"] * 2
    # The step that is repeated is in the second file alone; wandb's own process may write it a moment later.
    for path, texts in zip(files, ((b"quickstart", b"stages.1.loss.high", b"-0.25"), (b"-0.75",)), strict=True):
        for _ in range(200):
            if all(text in path.read_bytes() for text in texts):
                break
            time.sleep(0.1)
        assert [text for text in texts if text not in path.read_bytes()] == []
    assert b"-0.75" not in files[0].read_bytes()  # "0.75" alone may be a part of wandb's own times


# ---- trackio ---------------------------------------------------------------------------------------------------------


def test_trackio_keeps_one_run_over_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "home"))
    trackio = pytest.importorskip("trackio")
    folder = tmp_path / "run"
    follow(Trackio(project="p"), folder, {1: 0.25, 2: 0.5})
    follow(Trackio(project="p"), folder, {3: 0.75})
    name = json.loads((folder / "trackers" / "trackio.json").read_text())["id"]
    assert name.startswith("quickstart-")
    (run,) = trackio.Api().runs("p")
    assert run.name == name


# ---- what all have in common -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_library_is_reported(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # None in sys.modules makes an import fail as if nothing were there; tensorboard's modules may be loaded already.
    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf'trackers: {name} is not installed.* "rewardsmith\[{name}\]"'):
        Guarded(name, TRACKERS[name]()).start(tmp_path, "n", "")


def test_settings_are_named_as_an_override_names_them() -> None:
    assert settings_by_path(RECIPE) == {
        "title": "t",
        "stages.0.type": "sft",
        "stages.1.type": "policy",
        "stages.1.betas": [0.9, 0.95],
        "stages.1.loss.high": 0.28,
    }


class Broken:
    """Fails in the given methods."""

    def __init__(self, *where: str) -> None:
        self.where = where
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.where:
            raise ConnectionError(f"{name} broke")

    def start(self, folder: Path, name: str, recipe: str) -> None:
        self._call("start")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._call("log")

    def close(self) -> None:
        self._call("close")


def test_a_tracker_that_fails_is_switched_off_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Broken("log", "close")
    guarded = Guarded("mine", broken)
    with caplog.at_level(logging.WARNING):
        follow(guarded, tmp_path, {1: 0.1, 2: 0.2, 3: 0.3})
        guarded.close()
    assert broken.calls == ["start", "log", "close"]
    (record,) = caplog.records
    assert "mine failed at step 1" in record.getMessage()
    assert "ConnectionError: log broke" in record.getMessage()


def test_a_tracker_that_cannot_start_is_an_error_before_the_run(tmp_path: Path) -> None:
    broken = Broken("start")
    guarded = Guarded("mine", broken)
    with pytest.raises(UserError, match=r'mine could not start \(ConnectionError: start broke\).*remove "mine"'):
        guarded.start(tmp_path, "n", "")
    guarded.log(1, {})
    guarded.close()
    assert broken.calls == ["start"]
