"""Files and checkpoints that are there as a whole or not at all."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.runs.folder import RunFolder
from rewardsmith.storage import damaged, new_folder, write_atomically, write_sums
from tests.runs.processes import LIMIT, RECIPE, Strike, arm, assert_same, metrics, outcome, prepared, run


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
    process.join(LIMIT)
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


# ---- files that were damaged -----------------------------------------------------------------------------------------

SMALL = RECIPE.replace("steps = 12", "steps = 2").partition('[[stages]]\ntype = "evaluate"')[0]
LAST = "02-policy-000000"


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped before the first step of its second stage, which has a reference."""
    folder = prepared(tmp_path_factory.mktemp("stopped"), SMALL)
    status, output = run(folder, strikes=[Strike("rewardsmith.trainers.collect:score", 5, signal.SIGINT)])
    assert status == 130, output
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped_once, tmp_path / "it"))


def flip(file: Path, place: int = -1) -> None:
    """Change one bit."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def refused(folder: Path, *arguments: str) -> str:
    status, output = run(folder, *arguments)
    assert "Traceback" not in output
    assert status == 2, output
    return output.partition("error: ")[2]


def test_a_flipped_bit_in_any_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "policy/deep").mkdir(parents=True)
    files = [tmp_path / name for name in ("checkpoint.json", "policy/model.safetensors", "policy/deep/x", "empty")]
    for file in files[:-1]:
        file.write_bytes(os.urandom(3000))
    files[-1].touch()
    write_sums(tmp_path)
    assert damaged(tmp_path) == ""
    for file in files[:-1]:
        for place in (0, 1500, -1):
            flip(file, place)
            assert str(file) in damaged(tmp_path)
            flip(file, place)
    for file in files:
        shutil.move(file, tmp_path / "moved")
        assert f"{file} is missing" in damaged(tmp_path)
        shutil.move(tmp_path / "moved", file)
    sums = (tmp_path / "SHA256SUMS").read_bytes()
    for place in range(0, len(sums), 7):
        flip(tmp_path / "SHA256SUMS", place)
        assert damaged(tmp_path)
        flip(tmp_path / "SHA256SUMS", place)
    (tmp_path / "SHA256SUMS").write_text("")
    assert damaged(tmp_path)
    (tmp_path / "SHA256SUMS").write_bytes(sums)
    assert damaged(tmp_path) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["policy/model.safetensors", "policy/learner.safetensors", "checkpoint.json"])
def test_a_flipped_bit_in_a_checkpoint_stops_the_resume(name: str, stopped: Path) -> None:
    file = stopped / "runs/small/checkpoints" / LAST / name
    flip(file, file.stat().st_size // 2)
    before = (stopped / "runs/small/summary.json").read_bytes()
    message = refused(stopped)
    assert f"runs/small/checkpoints/{LAST}/{name} is damaged" in message
    assert "remove that folder to resume from an earlier one" in message
    assert (stopped / "runs/small/summary.json").read_bytes() == before
    assert message.strip() in (stopped / "runs/small/run.log").read_text().replace("\n    ", "\n")


@pytest.mark.slow
def test_a_flipped_bit_in_a_reference_stops_the_resume(stopped: Path) -> None:
    flip(stopped / "runs/small/references/policy/model.safetensors")
    message = refused(stopped)
    assert "runs/small/references/policy/model.safetensors is damaged" in message
    assert "--resume never" in message


@pytest.mark.slow
def test_files_that_lost_lines_are_named(stopped: Path) -> None:
    folder = stopped / "runs/small"
    size = (folder / "metrics.jsonl").stat().st_size
    os.truncate(folder / "metrics.jsonl", size - 10)
    message = refused(stopped)
    assert f"runs/small/metrics.jsonl has {size - 10:,} bytes, and had {size:,}" in message
    assert f"checkpoints/{LAST}" in message
    assert (folder / "metrics.jsonl").stat().st_size == size - 10


@pytest.mark.slow
def test_without_the_damaged_checkpoint_the_run_resumes_before_it(stopped: Path, stopped_once: Path) -> None:
    checkpoints = stopped / "runs/small/checkpoints"
    assert len(names(checkpoints)) == 2  # the stop's own, and the last of sft
    shutil.rmtree(checkpoints / LAST)
    assert run(stopped)[0] == 0
    other = shutil.copytree(stopped_once, stopped.with_name("other"))
    assert run(other)[0] == 0
    assert_same(outcome(stopped / "runs/small"), outcome(other / "runs/small"))
