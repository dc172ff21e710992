"""The trainer's end of the fork server and of the workers. No call here blocks longer than its limit."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from rewardsmith.errors import UserError
from rewardsmith.rewards.pool.calls import Call, JsonResult
from rewardsmith.rewards.pool.channel import MAX_REPLY, MAX_RESULT, as_socket, connect, decode_reply
from rewardsmith.types import MAX_DETAIL, Failure, Score

START_TIMEOUT, REPLY_TIMEOUT, STOP_TIMEOUT = 120, 30, 2
"""Seconds for the fork server to start, for it or a worker to reply, and for the server to end by itself."""

POLL_INTERVAL = 0.25
"""Seconds between two checks of a worker, or an eighth of the deadline if that is less."""

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

LossCause = Literal["before begin", "timeout", "died", "malformed", "memory"]


class ForkServerError(Exception):
    """There is no worker: the fork server is gone, or could not fork."""

    def __init__(self, detail: str, *, timed_out: bool = False) -> None:
        super().__init__(detail)
        self.timed_out = timed_out


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
        ours, theirs = socket.socketpair()
        self._server = connect(ours, REPLY_TIMEOUT)
        with tempfile.TemporaryFile() as log:
            try:
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
            except OSError as error:
                self._server.close()
                raise ForkServerError(f"the worker processes did not start: {error}") from None
            try:
                self._reply(START_TIMEOUT)
            except (OSError, EOFError, ValueError):
                self._reap()
                log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_DETAIL))
                errors = log.read(MAX_DETAIL).decode("utf-8", "replace").strip()
                raise ForkServerError(f"the worker processes did not start: {self.gone}: {errors}") from None

    def load(self, call: Call, limit: float) -> int:
        """Import a function, unless that was done before, and return its number."""
        number = self._numbers.get(call.pickled)  # without the lock: another import may hold it for long
        if number is not None and not self.gone:
            return number
        with self._lock:
            if call.pickled not in self._numbers:
                status, value = self._request(("load", _import_path(), limit, call.pickled), limit)
                if status == "error":
                    raise UserError(f"{call.title} cannot be loaded: {value}")
                self._numbers[call.pickled] = value
            return self._numbers[call.pickled]

    def fork(self) -> Worker:
        """Return a new worker that has the functions loaded so far."""
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        with theirs, os.fdopen(write_end, "wb"), self._lock:
            functions = len(self._numbers)
            try:
                status, value = self._request(("fork",), REPLY_TIMEOUT, [theirs.fileno(), write_end])
                if status == "error":
                    raise ForkServerError(value)
            except ForkServerError:
                ours.close()
                os.close(read_end)
                raise
            return Worker(self, value, ours, read_end, functions)

    def end(self, pid: int) -> str:
        """Kill a worker with everything it started, and return how it ended: `signal 11`, `exit 3`."""
        with self._lock:
            status: str = self._request(("end", pid), REPLY_TIMEOUT)[1]
            return status

    def close(self) -> None:
        """End the fork server and all workers."""
        with contextlib.suppress(OSError), as_socket(self._server) as control:
            control.shutdown(socket.SHUT_RDWR)  # also wakes a thread that waits for a reply
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT)
        self.process.kill()  # it may hang in an import
        with self._lock:
            self._reap()

    def abandon(self) -> None:
        """Close the socket in a fork of the trainer, which is not the server's parent."""
        self.gone = "it belongs to another process"
        self._server.close()
        self.process.returncode = 0

    def _request(self, request: tuple[Any, ...], timeout: float, descriptors: Sequence[int] = ()) -> list[Any]:
        if self.gone:
            raise ForkServerError(self.gone)
        try:
            self._server.send_bytes(pickle.dumps(request))
            if descriptors:
                with as_socket(self._server) as control:
                    socket.send_fds(control, [b"!"], descriptors)
            return self._reply(timeout)
        except (OSError, EOFError, ValueError) as error:
            self._reap()
            raise ForkServerError(self.gone, timed_out=isinstance(error, TimeoutError)) from None

    def _reply(self, timeout: float) -> list[Any]:
        if not self._server.poll(timeout):
            raise TimeoutError
        return decode_reply(self._server.recv_bytes(MAX_REPLY))

    def _reap(self) -> None:
        """Make sure that the process has ended, and set `gone`."""
        try:
            code: int | None = self.process.wait(0.5)  # the socket closes a moment before the process ends
        except subprocess.TimeoutExpired:
            code = None
            self.process.kill()
            self.process.wait()
        self._server.close()
        how = "was killed" if code is None else f"ended by signal {-code}" if code < 0 else f"ended with status {code}"
        self.gone = self.gone or f"the fork server {how}"


