"""Run folders that were damaged, or come from somebody else: a changed file is named, and no link is followed."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rewardsmith.errors import UserError
from rewardsmith.runs.lookup import find_reward
from rewardsmith.runs.report import write_report
from rewardsmith.runs.stored_rollouts import StoredRollouts
from rewardsmith.storage import damaged, write_sums
from tests.runs.fake_run import write_fake_run
from tests.runs.processes import RECIPE, Strike, metrics, prepared, run

SMALL = RECIPE.replace("steps = 12", "steps = 2").partition('[[stages]]\ntype = "evaluate"')[0]
LAST = "02-policy-000000"


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped before the first step of its second stage, which has a reference."""
    folder = prepared(tmp_path_factory.mktemp("stopped"), SMALL)
    status, output = run(folder, strikes=[Strike("rewardsmith.trainers.scoring:score", 5, signal.SIGINT)])
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


# ---- hashes ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["policy/model.safetensors", "policy/learner.safetensors", "checkpoint.json"])
def test_a_flipped_bit_in_a_checkpoint_stops_the_resume(name: str, stopped: Path) -> None:
    file = stopped / "runs/small/checkpoints" / LAST / name
    flip(file, file.stat().st_size // 2)
    before = (stopped / "runs/small/summary.json").read_bytes()
    message = refused(stopped)
    assert f"runs/small/checkpoints/{LAST}/{name} is damaged" in message
    assert "remove that checkpoint's folder to go on before it" in message
    assert (stopped / "runs/small/summary.json").read_bytes() == before
    assert message.strip() in (stopped / "runs/small/run.log").read_text().replace("\n    ", "\n")


def test_a_flipped_bit_in_a_reference_stops_the_resume(stopped: Path) -> None:
    flip(stopped / "runs/small/references/policy/model.safetensors")
    message = refused(stopped)
    assert "runs/small/references/policy/model.safetensors is damaged" in message
    assert "--resume never" in message


def test_the_hashes_are_those_of_sha256sum(stopped_once: Path) -> None:
    folder = stopped_once / "runs/small/checkpoints" / LAST
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    assert {line.split("  ")[1] for line in lines} == {
        str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file() and f.name != "SHA256SUMS"
    }
    assert os.system(f"cd {folder} && sha256sum --check --strict --quiet SHA256SUMS") == 0


# ---- growing files that have become shorter --------------------------------------------------------------------------


def test_files_that_lost_lines_are_named_and_accepted_only_on_demand(stopped: Path) -> None:
    folder = stopped / "runs/small"
    size = (folder / "metrics.jsonl").stat().st_size
    os.truncate(folder / "metrics.jsonl", size - 10)
    (folder / "rollouts/policy.jsonl").unlink()
    message = refused(stopped)
    assert f"runs/small/metrics.jsonl has {size - 10:,} bytes, and had {size:,}" in message
    assert "runs/small/rollouts/policy.jsonl has 0 bytes, and had" in message
    assert "--accept-changes" in message
    assert (folder / "metrics.jsonl").stat().st_size == size - 10
    (stopped / "runs").rename(stopped / "elsewhere")
    (stopped / "runs").symlink_to("elsewhere")  # which is nothing to complain about
    status, output = run(stopped, "--accept-changes")
    assert status == 0, output
    assert f"warning: runs/small/metrics.jsonl has {size - 10:,} bytes" in output
    assert len(metrics(folder)) == (1 + 2 - 1) + (1 + 6)  # no half of a line is left in the way


# ---- links -----------------------------------------------------------------------------------------------------------


PLACES = [
    ".lock", "metrics.jsonl", "recipe.toml", "summary.json", "run.log", "report.html", ".summary.json.part",
    "lineage.json", "rollouts", "rollouts/policy.jsonl", "checkpoints", f"checkpoints/{LAST}/policy/model.safetensors",
    "models", "models/policy", "references", "evaluations", "trackers", "trackers/wandb.json", "servers/judge.log",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_no_link_of_a_run_folder_is_followed(place: str, tmp_path: Path) -> None:
    folder = write_fake_run(tmp_path / "run")
    for name in ("checkpoints", f"checkpoints/{LAST}/policy"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    outside = tmp_path / "outside"
    link = folder / place
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.exists():
        shutil.move(link, outside)  # it even holds what it should
    else:
        outside.write_text("somebody's own file")
    before = outside.read_bytes() if outside.is_file() else sorted(outside.rglob("*"))
    link.symlink_to(outside)
    prepared(tmp_path)
    uses: list[Callable[[], object]] = [
        lambda: write_report(folder),
        lambda: StoredRollouts(str(folder)),
        lambda: find_reward(str(folder)),
    ]
    if place == "recipe.toml":
        uses.pop(1)
    for use in uses:
        with pytest.raises(UserError, match="symbolic link") as caught:
            use()
        assert str(link) in str(caught.value)
    if place in (".lock", "metrics.jsonl", "checkpoints"):  # a process takes its time
        assert f"run/{place} is a symbolic link" in refused(tmp_path, "--folder", "run")
    assert before == (outside.read_bytes() if outside.is_file() else sorted(outside.rglob("*")))


def test_a_pipe_in_a_run_folder_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    folder = write_fake_run(tmp_path / "run")
    (folder / "summary.json").unlink()
    os.mkfifo(folder / "summary.json")
    with pytest.raises(UserError, match=r"summary\.json is neither a file nor a folder"):
        write_report(folder)


def test_the_run_folder_itself_may_be_a_link_and_so_may_what_a_tracker_made(tmp_path: Path) -> None:
    folder = write_fake_run(tmp_path / "run")
    (folder / "trackers/wandb/run-1").mkdir(parents=True)
    (folder / "trackers/wandb/latest-run").symlink_to("run-1")
    (tmp_path / "link").symlink_to(folder)
    assert write_report(tmp_path / "link").exists()
    assert list(StoredRollouts(str(tmp_path / "link")))
    (folder / "trackers/wandb/latest-run").unlink()
    (folder / "trackers/wandb/latest-run").symlink_to(tmp_path)
    with pytest.raises(UserError, match="latest-run is a symbolic link"):
        write_report(tmp_path / "link")
