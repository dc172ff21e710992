"""Files and checkpoints that are there as a whole or not at all."""

import multiprocessing
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.runs.folder import RunFolder
from rewardsmith.storage import new_folder, write_atomically
from tests.runs.processes import Strike, arm, assert_same, metrics, outcome, prepared, run


class Note:
    """The smallest thing that a checkpoint can hold in place of a model."""

    def __init__(self, text: str) -> None:
        self.text = text

    def save(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "note.txt").write_text(self.text)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def dies(function: Callable[..., None], *arguments: Any) -> None:
    """Run a function in a process that is killed on the way."""
    process = multiprocessing.get_context("forkserver").Process(target=function, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


# ---- one file --------------------------------------------------------------------------------------------------------


def write_and_die(file: Path, function: str) -> None:
    arm(Strike(function))
    write_atomically(file, "new")


@pytest.mark.parametrize("function", ["os:fsync", "os:replace"])
def test_a_death_while_a_file_is_written_leaves_the_old_one(function: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_atomically(file, "old")
    dies(write_and_die, file, function)
    assert file.read_text() == "old"
    write_atomically(file, "newer")
    assert file.read_text() == "newer"
    assert names(tmp_path) == {"file"}


def test_an_error_while_a_file_is_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_atomically(tmp_path / "taken", "a folder is in the way")
    assert names(tmp_path) == {"taken"}


# ---- one folder ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_old_folder(kind: type[BaseException], tmp_path: Path) -> None:
    with new_folder(tmp_path / "it") as folder:
        (folder / "old").touch()
    with pytest.raises(kind), new_folder(tmp_path / "it") as folder:  # noqa: PT012
        (folder / "new").touch()
        raise kind
    assert names(tmp_path / "it") == {"old"}
    assert names(tmp_path) == {"it"}


def save_and_die(path: Path, name: str, strike: Strike) -> None:
    arm(strike)
    RunFolder(path).save(name, {"step": 2}, {"policy": Note("new")})


def test_a_death_while_a_checkpoint_is_written_leaves_the_older_one(tmp_path: Path) -> None:
    files = RunFolder(tmp_path)
    files.save("01-sft-000001", {"step": 1}, {"policy": Note("old")})
    dies(save_and_die, tmp_path, "01-sft-000002", Strike("os:rename"))
    assert names(tmp_path / "checkpoints") == {"01-sft-000001", ".01-sft-000002.part"}
    assert files.checkpoints() == ["01-sft-000001"]
    assert files.facts("01-sft-000001")["step"] == 1
    files.save("01-sft-000002", {"step": 2}, {"policy": Note("again")})
    assert names(tmp_path / "checkpoints") == {"01-sft-000001", "01-sft-000002"}
    assert (files.model("01-sft-000002", "policy") / "note.txt").read_text() == "again"


def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    """A stop saves at a step where no other attempt does, so the same name may never come again."""
    dies(save_and_die, tmp_path, "01-sft-000002", Strike("os:rename"))
    files = RunFolder(tmp_path)
    with files.locked():
        files.save("01-sft-000003", {}, {})
        files.prune({"01-sft-000003"})
    assert names(tmp_path / "checkpoints") == {"01-sft-000003"}


def prune_and_die(path: Path) -> None:
    arm(Strike("os:rmdir", 2))  # everything in the folder is gone, the folder itself is not
    RunFolder(path).prune({"01-sft-000002"})


def test_a_death_while_a_checkpoint_is_removed_leaves_nothing_for_ever(tmp_path: Path) -> None:
    files = RunFolder(tmp_path)
    for name in ("01-sft-000001", "01-sft-000002"):
        files.save(name, {}, {"policy": Note("")})
    dies(prune_and_die, tmp_path)
    assert files.checkpoints() == ["01-sft-000002"]
    with files.locked():
        files.save("01-sft-000003", {}, {})
        files.prune({"01-sft-000003"})
    assert names(tmp_path / "checkpoints") == {"01-sft-000003"}


def test_a_death_while_the_only_checkpoint_is_written_again_leaves_one(tmp_path: Path) -> None:
    """Ctrl-C right after a checkpoint saves it a second time, under the same name."""
    files = RunFolder(tmp_path)
    files.save("01-sft-000002", {"step": 2}, {"policy": Note("old")})
    dies(save_and_die, tmp_path, "01-sft-000002", Strike("os:rename", 2))
    with RunFolder(tmp_path).locked():
        assert RunFolder(tmp_path).checkpoints() == ["01-sft-000002"]


# ---- the run folder --------------------------------------------------------------------------------------------------


def test_growing_files_are_cut_back_to_a_checkpoint(tmp_path: Path) -> None:
    files = RunFolder(tmp_path)
    with files.locked():
        files.log("sft", 1, 0.5, {"loss": 1.0})
        files.save("01-sft-000001", {}, {})
        files.log("sft", 2, 1.0, {"loss": 0.5})
        files.keep("policy", [])
    with (tmp_path / "metrics.jsonl").open("a") as tail:
        tail.write('{"stage": "sft", "st')  # cut off by a crash
    (tmp_path / "rollouts/policy.jsonl").write_text("a line of a stage that had not begun\n")
    files.rewind(files.facts("01-sft-000001")["lengths"])
    assert metrics(tmp_path) == [{"stage": "sft", "step": 1, "metrics": {"loss": 1.0}}]
    assert (tmp_path / "rollouts/policy.jsonl").read_text() == ""


def test_two_processes_cannot_use_one_folder(tmp_path: Path) -> None:
    prepared(tmp_path)
    with RunFolder(tmp_path / "it").locked():
        status, output = run(tmp_path, "--folder", "it")
        assert status == 2
        assert "error: another process is running in 'it': stop it, or use --folder" in output
        assert "Traceback" not in output
        assert names(tmp_path / "it") == {".lock", "checkpoints", "rollouts"}
    with RunFolder(tmp_path / "it").locked():  # and free again
        pass


def test_the_last_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    overrides = [
        "stages.sft.optimizer={ lr = 0.3, warmup = 12 }",  # more and more: the best validation is the first
        "stages.sft.validation.every=2",
        "stages.sft.save={ every = 3, keep = 2 }",
    ]
    only_sft = prepared(tmp_path).joinpath("small.toml").read_text().split('[[stages]]\ntype = "policy"')[0]
    (tmp_path / "small.toml").write_text(only_sft)
    status, output = run(tmp_path, *overrides, "--folder", "it")
    assert status == 0, output
    losses = {m["step"]: m["metrics"].get("validation/loss") for m in metrics(tmp_path / "it") if m["step"]}
    first = min((s for s in losses if losses[s] is not None), key=lambda s: losses[s])
    assert first < 9, losses
    kept = names(tmp_path / "it/checkpoints")
    assert kept == {"01-sft-000009", "01-sft-000012", f"01-sft-{first:06d}"}
    assert {"config.json", "model.safetensors"} <= names(tmp_path / "it/checkpoints/01-sft-000009/policy")


# ---- checkpoints that were damaged -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared with a run that was stopped in its second stage."""
    folder = prepared(tmp_path_factory.mktemp("stopped"))
    status, output = run(folder, strikes=[Strike("rewardsmith.trainers.collect:score", 5, signal.SIGINT)])
    assert status == 130, output
    return folder


@pytest.mark.slow
def test_without_the_damaged_checkpoint_the_run_resumes_before_it(stopped: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stopped, tmp_path / "it")
    checkpoints = folder / "runs/small/checkpoints"
    assert len(names(checkpoints)) == 2  # the stop's own, and the best of sft
    shutil.rmtree(checkpoints / "02-policy-000000")
    assert run(folder)[0] == 0
    assert run(stopped)[0] == 0
    assert_same(outcome(folder / "runs/small"), outcome(stopped / "runs/small"))
