"""The sandbox: nothing is left behind, what is not available is refused, and the filter decides as it should."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardsmith.sandbox import ProgramLimits, Sandbox, SandboxError, SandboxGoneError, confine, probe
from rewardsmith.sandbox import sandbox as sandbox_module
from tests.engines.processes import alive
from tests.sandbox.programs import GREEDY, SHORT, outcome

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are isolated on Linux only")

ROOT = os.geteuid() == 0
START = sandbox_module._OPTIONS


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def gone(pids: list[int]) -> bool:
    """Return whether processes end within a while."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(map(alive, pids)):
            return True
        time.sleep(0.02)
    return False


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module.tempfile, "tempdir", str(tmp_path))
    before = children(os.getpid())
    tests = {"entry": "f", "calls": [[[], [None]]], "tolerance": 0}
    with Sandbox(["def f(): pass\nwhile True: pass"], SHORT, tests) as sandbox:
        assert list(tmp_path.iterdir())
        assert sandbox.run("").failed
        assert not sandbox.test(0)
    assert list(tmp_path.iterdir()) == []
    assert set(children(os.getpid())) <= set(before)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[list[int]]:
    """The processes of somebody who runs a program: himself, the host, and the program."""
    code = "from rewardsmith.sandbox import *\nSandbox(['while True: pass'], ProgramLimits(seconds=60)).run('')"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        pids = [process.pid]
        deadline = time.monotonic() + 60
        while len(pids) < 3 and time.monotonic() < deadline:
            pids = [process.pid]
            while found := children(pids[-1]):
                pids.append(found[0])
            time.sleep(0.02)
        yield pids
        process.kill()


@pytest.mark.parametrize("whom", [0, 1])
def test_a_program_dies_with_whoever_runs_it_and_the_folder_with_its_owner(running: list[int], whom: int) -> None:
    assert len(running) == 3
    assert len({os.getpgid(pid) for pid in running}) == 1
    folder = Path(os.readlink(f"/proc/{running[2]}/cwd"))
    assert folder.name.startswith("rewardsmith-")
    os.kill(running[whom], signal.SIGKILL)
    assert gone(running[1:])
    assert whom == 1 or not folder.exists()


def test_a_sandbox_that_breaks_says_so() -> None:
    with Sandbox(["print(1)"], ProgramLimits()) as sandbox:
        sandbox._host.kill()
        with pytest.raises(SandboxGoneError, match="is gone"):
            sandbox.run("")


