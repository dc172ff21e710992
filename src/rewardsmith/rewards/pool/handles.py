"""The trainer's end of the nursery and of the workers. No call here blocks for longer than the limit it was given."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any, Literal

from rewardsmith.errors import UserError
from rewardsmith.rewards.pool.call import Call, Result
from rewardsmith.rewards.pool.wire import LONGEST_REPLY, LONGEST_RESULT, GarbledError, Inbox, framed, read_reply
from rewardsmith.types import MAX_DETAIL, Failure, Score

START, REPLY, BEGIN, GOODBYE = 120.0, 30.0, 30.0, 2.0
"""Seconds for the nursery to start, to reply, for a worker to begin, and for the nursery to end by itself."""

LOOK = 0.25
"""Seconds between two looks at a worker, or an eighth of the deadline if that is less."""

LONGEST = 1e6
"""Seconds in the longest deadline: a socket takes no more."""

_PROGRAM = (  # not -m: what this process can import, however it came to, the other can too
    "import sys; sys.path[:] = sys.argv[2:]; from rewardsmith.rewards.pool.nursery import main; main(int(sys.argv[1]))"
)

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # a worker has one processor; threads would also make a fork unsafe
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",  # the GPU is the trainer's
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",  # sympy's results can depend on the order of sets: the same verdict in every run
}


Cause = Literal["idle", "timeout", "died", "garbled", "memory"]
"""Why a worker cannot go on; `idle`: it was lost before it began."""


class UnavailableError(Exception):
    """No worker can be had: the nursery is gone, or could not make one.

    Attributes:
        late: True when the nursery did not reply in time and was killed for it.
    """

    def __init__(self, detail: str, *, late: bool = False) -> None:
        super().__init__(detail)
        self.late = late


class LostError(Exception):
    """A worker cannot go on.

    Attributes:
        cause: what happened.
    """

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause: Cause = cause


class Nursery:
    """The process that workers are forked from; see `nursery.py`."""

    def __init__(self) -> None:
        if not sys.executable:
            raise UnavailableError("rules need a Python interpreter to run in, and sys.executable is empty")
        self.gone = ""
        self._lock = threading.Lock()
        self._rules: dict[object, int] = {}
        self._workers: set[int] = set()
        self._inbox = Inbox()
        self._socket, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as log, theirs:
            try:
                self._process = _start(theirs, log)
            except OSError as error:
                self._socket.close()
                raise UnavailableError(f"the worker processes did not start: {error}") from None
            theirs.close()
            try:
                self._receive(START)
            except (OSError, GarbledError):
                self._bury()
                log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_DETAIL))
                said = log.read(MAX_DETAIL).decode("utf-8", "replace").strip()
                raise UnavailableError(f"the worker processes did not start: {self.gone}: {said}") from None

    def load(self, call: Call, limit: float) -> int:
        """Import a rule, unless that was done before, and return its number.

        Raises:
            UserError: if the rule cannot be imported.
            UnavailableError: if the nursery ended or was too late.
        """
        known = self._rules.get(call.key)  # without the lock: another rule's import may hold it for long
        if known is not None and not self.gone:
            return known
        with self._lock:
            if call.key in self._rules:
                return self._rules[call.key]
            request = ("load", _path(), call.name, call.version, call.modules, call.loader, call.pickled, limit)
            match self._ask(request, limit):
                case ["loaded", int(number)]:
                    self._rules[call.key] = number
                    return number
                case ["error", str(detail)]:
                    raise UserError(f"{call.title} cannot be loaded: {detail}")
                case other:
                    raise UnavailableError(f"an odd reply: {other}")

    def fork(self) -> Worker:
        """Return a new worker that knows the rules loaded so far."""
        ours, theirs = socket.socketpair()
        bell, rope = os.pipe()
        with theirs, os.fdopen(rope, "wb"), self._lock:
            known = len(self._rules)
            try:
                match self._ask(("fork",), REPLY, [theirs.fileno(), rope]):
                    case ["forked", int(pid)] if pid > 1:
                        self._workers.add(pid)
                        return Worker(self, pid, ours, bell, known)
                    case other:
                        raise UnavailableError(str(other[-1]))
            except UnavailableError:
                ours.close()
                os.close(bell)
                raise

    def end(self, pid: int) -> str:
        """Kill a worker with all that it started, and return how it ended: `signal 11`, `exit 3`."""
        with self._lock:
            match self._ask(("end", pid), REPLY):
                case ["ended", str(how)]:
                    self._workers.discard(pid)
                    return how
                case other:
                    raise UnavailableError(str(other[-1]))

    def close(self) -> None:
        """End the nursery and all workers."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # also wakes a thread that waits for a reply
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GOODBYE)
        self._process.kill()  # it may hang in an import
        with self._lock:
            self._bury()

    def abandon(self) -> None:
        """Forget the nursery without ending it, in a process that was forked from the trainer."""
        self.gone = "it belongs to another process"
        self._socket.close()
        self._process.returncode = 0  # not our child

    def _ask(self, request: tuple[Any, ...], limit: float, descriptors: Sequence[int] = ()) -> list[Any]:
        if self.gone:
            raise UnavailableError(self.gone)
        data = framed(pickle.dumps(request))
        try:
            self._socket.settimeout(min(limit, LONGEST))
            if descriptors:
                socket.send_fds(self._socket, [data], descriptors)
            else:
                self._socket.sendall(data)
            return self._receive(limit)
        except (OSError, GarbledError) as error:
            self._bury()
            raise UnavailableError(self.gone, late=isinstance(error, TimeoutError)) from None

    def _receive(self, limit: float) -> list[Any]:
        until = time.monotonic() + min(limit, LONGEST)
        while (body := self._inbox.take()) is None:
            _receive_some(self._socket, self._inbox, until)
        return read_reply(body)

    def _bury(self) -> None:
        """Make sure that the process is gone, and say how it went."""
        try:
            code: int | None = self._process.wait(0.5)  # a socket closes a moment before its process ends
        except subprocess.TimeoutExpired:
            code = None
            self._process.kill()
            self._process.wait()
        self._socket.close()
        if code != 0:  # else it has ended its workers, and what they had started, itself
            for pid in self._workers:
                _end_group(pid)
        how = "was ended" if code is None else f"ended by signal {-code}" if code < 0 else f"ended with status {code}"
        self.gone = self.gone or f"the process that rules are loaded in {how}"


