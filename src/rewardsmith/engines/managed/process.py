"""A server's process, as the trainer sees it: started, looked at, ended; and the file with its messages."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rewardsmith.errors import UserError
from rewardsmith.storage import writing

GRACE = 5.0
"""Seconds that a server has to end by itself when it is told to."""

GOODBYE = GRACE + 12.0
"""Seconds after which a supervisor that has not ended is killed."""

TAIL = 30
"""Lines of the log that an error shows."""

_MARK = "REWARDSMITH_SERVER"
"""A variable that all processes of a server inherit, by which those can be found that nobody else knows any more."""

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_LAST_BYTES = 1 << 16
_LONGEST_LINE = 500
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Log:
    """The file with what a server writes; that of the start before is kept beside it, with `.1` at its end."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def renew(self) -> None:
        """Move what is there out of the way, and begin an empty file."""
        with writing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if self.file.exists():
                self.file.replace(self.file.with_name(f"{self.file.name}.1"))
            self.file.touch()

    def tail(self, lines: int = TAIL) -> list[str]:
        """Return the last lines that say something, without colours, progress bars and other controls."""
        try:
            with self.file.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _LAST_BYTES))
                text = file.read(_LAST_BYTES).decode("utf-8", "replace")
        except OSError:
            return []
        found = [_plain(line) for line in text.split("\n")]
        return [line for line in found if line][-lines:]


def _plain(line: str) -> str:
    shown = _COLOURS.sub("", line).rstrip("\r").rpartition("\r")[2]  # a progress bar: as it was left
    return _CONTROLS.sub(" ", shown)[:_LONGEST_LINE].strip()


class Process:
    """A server that runs under a supervisor (`supervisor.py`), and ends with this process, whatever happens to it.

    Args:
        command: of the server.
        environment: all its variables.
        log: where its messages go.

    Raises:
        UserError: if there is no interpreter for the supervisor, or no place for the log.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Log) -> None:
        if not sys.executable:
            raise UserError("a server needs a Python interpreter to be watched by, and sys.executable is empty")
        log.renew()
        self.command = shlex.join(command)
        self.log = log
        self._owner = os.getpid()
        self._mark = f"{_MARK}={secrets.token_hex(8)}"
        variables = {**environment, **dict([self._mark.split("=")])}
        with writing(log.file), log.file.open("ab") as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), str(self._owner), str(GRACE), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=variables,
                start_new_session=True,  # Ctrl-C is for the trainer, which still needs the server to finish its step
            )
        _running.add(self)

    def ended(self) -> str:
        """Return how it ended, such as `ended with status 1`; "" while it runs."""
        if self._popen.returncode is None:
            self._bury_group()
            self._popen.poll()
        code = self._popen.returncode
        if code is None:
            return ""
        _running.discard(self)
        self._close_pipe()
        number = -code if code < 0 else code - 128
        if number in set(signal.Signals):
            return f"ended by signal {number} ({signal.Signals(number).name})"
        return f"ended with status {code}"

    async def ends(self, within: float) -> bool:
        """Return whether it has ended, or does so within some seconds."""
        until = time.monotonic() + within
        while not self.ended() and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return bool(self.ended())

    def _bury_group(self) -> None:
        """Kill what a supervisor left behind that was killed itself.

        It is not waited for yet, so that the number of its group cannot be another's.
        """
        if sys.platform != "linux":
            return
        how = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if how is not None and how.si_code != os.CLD_EXITED:
            self._kill_group()
            _kill_marked(self._mark.encode())

    def _kill_group(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def hang_up(self) -> None:
        """Tell it to end, and do not wait."""
        self._close_pipe()
        if self._owner == os.getpid():
            self._popen.terminate()  # a process that was forked from this one may hold the pipe open
        else:
            self._popen.returncode = 0  # a copy in a forked process: not our child
            _running.discard(self)

    def _close_pipe(self) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):
            self._popen.stdin.close()

    async def stop(self) -> None:
        """End it, and return when all its processes are gone."""
        self.hang_up()
        until = time.monotonic() + GOODBYE
        while not self.ended():
            if time.monotonic() > until:
                self._kill_group()
            await asyncio.sleep(0.02)

    def stop_now(self) -> None:
        """As `stop`, for where there is no event loop any more."""
        self.hang_up()
        until = time.monotonic() + GOODBYE
        while not self.ended():
            if time.monotonic() > until:
                self._kill_group()
            time.sleep(0.02)


def _kill_marked(mark: bytes) -> None:
    """Kill the processes that have this variable: descendants of a server, in whatever group or session."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


_running: set[Process] = set()


@atexit.register
def _stop_all() -> None:
    """At the end of the program, tell all servers to end, then wait: their memory is free when the command returns."""
    for process in tuple(_running):
        process.hang_up()
    for process in tuple(_running):
        process.stop_now()