def change_jail(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Run some code in the host before it starts."""
    options = tuple(option.replace("main()", f"import jail.confine\n{change}\nmain()") for option in START)
    monkeypatch.setattr(sandbox_module, "_OPTIONS", options)


def test_isolation_that_is_not_available_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    change_jail(monkeypatch, "jail.confine.why_unsupported = lambda: 'there is no filter'")
    for isolation in ("full", "syscalls"):
        with pytest.raises(SandboxError, match='there is no filter; isolation = "limits"'):
            outcome("print(1)", allowed=ProgramLimits(isolation=isolation))
    assert outcome("print(1)", allowed=ProgramLimits(isolation="limits")).result == b"1\n"
    change_jail(monkeypatch, "def no(): raise OSError('the kernel refused')\njail.confine.install_filter = no")
    with pytest.raises(SandboxError, match="could not be confined: OSError: the kernel refused"):
        outcome("print(1)")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(OSError, match='on Linux only, and this is darwin; isolation = "limits"'):
        confine.prepare("full", "/tmp")


def test_a_machine_on_which_nothing_runs_is_not_the_programs_fault() -> None:
    with pytest.raises(SandboxError):
        probe(ProgramLimits(memory=8))
    probe(ProgramLimits())


LIMITED = ProgramLimits(seconds=0.4, isolation="limits")


def test_limits_alone_still_limit() -> None:
    for name in ("endless loop", "endless sleep", "one large object", "endless output", "fault"):
        program, end = GREEDY[name]
        assert end in outcome(program, allowed=LIMITED if "time" in end else ProgramLimits(isolation="limits")).failed


def test_limits_alone_leave_no_process_behind() -> None:
    program = (
        "import os, time\ntry: pid = os.fork()\nexcept OSError: pid = 0; print('none')\n"
        "else:\n    if pid == 0:\n        os.fork(); time.sleep(600)\n    print(pid)"
    )
    reply = outcome(program, allowed=ProgramLimits(isolation="limits")).result.split()
    assert reply == [b"none"] if not ROOT else gone([int(reply[0])])


def test_under_limits_alone_a_program_that_ends_its_host_has_failed() -> None:
    with Sandbox(["import os\nif input(): os.kill(os.getppid(), 9)\nprint(1)"], LIMITED) as sandbox:
        assert "nothing keeps the program from ending it" in sandbox.run("x").failed
        assert sandbox.run("").failed


def decide(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """Run the filter as the kernel would; return its decision."""
    own = confine._ARCHITECTURES[machine][1]
    data = (number, own if architecture is None else architecture, 0, 0)
    words = [*data, *(half for a in (*arguments, *[0] * 6)[:6] for half in (a & 0xFFFFFFFF, a >> 32))]
    program, at, value = confine.build_filter(machine, pid=77), 0, 0
    while True:
        operation, true, false, operand = program[at]
        at += 1
        if operation == confine._RETURN:
            return operand
        if operation == confine._LOAD:
            value = words[operand // 4]
        else:
            holds = value == operand if operation == confine._EQUAL else bool(value & operand)
            at += true if holds else false


ALLOW, DENY, MISSING, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x80000000


DECISIONS = [
    # numbers of the call on x86_64 and aarch64, arguments, decision
    (0, 63, (), ALLOW), (231, 94, (), ALLOW), (100_000, 100_000, (), DENY),  # read, exit_group, an unknown one
    (257, 56, (0, 0, 0o2000000), ALLOW), (257, 56, (0, 0, 1), DENY), (257, 56, (0, 0, 2), DENY),  # openat
    (257, 56, (0, 0, 0o100), DENY), (257, 56, (0, 0, 0o1000), DENY), (257, 56, (0, 0, 0o20200000), DENY),
    (56, 220, (0x3D0F00,), ALLOW), (56, 220, (17,), DENY), (56, 220, (0x3D0F00 | 0x20000000,), DENY),  # clone
    (435, 435, (), MISSING), (437, 437, (), MISSING),  # clone3, openat2
    (62, 129, (77, 9), ALLOW), (62, 129, (78, 9), DENY), (62, 129, (0, 9), DENY), (62, 129, (0xFFFFFFFF, 9), DENY),
    (234, 131, (77, 77, 6), ALLOW), (234, 131, (78, 78, 6), DENY),  # tgkill
    (302, 261, (0,), ALLOW), (302, 261, (78,), DENY),  # prlimit64
    (41, 198, (2, 1), DENY), (59, 221, (), DENY), (101, 117, (), DENY),  # socket, execve, ptrace
    (72, 25, (0, 8, 1), DENY), (16, 29, (0, 0x5412), DENY),  # F_SETOWN, a character into a terminal
]  # fmt: skip


def test_the_filter_decides_alike_on_both_architectures() -> None:
    for x86_64, aarch64, arguments, decision in DECISIONS:
        assert decide("x86_64", x86_64, *arguments) == decision, (x86_64, arguments)
        assert decide("aarch64", aarch64, *arguments) == decision, (aarch64, arguments)


def test_foreign_architectures_are_killed() -> None:
    assert decide("x86_64", 0, architecture=0x40000003) == KILL  # i386
    assert decide("aarch64", 63, architecture=0x40000028) == KILL  # arm
    assert decide("x86_64", 0x40000000) == DENY  # x32