def _start(control: socket.socket, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM, str(control.fileno()), *_path()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        env=os.environ | _ENVIRONMENT,
        pass_fds=[control.fileno()],
        start_new_session=True,  # Ctrl-C is for the trainer, which needs its workers to finish the step
    )


class Worker:
    """A process that scores answers, one after the other.

    Attributes:
        nursery: where it comes from.
        pid: its process id, which is also that of its process group.
        known: how many rules it knows.
        served: how many answers it has scored.
        tired: whether it has ended itself: it has grown, served long, or its rule left something running.
    """

    def __init__(self, nursery: Nursery, pid: int, connection: socket.socket, bell: int, known: int) -> None:
        self.nursery = nursery
        self.pid = pid
        self.known = known
        self.served = 0
        self.tired = False
        self._socket = connection
        self._inbox = Inbox()
        self._bell = open(bell, "rb", buffering=0)  # noqa: SIM115 closed with the socket
        self._ears = select.poll()
        self._ears.register(bell, select.POLLIN)

    def idle(self) -> bool:
        """Return whether it waits for a task: it has not hung up, nor said anything unasked."""
        self._socket.settimeout(0)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def answers(self, task: bytes, count: int, deadline: float, *, results: bool = False) -> Iterator[Score | Result]:
        """Yield the scores of a task's `count` answers, in order; each may take `deadline` seconds.

        A worker that gets tired stops early. `results` says that the function is no rule.

        Raises:
            LostError: if the worker does not get to the end.
        """
        pause = min(deadline / 8, LOOK)
        self._inbox.longest = LONGEST_RESULT if results else LONGEST_REPLY
        try:
            self._socket.settimeout(BEGIN)
            self._socket.sendall(framed(task))
            if self._next(BEGIN, pause) != ["begin"]:
                raise LostError("idle")
        except (OSError, GarbledError):
            raise LostError("idle") from None
        for position in range(count):
            try:
                outcome, self.tired = _read_outcome(self._next(deadline, pause), position, results=results)
            except TimeoutError:
                raise LostError("timeout") from None
            except OSError:
                raise LostError("died") from None
            except GarbledError:
                raise LostError("garbled") from None
            self.served += 1
            yield outcome
            if self.tired:
                return

    def end(self) -> str | None:
        """Kill it with all that it started; return how it ended, or None when its nursery is gone too."""
        self.abandon()
        try:
            return self.nursery.end(self.pid)
        except UnavailableError:
            return None

    def abandon(self) -> None:
        """Forget the worker without ending it, as a process that was forked from the trainer must."""
        self._socket.close()
        self._bell.close()

    def _next(self, limit: float, pause: float) -> list[Any]:
        """Return the next message, which may take `limit` seconds.

        The worker rings towards the end of a task only. Waking up for each answer would take a processor from it more
        often than a short answer is worth; a look after each `pause` is enough to see an answer that takes too long.
        """
        until = time.monotonic() + min(limit, LONGEST)
        while (body := self._inbox.take()) is None:
            try:
                _receive_some(self._socket, self._inbox, 0.0)
            except TimeoutError:
                left = until - time.monotonic()
                if left > 0 and self._inbox.begun:  # the rest of a long message is on its way
                    _receive_some(self._socket, self._inbox, until)
                    continue
                if left <= 0:
                    raise
                if self._ears.poll(1000 * min(left, pause)) and not self._bell.read(1 << 10):
                    _receive_some(self._socket, self._inbox, until)  # it cannot ring any more; mostly, it is dead
        return read_reply(body)


