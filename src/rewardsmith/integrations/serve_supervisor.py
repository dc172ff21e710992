"""Several processes that serve one listening socket; one that dies is started again."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0
"""Seconds before a dead worker is started again: doubled each time, up to the second."""

STEADY = 60.0
"""Seconds after which a worker counts as healthy, and the pause begins from the first again."""


READY = "ready"
"""The file that a worker makes in their folder when it is ready."""


class Supervisor:
    """Starts the workers, passes signals on, and starts again what dies.

    All workers accept from the one socket that the supervisor has bound: while a worker is down, its connections go to
    the others, and those that wait to be accepted are not lost with it.
    """

    def __init__(self, command: Sequence[str], listening: socket.socket, count: int, folder: Path) -> None:
        self._command, self._listening, self._count = command, listening, count
        self._ready = folder / READY
        self._processes: dict[int, Process] = {}
        self._stopping = asyncio.Event()
        self._status = 0

    async def run(self) -> int:
        """Serve until a signal comes; return the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        await asyncio.gather(*map(self._keep, range(self._count)))
        return self._status

    def _stop(self) -> None:
        """Let the workers drain; called again, let them end at once."""
        self._stopping.set()
        self._listening.close()  # the workers have it still
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.terminate()

    async def _keep(self, number: int) -> None:
        """Keep one worker running."""
        pause, mode = FIRST_PAUSE, "first"
        while not self._stopping.is_set():
            begun = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                *self._command, str(number), mode,
                stdin=asyncio.subprocess.PIPE,  # it ends when the supervisor does
                pass_fds=(self._listening.fileno(),),
                start_new_session=True,  # Ctrl-C reaches the supervisor alone
            )  # fmt: skip
            self._processes[number] = process
            if self._stopping.is_set():  # the signal came while it was started
                process.terminate()
            status = await process.wait()
            if self._stopping.is_set():
                self._status = self._status or int(status != 0)
                return
            if status == 2 and not self._ready.exists():  # a mistake of the user, which it has reported
                self._status = 2
                self._stop()
                return
            mode = "again"
            pause = FIRST_PAUSE if time.monotonic() - begun >= STEADY else pause
            sys.stderr.write(f"worker {number} (pid {process.pid}) ended with status {status}; again in {pause:g} s\n")
            sys.stderr.flush()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            pause = min(2 * pause, MAX_PAUSE)
