"""Runs a server, and sees to it that nothing of it outlives the trainer.

    python -I -S supervisor.py PARENT GRACE COMMAND...

It is run as a plain file, and imports nothing of ours: so it starts in a moment, whatever the trainer has loaded. Its
standard input is a pipe that nobody writes to; when the trainer ends, however it ends, the pipe is closed. A process
that the trainer forked may hold a copy of it, and therefore this one also looks who its parent is.

- The server ends: what it left running is ended too, and the exit status is the server's (128 + n for signal n).
- The trainer ends or hangs up, or this process is told to end: the server gets SIGTERM, as if a user had stopped it.
  What is still there after GRACE seconds is killed. The exit status is 0.
- This process is killed: the kernel kills the server (Linux), and the trainer kills the process group that they share.

Processes that the server started and lost are adopted (Linux), so that none slips away, whatever session it is in.
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

LOOK = 0.2
"""Seconds between two looks at the server and at the parent."""

LEFTOVERS = 1.0
"""Seconds that the children of a server which has ended have to end."""

STUCK = 10.0
"""Seconds after which a process that cannot even be killed is left to the system."""

_LINUX = sys.platform == "linux"
_DIE_WITH_PARENT, _ADOPT = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)


class _Supervisor:
    def __init__(self, parent: int, grace: float) -> None:
        self._parent = parent
        self._grace = grace
        self._told_to_end = False
        self._server = 0
        self._status: int | None = None

    def run(self, command: list[str]) -> int:
        """Run the server; return the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        _prctl(_ADOPT, 1)
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
        while self._reap() and self._status is None and not self._alone():
            pass
        server.returncode = 0  # it is waited for here, not by its object
        ended = self._status
        self._end_all(self._grace if ended is None else LEFTOVERS)
        return 0 if ended is None else ended if ended >= 0 else 128 - ended

    def _end(self, *_: object) -> None:
        self._told_to_end = True

    def _alone(self) -> bool:
        """Wait a little; return whether it is time to end."""
        readable, _, _ = select.select([0], [], [], LOOK)
        hung_up = bool(readable) and not os.read(0, 1 << 10)
        return hung_up or self._told_to_end or os.getppid() != self._parent

    def _reap(self) -> bool:
        """Take note of children that have ended; return whether there are others."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._server:
                    self._status = os.waitstatus_to_exitcode(status)
        return False

    def _end_all(self, grace: float) -> None:
        """End all descendants: the server first, which may want to end its own; then what it left; then by force."""
        told: set[int] = set()
        until = time.monotonic() + grace
        while self._reap() and time.monotonic() < until:
            for pid in _children(self._server) - told:
                _kill(pid, signal.SIGTERM)
                told.add(pid)
            time.sleep(0.02)
        until = time.monotonic() + STUCK
        while self._reap() and time.monotonic() < until:
            for pid in _children(self._server):
                _kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        if not _LINUX:
            os.killpg(0, signal.SIGKILL)  # the last act: this process is of the group too


def _children(server: int) -> set[int]:
    """Return the process ids of the children, the adopted ones included; where the system does not tell, the server."""
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
    _prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(_Supervisor(int(sys.argv[1]), float(sys.argv[2])).run(sys.argv[3:]))