def _end_group(leader: int) -> None:
    """Kill what a worker had started that died with its nursery.

    The number of a group is not given to a new process while the group has members; so where it is that of a living
    process, the group was empty and the number is another's by now.
    """
    for _ in range(20):
        if sys.platform != "linux" or _is_dead(leader):
            with contextlib.suppress(OSError):
                os.killpg(leader, signal.SIGKILL)
            return
        time.sleep(0.01)  # it was killed a moment ago


def _is_dead(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(") ")[2][:1] in ("Z", "X")
    except OSError:
        return True


def _receive_some(connection: socket.socket, inbox: Inbox, until: float) -> None:
    # What has arrived counts, even where this thread looks only after the limit: hence never less than 0, a last look.
    connection.settimeout(max(0.0, until - time.monotonic()))
    try:
        data = connection.recv(1 << 16)
    except BlockingIOError:
        raise TimeoutError from None
    if not data:
        raise ConnectionResetError
    inbox.add(data)


def _read_outcome(values: list[Any], position: int, *, results: bool) -> tuple[Score | Result, bool]:
    """Return the score or result, and whether the worker is tired. Nothing that a worker says is taken on trust."""
    try:
        match values:
            case ["result", int(at), value, bool(tired)] if at == position and results:
                return Result(value), tired
            case ["value", int(at), float(value), bool(tired)] if at == position and not results:
                return Score(value), tired
            case ["failure", int(at), str(kind), str(detail), bool(tired)] if at == position:
                return Score(failure=Failure(kind, detail)), tired  # type: ignore[arg-type]  # Failure checks the kind
            case ["memory", int(at)] if at == position:
                raise LostError("memory")
    except (ValueError, TypeError):
        pass
    raise GarbledError("no verdict")


def _path() -> list[str]:
    """Return where this process finds modules, for one with another current folder."""
    return [os.path.abspath(folder) for folder in sys.path if isinstance(folder, str)]
