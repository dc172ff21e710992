"""Running a program that nobody has read: the trusted side."""

from __future__ import annotations

import compileall
import json
import marshal
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

Isolation = Literal["full", "syscalls", "limits"]

_FOLDER = Path(__file__).parent
# The modules of the child import one another as a package of their own: nothing else of ours is loaded there.
_START = """
import sys
package = type(sys)("jail"); package.__path__ = [sys.argv[1]]; sys.modules["jail"] = package
from jail.host import main
main()
"""
# -s, -P, -S: no modules but the standard library's. Not -I, which would ignore the fixed seed of hashes.
_OPTIONS = ("-s", "-P", "-S", "-B", "-c", _START, str(_FOLDER))
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the order of a set does not change from one run to the next
    "MALLOC_ARENA_MAX": "1",  # threads do not reserve address space of their own, of which there is little
}
_CLOCK = 3  # how much longer than its processor time a test may take, on a shared machine
_GRACE = 10.0  # seconds that the host may be late


class SandboxError(Exception):
    """The sandbox cannot be set up, or broke: that is not the program's fault."""


class SandboxGoneError(SandboxError):
    """The host has ended, or hangs."""


class BrokenTestsError(Exception):
    """The tests cannot be run, whatever the program is."""


@dataclass(frozen=True)
class ProgramLimits:
    """What one program may use.

    Processor seconds for one test (three times that on the clock), seconds on the clock for all tests, MiB of address
    space, MiB that one test may print or return. Isolation "full" filters system calls and limits what can be read;
    "syscalls" leaves out the second; "limits" leaves out both.
    """

    seconds: float = 4.0
    total: float = 30.0
    memory: int = 512
    output: int = 4
    isolation: Isolation = "full"


@dataclass(frozen=True)
class RunOutcome:
    """What the program wrote, or the verdict of a test; b"" where it `failed`, which is the reason."""

    result: bytes = b""
    failed: str = ""


class Sandbox:
    """One program, and the processes in which it runs. A context: they are gone at its end."""

    def __init__(self, sources: Sequence[str], limits: ProgramLimits, tests: Mapping[str, Any] | None = None) -> None:
        if os.name != "posix" or not sys.executable:
            raise SandboxError("programs are run on Linux and macOS only, by a Python interpreter of its own")
        self._limits = limits
        self._end = time.monotonic() + limits.total
        with ExitStack() as stack:
            folder = os.path.realpath(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="rewardsmith-", ignore_cleanup_errors=True))
            )
            # A file without a name: the host hands it on to the tester, and never reads it.
            file = stack.enter_context(tempfile.TemporaryFile())
            file.write(json.dumps(tests, default=dict).encode())  # frozen tables too
            file.flush()
            try:
                self._host = subprocess.Popen(
                    [sys.executable, *_OPTIONS],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=folder,
                    env=_ENVIRONMENT,
                    pass_fds=(file.fileno(),),
                )
            except OSError as error:
                raise SandboxError(f"no interpreter could be started: {error}") from error
            pipes = (self._host.stdin, self._host.stdout, self._host.stderr)
            self._stdin, self._stdout, self._stderr = (pipe for pipe in pipes if pipe is not None)
            stack.callback(self._end_host)
            job = {
                "sources": list(sources),
                "folder": folder,
                "tests": file.fileno(),
                "memory": limits.memory << 20,
                "output": limits.output << 20,
                "total": limits.total,
                "isolation": limits.isolation,
            }
            self._exchange(job, limits.total)
            self._stack = stack.pop_all()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end_host(self) -> None:
        """Let the host end and collect its forks. Were it killed, they would die too, but become another's zombies."""
        with suppress(OSError):  # what was not written yet has no reader any more
            self._stdin.close()
        select.select([self._stdout], [], [], _GRACE)  # the end of its output is the last thing that it does
        self._host.kill()
        self._stdout.close()
        self._stderr.close()
        self._host.wait()

    def run(self, given: str) -> RunOutcome:
        """Run the program as a script that reads `given`; the result is what it wrote."""
        return self._outcome({"given": given.encode("utf-8", "replace")})

    def test(self, index: int) -> bool:
        """Return whether the program passes one of the tests; BrokenTestsError when no program could."""
        result = self._outcome({"index": index}).result
        if result.startswith(b"broken"):
            raise BrokenTestsError(result[len(b"broken") :].decode(errors="replace"))
        return result == b"pass"

    def _outcome(self, request: dict[str, Any]) -> RunOutcome:
        left = self._end - time.monotonic()
        if left <= 0:
            return RunOutcome(failed="not reached in time")
        limit = {"processor": self._limits.seconds, "clock": min(_CLOCK * self._limits.seconds, left)}
        try:
            reply = self._exchange(request | {"limit": limit}, limit["clock"])
        except SandboxGoneError as error:
            if self._limits.isolation != "limits":
                raise
            self._end = 0.0
            return RunOutcome(failed=f"{error}: nothing keeps the program from ending it")
        if reply.startswith(b"r"):
            return RunOutcome(result=reply[1:])
        return RunOutcome(failed=reply[1:].decode(errors="replace") or "it failed")

    def _exchange(self, message: dict[str, Any], seconds: float) -> bytes:
        """Return the host's reply to a message."""
        data = marshal.dumps(message)
        with suppress(OSError):  # it may be gone; its last message is still to be read
            self._stdin.write(len(data).to_bytes(4, "big") + data)
            self._stdin.flush()
        deadline = time.monotonic() + seconds + _GRACE
        reply = self._read(int.from_bytes(self._read(4, deadline), "big"), deadline)
        if reply.startswith(b"e"):
            raise SandboxError(reply[1:].decode(errors="replace"))
        return reply

    def _read(self, length: int, deadline: float) -> bytes:
        parts = []
        while length > 0:
            if not select.select([self._stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise SandboxGoneError("the host process does not reply")
            part = os.read(self._stdout.fileno(), min(length, 1 << 20))
            if not part:
                code = self._host.wait()
                errors = self._stderr.read(10_000).decode(errors="replace").strip()[-500:]
                raise SandboxGoneError(f"the host process is gone: status {code}, {errors}")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


_PROBE = "import decimal, threading\nprint(decimal.Decimal(input()) * 2)"


@cache
def probe(limits: ProgramLimits) -> None:
    """Raise SandboxError unless a harmless program runs under these limits; tried once per process.

    Without it, a machine on which nothing runs would call every program wrong.
    """
    compileall.compile_dir(_FOLDER, maxlevels=0, quiet=2)  # the child writes no files, so it would compile every time
    with Sandbox([_PROBE], limits) as sandbox:
        outcome = sandbox.run("2.5\n")
    if outcome.result.strip() != b"5.0":
        raise SandboxError(f"a program that should work does not ({outcome.failed or outcome.result!r})")