class Worker:
    """A process that scores texts, one after the other.

    Attributes:
        server: the fork server it comes from.
        functions: how many loaded functions it has.
        served: how many texts it has scored.
        recycled: it has ended itself, because it has grown, has served long, or its rule left something running.
    """

    def __init__(
        self, server: ForkServer, pid: int, connection: socket.socket, wakeup_pipe: int, functions: int
    ) -> None:
        self.server = server
        self.functions = functions
        self.served = 0
        self.recycled = False
        self._pid = pid
        self._connection = connect(connection, REPLY_TIMEOUT)
        self._wakeup_pipe = wakeup_pipe
        self._replies, self._wakeups = select.poll(), select.poll()
        self._replies.register(self._connection.fileno(), select.POLLIN)
        self._wakeups.register(wakeup_pipe, select.POLLIN)

    def is_waiting(self) -> bool:
        """Return whether it waits for a task: it has neither ended nor written anything."""
        return not self._replies.poll(0)

    def run(self, task: bytes, count: int, deadline: float, *, is_rule: bool) -> Iterator[Score | JsonResult]:
        """Yield the outcomes of a task's texts, in order; each may take `deadline` seconds. Stops early if recycled."""
        try:
            self._connection.send_bytes(task)
            if self._receive(REPLY_TIMEOUT, MAX_REPLY) != ["begin"]:
                raise WorkerLostError("before begin")
        except (OSError, EOFError, ValueError):
            raise WorkerLostError("before begin") from None
        for position in range(count):
            try:
                reply = self._receive(deadline, MAX_REPLY if is_rule else MAX_RESULT)
                outcome, self.recycled = _parse_outcome(reply, position, is_rule=is_rule)
            except TimeoutError:
                raise WorkerLostError("timeout") from None
            except (EOFError, ConnectionError):
                raise WorkerLostError("died") from None
            except (OSError, ValueError, TypeError):
                raise WorkerLostError("malformed") from None
            self.served += 1
            yield outcome

    def end(self) -> str | None:
        """Kill it with everything it started; return how it ended, None if its fork server is gone too."""
        self._connection.close()
        os.close(self._wakeup_pipe)
        try:
            return self.server.end(self._pid)
        except ForkServerError:
            return None

    def _receive(self, timeout: float, max_bytes: int) -> list[Any]:
        """Return the next reply.

        The worker writes to the wake-up pipe only near the end of a task: waking this thread for each text would take
        a processor from the worker more often than a short text is worth.
        """
        until = time.monotonic() + timeout
        interval = min(timeout / 8, POLL_INTERVAL)
        while not self._replies.poll(0):
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if self._wakeups.poll(1000 * min(left, interval)) and not os.read(self._wakeup_pipe, 1 << 10):
                self._replies.poll(1000 * min(left, interval))  # the pipe is closed: mostly, the worker is dead
        return decode_reply(self._connection.recv_bytes(max_bytes))


def _parse_outcome(values: list[Any], position: int, *, is_rule: bool) -> tuple[Score | JsonResult, bool]:
    """Return the outcome, and whether the worker ends itself; ValueError if the reply is malformed."""
    match values:
        case ["result", int(at), value, bool(recycle)] if at == position and not is_rule:
            return JsonResult(value), recycle
        case ["value", int(at), float(value), bool(recycle)] if at == position and is_rule:
            return Score(value), recycle
        case ["failure", int(at), str(kind), str(detail), bool(recycle)] if at == position:
            return Score(failure=Failure(kind, detail)), recycle  # type: ignore[arg-type]  # Failure checks the kind
        case ["memory", int(at)] if at == position:
            raise WorkerLostError("memory")
    raise ValueError("not an outcome")


def _import_path() -> list[str]:
    """Return sys.path for a process with another current folder."""
    return [os.path.abspath(folder) for folder in sys.path if isinstance(folder, str)]
