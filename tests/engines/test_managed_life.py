"""A server dies, or the program that started it does: nothing is left behind, and the run goes on. Real processes."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardsmith.engines.managed import ManagedModel
from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError
from tests.engines.call_helpers import run_async
from tests.engines.processes import alive, eventually
from tests.engines.test_managed import managed, pid_of, question

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def family(folder: Path) -> list[int]:
    """Return the process ids of the server and of its child, which has a session of its own."""
    file = folder / "pids"
    eventually(lambda: file.exists() and len(file.read_text().split()) == 2)
    return [int(pid) for pid in file.read_text().split()]


def supervisor_of(server: int) -> int:
    return int(Path(f"/proc/{server}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()[1])


# ---- the program ends ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def trainer(folder: Path, way: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.engines.trainer_with_server", str(folder), way]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("way", "number"),
    [
        ("waits", signal.SIGKILL),
        ("starting", signal.SIGINT),
        ("raises", None),
        pytest.param("stubborn", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("waits", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("starting", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("leaves", None, marks=pytest.mark.slow),
    ],
)
def test_no_process_outlives_the_program(tmp_path: Path, way: str, number: int | None) -> None:
    with trainer(tmp_path, way) as process:
        pids = family(tmp_path)
        pids.append(supervisor_of(pids[0]) if number else 0)
        if number is not None:
            assert all(alive(pid) for pid in pids)
            process.send_signal(number)
        process.wait(60)
    eventually(lambda: not any(alive(pid) for pid in pids if pid))


@pytest.mark.slow
def test_a_forked_process_that_lives_on_does_not_keep_the_server(tmp_path: Path) -> None:
    with trainer(tmp_path, "forked") as process:
        pids = family(tmp_path)
        process.kill()
        process.wait(60)
        forked = int((tmp_path / "forked").read_text())
        try:
            eventually(lambda: not any(alive(pid) for pid in pids))
            assert alive(forked)
        finally:
            os.kill(forked, signal.SIGKILL)


@run_async
async def test_ctrl_c_in_a_terminal_does_not_reach_the_server(tmp_path: Path) -> None:
    model = managed(tmp_path, "--child", str(tmp_path / "pids"))
    await model.check()
    server, _ = family(tmp_path)
    assert os.getsid(server) != os.getsid(0)  # a terminal sends it to the processes of its own session
    assert os.getpgid(server) == supervisor_of(server)
    await model.close()


# ---- the server ends -------------------------------------------------------------------------------------------------


async def killed(model: ManagedModel, pid: int) -> None:
    """Kill the server, and wait until the model knows."""
    os.kill(pid, signal.SIGKILL)
    while model.is_up:
        await asyncio.sleep(0.02)


@run_async
async def test_a_server_that_was_killed_is_started_again(tmp_path: Path) -> None:
    log: list[str] = []
    model = managed(tmp_path, "--child", str(tmp_path / "pids"), log=log)
    try:
        first = await pid_of(model)
        _, child = family(tmp_path)
        waiting = [asyncio.create_task(model.chat(question("wait 30"))) for _ in range(4)]
        await asyncio.sleep(0.3)
        os.kill(first, signal.SIGKILL)
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, ModelCallError)
            assert result.kind == "unreachable"
        await asyncio.gather(*(model.check() for _ in range(5)))
        assert not alive(child)
        second = await pid_of(model)
        assert second != first
        assert alive(second)
        assert any("judge: the server ended by signal 9 (SIGKILL); restart 1 of 2" in line for line in log)
        assert sum("starting a server" in line for line in log) == 2
        assert "started with" in (tmp_path / "judge.log.1").read_text()
    finally:
        await model.close()


@run_async
async def test_a_server_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    model = managed(tmp_path, restarts=1)
    try:
        await killed(model, await pid_of(model))
        await killed(model, await pid_of(model))
        for _ in range(2):
            with pytest.raises(UserError, match=r"SIGKILL\), after 1 restarts \(restarts\)"):
                await model.check()
        with pytest.raises(ModelCallError) as caught:
            await model.chat(question())
        assert caught.value.kind == "crashed"
    finally:
        await model.close()


@run_async
async def test_a_server_that_is_started_again_with_other_weights_is_another_model(tmp_path: Path) -> None:
    weights = tmp_path / "judge.gguf"
    weights.write_bytes(b"one")

    model = managed(tmp_path, model=str(weights))
    try:
        pid, before = await pid_of(model), await model.identity()
        weights.write_bytes(b"two")
        assert await model.identity() == before  # it has the first ones
        await killed(model, pid)
        await model.check()
        assert await model.identity() != before
    finally:
        await model.close()


@run_async
async def test_a_supervisor_that_was_killed_takes_the_server_along(tmp_path: Path) -> None:
    model = managed(tmp_path)
    try:
        server = await pid_of(model)
        await killed(model, supervisor_of(server))
        eventually(lambda: not alive(server))
        assert await pid_of(model) != server
    finally:
        await model.close()
