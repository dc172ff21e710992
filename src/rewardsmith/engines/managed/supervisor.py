"""Runs a server, and ends all its processes with the trainer.

    python -I -S supervisor.py PARENT GRACE COMMAND...

It runs as a file and imports nothing of ours, so that it starts at once. Its standard input is a pipe that is closed
when the trainer ends. A forked process may hold a copy of the pipe; therefore the parent's id is checked too.

- The server ends: its children are ended too; the exit status is the server's (128 + n for signal n).
- The trainer ends, or this process gets a signal: the server gets SIGTERM, after GRACE seconds SIGKILL. Status 0.
- This process is killed: the kernel kills the server (Linux), and the trainer kills the process group.

Orphans of the server are adopted (Linux), so that they are found in whatever session they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

POLL = 0.2  # seconds between two checks of the server and the parent
ORPHAN_GRACE = 1.0  # seconds that the children of a server that has ended have to end
KILL_TIMEOUT = 10.0  # seconds after which a process that cannot be killed is left to the system
_LINUX = sys.platform == "linux"
_PDEATHSIG, _CHILD_SUBREAPER = 1, 36  # options of prctl(2)


class _Supervisor:
    def __init__(self, parent: int, grace: float) -> None:
        self._parent = parent
        self._grace = grace
        self._stopping = False
        self._server = 0
        self._status: int | None = None

    def run(self, command: list[str]) -> int:
        """Run the server; return the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        _prctl(_CHILD_SUBREAPER, 1)
        own = os.getpid()
        try:
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                preexec_fn=lambda: _die_with(own),  # noqa: PLW1509 there are no threads here
            )
        except (OSError, subprocess.SubprocessError) as error:
            sys.stderr.write(f"{command[0]} cannot be started: {error}\n")
            return 127
        self._server = server.pid
        while self._reap() and self._status is None and not self._should_stop():
            pass
        server.returncode = 0  # it is waited for here, not by its object
        status = self._status
        self._end_all(self._grace if status is None else ORPHAN_GRACE)
        return 0 if status is None else status if status >= 0 else 128 - status

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _should_stop(self) -> bool:
        """Wait a little; return whether the trainer is gone or wants to stop."""
        readable, _, _ = select.select([0], [], [], POLL)
        closed = bool(readable) and not os.read(0, 1 << 10)
        return closed or self._stopping or os.getppid() != self._parent

    def _reap(self) -> bool:
        """Reap children that have ended; return whether there are others."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._server:
                    self._status = os.waitstatus_to_exitcode(status)
        return False

    def _end_all(self, grace: float) -> None:
        """End all descendants: first SIGTERM for the server, then for its orphans, then SIGKILL."""
        signalled: set[int] = set()
        until = time.monotonic() + grace
        while self._reap() and time.monotonic() < until:
            for pid in _children(self._server) - signalled:
                _kill(pid, signal.SIGTERM)
                signalled.add(pid)
            time.sleep(0.02)
        until = time.monotonic() + KILL_TIMEOUT
        while self._reap() and time.monotonic() < until:
            for pid in _children(self._server):
                _kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        if not _LINUX:
            os.killpg(0, signal.SIGKILL)  # the last act: this process is in the group too


def _children(server: int) -> set[int]:
    """Return the children with the adopted ones; only the server where the system does not tell."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}
    except (OSError, ValueError):
        return {server}


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    _prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(_Supervisor(int(sys.argv[1]), float(sys.argv[2])).run(sys.argv[3:]))
