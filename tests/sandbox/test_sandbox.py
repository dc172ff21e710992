"""The sandbox: what programs can do in it, and what they cannot."""

import os
import resource
import signal
import sys
from pathlib import Path

import pytest

from rewardsmith.sandbox import ProgramLimits, RunOutcome, Sandbox
from tests.sandbox.programs import GREEDY, ORDINARY, RAW, REFUSED, SHORT, attempt, outcome

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are isolated on Linux only")


def test_what_is_not_allowed_is_refused() -> None:
    replies = outcome("\n".join(map(attempt, REFUSED.values()))).result.decode().splitlines()
    assert len(replies) == len(REFUSED)
    for name, reply in zip(REFUSED, replies, strict=True):
        assert reply.startswith("PermissionError [Errno 1]"), name


def test_the_kernel_refuses_calls_of_the_c_library() -> None:
    calls = [f"print(c.{call}, ctypes.get_errno())" for call, _ in RAW.values()]
    replies = outcome("\n".join(["import ctypes; c = ctypes.CDLL(None, use_errno=True)", *calls])).result.decode()
    assert replies.splitlines() == [f"-1 {error}" for _, error in RAW.values()]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="32-bit calls of x86")
def test_calls_of_another_architecture_end_the_program() -> None:
    program = (
        "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('b814000000cd80c3'))\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()\nprint('alive')"
    )
    assert outcome(program) == RunOutcome(failed=f"it was ended by signal {int(signal.SIGSYS)}")


def test_a_shell_command_does_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    assert outcome(f"import os\nprint(os.system('touch {mark}') != 0)").result == b"True\n"
    assert not mark.exists()


def test_files_of_others_cannot_be_read() -> None:
    actions = [
        "open('/etc/passwd')", "open('/proc/self/maps')", "import os; open(f'/proc/{os.getppid()}/mem', 'rb')",
        "import os; open(f'/proc/{os.getppid()}/environ')", "import os; os.listdir('/')", f"open({__file__!r})",
    ]  # fmt: skip
    replies = outcome("\n".join(map(attempt, actions))).result.decode().splitlines()
    assert len(replies) == len(actions)
    assert all(reply.startswith("PermissionError [Errno 13]") for reply in replies)


def test_without_landlock_files_can_be_read_but_nothing_is_written() -> None:
    allowed = ProgramLimits(isolation="syscalls")
    assert outcome(attempt("open('/etc/passwd')"), allowed=allowed).result == b"done\n"
    assert outcome(attempt("open('x', 'w')"), allowed=allowed).result.startswith(b"PermissionError")


def test_no_capability_is_left() -> None:
    program = "print([l.split()[1] for l in open('/proc/self/status') if l.startswith(('CapPrm', 'CapEff', 'NoNew'))])"
    assert (
        outcome(program, allowed=ProgramLimits(isolation="syscalls")).result
        == f"{['0' * 16, '0' * 16, '1']}\n".encode()
    )


def test_limits_cannot_be_raised() -> None:
    raising = attempt("import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))")
    assert outcome(raising).result.startswith(b"ValueError")


@pytest.mark.parametrize(("program", "end"), GREEDY.values(), ids=GREEDY.keys())
def test_greedy_and_broken_programs_end(program: str, end: str) -> None:
    found = outcome(program, allowed=SHORT if "time" in end else None)
    assert end in found.failed
    assert found.result == b""


def test_a_fork_bomb_makes_no_process() -> None:
    bomb = (
        "import os\nmade = 0\nfor _ in range(999):\n  try: made += os.fork() > 0\n  except OSError: pass\nprint(made)"
    )
    assert outcome(bomb).result == b"0\n"


@pytest.mark.parametrize(("program", "written"), ORDINARY.values(), ids=ORDINARY.keys())
def test_ordinary_programs_work(program: str, written: str) -> None:
    if "RLIMIT_STACK" in program and resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY:
        pytest.skip("this user may not have a larger stack")
    assert outcome(program, "3\n1 2 3\n") == RunOutcome(written.encode())


def test_programs_see_a_clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "123")
    program = (
        "import os, sys\nprint(sorted(os.environ), os.listdir('.'), [p for p in sys.path if 'site-packages' in p])"
    )
    assert outcome(program).result == b"['LANG', 'MALLOC_ARENA_MAX', 'PATH', 'PYTHONHASHSEED'] [] []\n"


def test_a_program_inherits_no_open_file() -> None:
    looking = "import os\nfor n in range(3, 256):\n    try: os.fstat(n); print(n)\n    except OSError: pass"
    assert outcome(looking).result == b""


def test_the_order_of_a_set_is_the_same_in_every_run() -> None:
    program = "print({*map(str, range(100))})"
    assert outcome(program) == outcome(program)


def test_every_run_is_a_fresh_start() -> None:
    with Sandbox(["import builtins, math\nprint(math.pi)\nmath.pi = 3\nbuiltins.print = None"], SHORT) as sandbox:
        assert [sandbox.run("").result for _ in range(2)] == [b"3.141592653589793\n"] * 2


def test_after_a_hostile_program_the_next_run_is_as_ever() -> None:
    program = "x = input()\nwhile x == 'loop': pass\nif x == 'die': import os; os.abort()\nprint(x)"
    with Sandbox([program], SHORT) as sandbox:
        found = [sandbox.run(given).result for given in ("loop", "a", "die", "b")]
    assert found == [b"", b"a\n", b"", b"b\n"]


def test_a_program_that_cannot_be_loaded_fails_every_test() -> None:
    with Sandbox(["1 / 0"], ProgramLimits(), {"entry": "f", "calls": [[[], []]], "tolerance": 0}) as sandbox:
        for _ in range(2):
            assert "could not be loaded" in sandbox._outcome({"index": 0}).failed
            assert not sandbox.test(0)


def test_large_input_and_output_pass() -> None:
    given = "x" * 3_000_000
    assert outcome("print(input(), end='')", given).result == given.encode()


def test_what_is_not_reached_in_time_has_failed() -> None:
    with Sandbox(["import time\ntime.sleep(float(input()))"], ProgramLimits(seconds=5, total=1.0)) as sandbox:
        assert "more time" in sandbox.run("60").failed
        assert sandbox.run("0").failed == "not reached in time"
