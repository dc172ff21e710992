"""Run folders that were damaged: a changed file is named."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from rewardsmith.storage import damaged, write_sums
from tests.runs.processes import RECIPE, Strike, prepared, run

pytestmark = pytest.mark.slow  # whole runs in processes of their own

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
    assert "remove that folder to resume from an earlier one" in message
    assert (stopped / "runs/small/summary.json").read_bytes() == before
    assert message.strip() in (stopped / "runs/small/run.log").read_text().replace("\n    ", "\n")


def test_a_flipped_bit_in_a_reference_stops_the_resume(stopped: Path) -> None:
    flip(stopped / "runs/small/references/policy/model.safetensors")
    message = refused(stopped)
    assert "runs/small/references/policy/model.safetensors is damaged" in message
    assert "--resume never" in message


def test_files_that_lost_lines_are_named(stopped: Path) -> None:
    folder = stopped / "runs/small"
    size = (folder / "metrics.jsonl").stat().st_size
    os.truncate(folder / "metrics.jsonl", size - 10)
    message = refused(stopped)
    assert f"runs/small/metrics.jsonl has {size - 10:,} bytes, and had {size:,}" in message
    assert f"checkpoints/{LAST}" in message
    assert (folder / "metrics.jsonl").stat().st_size == size - 10
