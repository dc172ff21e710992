"""The trainer's end of the fork server and of the workers. No call here blocks longer than its limit.

A worker has processed hostile text, so its replies are JSON of bounded size; everything else is pickled.
"""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import TYPE_CHECKING, Any, Literal

from rewardsmith.errors import UserError
from rewardsmith.rewards.pool.fork_server import MAX_RESULT
from rewardsmith.types import MAX_DETAIL, Failure

if TYPE_CHECKING:
    from rewardsmith.rewards.pool.pool import Call

START_TIMEOUT, REPLY_TIMEOUT, STOP_TIMEOUT = 120, 30, 2
"""Seconds for the fork server to start, for it to reply or a message to arrive, and for it to end by itself."""

MAX_REPLY = 1 << 16
"""Bytes in a verdict; the detail of a failure is shorter, however it is escaped."""

_PROGRAM = (  # not -m: whatever this process can import, the other can too
    "import sys; sys.path[:] = sys.argv[2:];"
    "from rewardsmith.rewards.pool.fork_server import main; main(int(sys.argv[1]))"
)

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # a worker has one processor; threads would also make a fork unsafe
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",  # sympy's results can depend on the order of sets: the same verdict in every run
}

LossCause = Literal["timeout", "died", "malformed", "memory"]


class ForkServerError(Exception):
    """There is no worker: the fork server is gone, or could not fork."""


class WorkerLostError(Exception):
    """A worker cannot continue."""

    def __init__(self, cause: LossCause) -> None:
        super().__init__(cause)
        self.cause: LossCause = cause


class ForkServer:
    """The process that imports rules and forks workers. All methods may be called from any thread."""

    def __init__(self) -> None:
        self.gone = ""
        self._lock = threading.Lock()
        self._numbers: dict[bytes, int] = {}
        self._server, theirs = Pipe()
        with tempfile.TemporaryFile() as log:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), *_import_path()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    env=os.environ | _ENVIRONMENT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is for the trainer, which still needs its workers
                )
            try:
                self._reply(START_TIMEOUT)
            except ForkServerError:
                log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_DETAIL))
                errors = log.read(MAX_DETAIL).decode("utf-8", "replace").strip()
                raise ForkServerError(f"the worker processes did not start: {self.gone}: {errors}") from None

    def load(self, call: Call, limit: float) -> int:
        """Import a function, unless that was done before, and return its number; a `UserError` if that fails."""
        number = self._numbers.get(call.pickled)  # without the lock: another import may hold it for long
        if number is not None:
            return number
        with self._lock:
            if call.pickled not in self._numbers:
                try:
                    self._numbers[call.pickled] = self._request(limit, "load", _import_path(), call.pickled)
                except ForkServerError as error:
                    slow = isinstance(error.__cause__, TimeoutError)
                    why = f"importing it took more than {limit:g} s" if slow else error
                    raise UserError(f"{call.title} cannot be loaded: {why}") from None
            return self._numbers[call.pickled]

    def fork(self) -> Worker:
        """Return a new worker that has the functions loaded so far."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                pid = self._request(REPLY_TIMEOUT, "fork", descriptor=theirs.fileno())
            except ForkServerError:
                ours.close()
                raise
            return Worker(self, pid, ours, len(self._numbers))

    def end(self, pid: int) -> str:
        """Kill a worker with everything it started, and return how it ended: `signal 11`, `exit 3`."""
        with self._lock:
            return str(self._request(REPLY_TIMEOUT, "end", pid))

    def close(self) -> None:
        """End the fork server and all workers."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()  # it hangs in an import
        with self._lock:
            self._reap()

    def abandon(self) -> None:
        """Close the socket in a fork of the trainer, which is not the server's parent."""
        self.gone = "it belongs to another process"
        self._server.close()
        self.process.returncode = 0

    def _request(self, timeout: float, *request: Any, descriptor: int | None = None) -> Any:
        if self.gone:
            raise ForkServerError(self.gone)
        try:
            self._server.send(request)
            if descriptor is not None:
                send_handle(self._server, descriptor, self.process.pid)
        except OSError as error:
            self._reap()
            raise ForkServerError(self.gone) from error
        return self._reply(timeout)

    def _reply(self, timeout: float) -> Any:
        try:
            if not self._server.poll(timeout):
                raise TimeoutError
            value, error = self._server.recv()
        except (OSError, EOFError) as cause:
            self._reap()
            raise ForkServerError(self.gone) from cause
        if error:
            raise ForkServerError(error)
        return value

    def _reap(self) -> None:
        """Make sure that the process has ended, and set `gone`."""
        try:
            code: int | None = self.process.wait(STOP_TIMEOUT)  # the socket closes a moment before the process ends
        except subprocess.TimeoutExpired:
            code = None
            self.process.kill()
            self.process.wait()
        self._server.close()
        how = "was killed" if code is None else f"ended by signal {-code}" if code < 0 else f"ended with status {code}"
        self.gone = self.gone or f"the fork server {how}"


class Worker:
    """A process that scores texts, one after the other, by the functions that its server had loaded when it forked."""

    def __init__(self, server: ForkServer, pid: int, connection: socket.socket, functions: int) -> None:
        self.server = server
        self.functions = functions
        self.served = 0
        self.recycled = False  # it ends itself if it has grown, has served long, or its rule left something running
        self._pid = pid
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # a message may stop in the middle
            connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", REPLY_TIMEOUT, 0))
        self._connection: Connection[Any, Any] = Connection(connection.detach())

    def is_waiting(self) -> bool:
        """Return whether it waits for a task: it has neither ended nor written anything."""
        return not self._connection.poll()

    def run(self, task: tuple[int, int, list[tuple[bytes, str]]], deadline: float, *, is_rule: bool) -> Iterator[Any]:
        """Yield the outcome of each text of a task; each may take `deadline` seconds. Stops early if recycled."""
        try:
            self._connection.send(task)
            for position in range(len(task[2])):
                if not self._connection.poll(deadline):
                    raise WorkerLostError("timeout")
                reply = json.loads(self._connection.recv_bytes(MAX_REPLY if is_rule else MAX_RESULT))
                outcome, self.recycled = _parse_outcome(reply, position, is_rule=is_rule)
                self.served += 1
                yield outcome
                if self.recycled:
                    return
        except (EOFError, ConnectionError):
            raise WorkerLostError("died") from None
        except (OSError, ValueError, TypeError, RecursionError):
            raise WorkerLostError("malformed") from None

    def end(self) -> str | None:
        """Kill it with everything it started; return how it ended, None if its fork server is gone too."""
        self._connection.close()
        try:
            return self.server.end(self._pid)
        except ForkServerError:
            return None


def _parse_outcome(reply: Any, position: int, *, is_rule: bool) -> tuple[Any, bool]:
    """Return the outcome, and whether the worker ends itself; ValueError if the reply is malformed."""
    match reply:
        case [int(at), bool(recycle), "value", value] if at == position:
            if not is_rule or (isinstance(value, float) and math.isfinite(value)):
                return value, recycle
        case [int(at), bool(recycle), "failure", str(kind), str(detail)] if at == position:
            return Failure(kind, detail), recycle  # type: ignore[arg-type]  # Failure checks the kind
        case [int(at), True, "memory"] if at == position:
            raise WorkerLostError("memory")
    raise ValueError("not an outcome")


def _import_path() -> list[str]:
    """Return sys.path for a process with another current folder."""
    return [os.path.abspath(folder) for folder in sys.path if isinstance(folder, str)]
