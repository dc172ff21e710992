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
_PDEATHSIG, _CHILD_SUBREAPER = 1, 36  # options of prctl(2)


def supervise(parent: int, grace: float, command: list[str]) -> int:
    """Run the server; return the exit status."""
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: signals.append(received))
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
    while (status := server.poll()) is None and not signals and os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], POLL)
        if readable and not os.read(0, 1 << 10):  # the trainer has closed the pipe
            break
    server.returncode = 0  # from here on it is waited for with the others
    _end_all(server.pid, grace if status is None else ORPHAN_GRACE)
    return 0 if status is None else status if status >= 0 else 128 - status


def _end_all(server: int, grace: float) -> None:
    """End all descendants: first SIGTERM for the server, then for its orphans, then SIGKILL."""
    signalled: set[int] = set()
    begun = time.monotonic()
    while _reap() and (seconds := time.monotonic() - begun) < grace + KILL_TIMEOUT:
        for pid in _children(server):
            with contextlib.suppress(OSError):
                if seconds > grace:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in signalled:
                    os.kill(pid, signal.SIGTERM)
                    signalled.add(pid)
        time.sleep(0.02)
    if sys.platform != "linux":
        os.killpg(0, signal.SIGKILL)  # the last act: this process is in the group too


def _reap() -> bool:
    """Reap children that have ended; return whether there are others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _children(server: int) -> set[int]:
    """Return the children with the adopted ones; only the server where there is no /proc."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}
    except (OSError, ValueError):
        return {server}


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    _prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(supervise(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
