"""A disk that is full or cannot be written to: one message, status 2, and the last checkpoint stays."""

import importlib
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.config import import_name
from tests.runs.processes import assert_same, outcome, prepared, run

pytestmark = pytest.mark.slow  # whole runs in processes of their own

FULL = "is full. Make room and run the same command: it resumes from the last checkpoint, which is complete"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What comes of a run with room enough."""
    folder = prepared(tmp_path_factory.mktemp("whole"))
    assert run(folder)[0] == 0
    return outcome(folder / "runs/small")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A prepared folder on a disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting needs the rights of root")
    try:
        yield prepared(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(room: int) -> None:
    """Leave this many bytes on the disk of the current folder."""
    with Path("filling").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            file.truncate(file.tell() - room)


def fill_before(place: str, name: str, call: int = 1, room: int = 1 << 18) -> None:
    """Fill the disk before the `call`-th call of a function, as another program might."""
    owner = import_name(place) if ":" in place else importlib.import_module(place)
    before, calls = getattr(owner, name), 0

    def filling(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            fill(room)
        return before(*args, **kwargs)

    setattr(owner, name, filling)


FOLDER = "rewardsmith.runs.folder:RunFolder"


@pytest.mark.parametrize(
    ("when", "checkpoint"),
    [
        (("rewardsmith.engines.embedded.engine", "write_tensors", 2), "01-sft-000004"),  # the optimizer's state
        ((FOLDER, "save", 3), "01-sft-000005"),
        ((FOLDER, "keep", 2, 0), "01-sft-000012"),  # rollouts
        (("rewardsmith.trainers.reference:Reference", "begin"), "01-sft-000012"),
        (("rewardsmith.runs.run:Run", "_publish"), "03-evaluate-000001"),
    ],
)
def test_a_full_disk_stops_the_run_and_room_lets_it_resume(
    when: tuple[Any, ...], checkpoint: str, disk: Path, whole: dict[str, object]
) -> None:
    status, output = run(disk, set_up=partial(fill_before, *when))
    assert "Traceback" not in output
    assert status == 2, output
    assert f"error: the disk of 'runs/small' {FULL}" in output
    assert sorted(path.name for path in (disk / "runs/small/checkpoints").iterdir())[-1] == checkpoint
    (disk / "filling").unlink()
    status, output = run(disk)
    assert status == 0, output
    assert f"resuming from {checkpoint}" in output
    assert_same(outcome(disk / "runs/small"), whole)


def rollouts_on_a_full_device() -> None:
    from rewardsmith.runs.folder import RunFolder

    before = RunFolder.keep

    def keep(folder: RunFolder, *arguments: Any) -> None:
        folder._files["rollouts/policy.jsonl"] = Path("/dev/full").open("ab")  # noqa: SIM115 the folder closes it
        before(folder, *arguments)

    RunFolder.keep = keep  # type: ignore[method-assign]


def test_a_full_device_behind_a_growing_file(tmp_path: Path) -> None:
    """Where no disk can be mounted, a device that is always full does."""
    status, output = run(prepared(tmp_path), "--folder", "it", set_up=rollouts_on_a_full_device)
    assert "Traceback" not in output
    assert status == 2, output
    assert f"error: the disk of 'it' {FULL}" in output


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    prepared(tmp_path).joinpath("taken").touch()
    status, output = run(tmp_path, "--folder", "taken")
    assert status == 2
    assert "error: cannot write to the run folder 'taken': " in output
