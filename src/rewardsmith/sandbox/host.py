"""The host: a small process, one for each program, that forks the processes in which untrusted code runs.

It never runs such code itself. Forking an interpreter that is already there makes a fresh one in about a millisecond.
The host watches what it has forked (time, output, threads), ends it, and says what came of it. It is told neither the
outputs that are expected nor the sources of tests, because what it knows, its forks can find in their memory.
Started by `run.py`; standard library only, and little of it: what is imported here is paid for by every program.
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import sys
import time

from . import kernel
from .jail import NO_SYNTAX, Line, Role, add_exits, run_program, speak
from .limits import THREADS, ready, widen_stack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_TICK = 0.05  # seconds between two looks at a process that says nothing
_LINUX = sys.platform == "linux"

# Common modules of the standard library: imported once by the host, not once by every fork.
_COMMON = (
    *("array", "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq"),
    *("itertools", "json", "math", "operator", "queue", "random", "re", "statistics", "string", "threading", "typing"),
)


class Become(BaseException):
    """Raised in a fork, which is to be something else: it unwinds the host's frames."""

    def __init__(self, role: Role) -> None:
        self.role = role


class Ended(Exception):  # noqa: N818 the process ended, nothing is wrong here
    """A confined process is gone before it has answered; the message says why."""


class Abandoned(Exception):  # noqa: N818 as above
    """Nobody is there any more who could be told."""


class Jail:
    """A forked process.

    Attributes:
        pid: its id.
        line: where it is heard, and talked to.
    """

    def __init__(self, pid: int, line: Line) -> None:
        self.pid, self.line = pid, line
        self._status: int | None = None
        if line.writing >= 0:
            os.set_blocking(line.writing, False)

    def status(self, wait: bool = False) -> int | None:
        """Return the exit code (negative: the signal), or None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, 0 if wait else os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def end(self) -> None:
        """Kill it, and forget its pipes."""
        if self.status() is None:
            os.kill(self.pid, kernel.SIGKILL)
            self.status(wait=True)
        for descriptor in (self.line.reading, self.line.writing):
            if descriptor >= 0:
                os.close(descriptor)

    def processor_seconds(self) -> float:
        """Return the time it has used on all processors, as far as the system tells."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2) if _LINUX else 0.0
        except OSError:  # it has ended
            return 0.0

    def threads(self) -> int:
        """Return how many threads it has, as far as the system tells."""
        try:
            return os.stat(f"/proc/{self.pid}/task").st_nlink - 2 if _LINUX else 1
        except OSError:
            return 1


class Host:
    """Forks, watches and ends the processes of one program.

    Args:
        job: what `run.py` says about the program: its source, the folder, limits and isolation.
        line: to `run.py`.
    """

    def __init__(self, job: dict[str, Any], line: Line) -> None:
        self._job, self._line = job, line
        self._rules = ready(job["isolation"], job["folder"])
        self._nothing = os.open(os.devnull, os.O_RDWR)
        self._player: Jail | None = None
        self._judge: Jail | None = None
        self._unloadable = ""
        self._used, self._started = 0.0, 0.0
        self._limit: dict[str, float] = {}
        self._verbs: dict[str, Callable[[Any], bytes]] = {"run": self._run, "call": self._call, "test": self._test}

    def answer(self, request: dict[str, Any]) -> bytes:
        """Return what came of a test: `r` and the result, or `f` and why there is none."""
        self._limit, self._started, self._used = request["limit"], time.monotonic(), 0.0
        try:
            return b"r" + self._verbs[request["do"]](request["what"])
        except Ended as ended:
            self.end()
            return b"f" + str(ended).encode()

    def _run(self, given: bytes) -> bytes:
        """Run the program as a script; return what it wrote."""
        path = os.path.join(self._job["folder"], "input")
        with open(path, "wb") as file:
            file.write(given)
        reading = os.open(path, os.O_RDONLY)
        os.unlink(path)
        ours, theirs = os.pipe()
        source = self._job["sources"][-1]
        jail = self._fork(lambda: run_program(source), (reading, theirs, self._nothing), (), Line(ours, -1))
        os.close(reading)
        os.close(theirs)
        try:
            return self._collect(jail)
        finally:
            jail.end()
            self._sweep()

    def _collect(self, jail: Jail) -> bytes:
        output, size, open_ = [], 0, True
        while open_ or jail.status() is None:
            if open_ and jail.line.reading in self._wait(jail, reading=True):
                part = os.read(jail.line.reading, 1 << 16)
                open_ = bool(part)
                size += len(part)
                output.append(part)
                if size > self._job["output"]:
                    raise Ended("more output than allowed")
            elif not open_:  # it has closed its output, and is most likely about to end
                self._wait(jail, tick=0.001)
            elif jail.status() is not None:  # something that it has started holds its output open
                break
        if jail.status():
            raise Ended(_cause(jail.status()))
        return b"".join(output)

    def _call(self, message: bytes) -> bytes:
        """Hand a request to the process that holds the program; return its answer."""
        return self._exchange(self._playing(), message)

    def _test(self, index: int) -> bytes:
        """Have a test run; return the verdict.

        Requests of the judge are carried to the player, and answers back. The program is loaded at the first request:
        what is wrong with the tests alone is found without it.
        """
        if self._unloadable:
            raise Ended(self._unloadable)
        judge, message = self._judging(), str(index).encode()
        while (answer := self._exchange(judge, message)).startswith(b"?"):
            message = self._exchange(self._playing(), answer[1:])
            if not message:  # the judge would wait for more
                raise Ended("it answered nothing")
        return answer[1:]

    def _playing(self) -> Jail:
        """Return the process that holds the program. One that cannot be loaded once is not tried again."""
        if self._unloadable:
            raise Ended(self._unloadable)
        if self._player is None:
            from .player import play  # noqa: PLC0415 programs that run as scripts do without

            sources = self._job["sources"]
            self._player = self._fork_speaker(lambda receive, send: play(sources, receive, send))
            try:
                loaded = self._exchange(self._player, b"")
            except Ended as ended:
                self._unloadable = f"while it was loaded: {ended}"
                raise
            if loaded != b"{}":
                self._unloadable = f"it could not be loaded: {loaded.decode(errors='replace')}"
                raise Ended(self._unloadable)
        return self._player

    def _judging(self) -> Jail:
        if self._judge is None:
            import json  # noqa: PLC0415

            from .judge import preside  # noqa: PLC0415

            tests = self._job["tests"]  # a descriptor, read in the fork

            def role(receive: Callable[[], bytes], send: Callable[[bytes], None]) -> None:
                with open(tests, "rb") as file:
                    file.seek(0)
                    sources = json.load(file)
                preside(sources, receive, send)

            self._judge = self._fork_speaker(role, tests)
        return self._judge

    def _fork_speaker(self, role: Callable[..., None], *kept: int) -> Jail:
        add_exits()
        their_reading, our_writing = os.pipe()
        our_reading, their_writing = os.pipe()
        line = Line(their_reading, their_writing)
        nothing = self._nothing
        jail = self._fork(
            lambda: speak(role, line),
            (nothing, nothing, nothing),
            (their_reading, their_writing, *kept),
            Line(our_reading, our_writing),
        )
        os.close(their_reading)
        os.close(their_writing)
        return jail

    def _fork(
        self, work: Callable[[], None], standard: tuple[int, int, int], kept: tuple[int, ...], line: Line
    ) -> Jail:
        """Return a new confined process that does some work; OSError when it could not be confined."""
        ours, report = os.pipe()
        bounds = {
            "isolation": self._job["isolation"],
            "rules": self._rules,
            "host": os.getpid(),
            "memory": self._job["memory"],
            "seconds": self._limit["processor"] if line.writing < 0 else self._job["total"],
        }
        pid = os.fork()
        if pid == 0:
            raise Become(Role(work, standard, kept, report, bounds))
        os.close(report)
        jail = Jail(pid, line)
        told = b""
        while part := os.read(ours, 4096):
            told += part
        os.close(ours)
        if told != b"ok":
            jail.end()
            raise OSError(f"a process could not be confined: {told.decode(errors='replace') or 'it died'}")
        return jail

    def _exchange(self, jail: Jail, message: bytes) -> bytes:
        """Send a message to a process, unless it is empty, and return the next one from it."""
        rest = len(message).to_bytes(4, "big") + message if message else b""
        got = bytearray()
        before = jail.processor_seconds()
        while len(got) < 4 or len(got) < 4 + int.from_bytes(got[:4], "big"):
            events = self._wait(jail, reading=True, writing=bool(rest), since=before)
            try:
                if jail.line.writing in events and rest:
                    rest = rest[os.write(jail.line.writing, rest[: 1 << 16]) :]
                if jail.line.reading in events:
                    part = os.read(jail.line.reading, 1 << 16)
                    if not part:
                        raise BrokenPipeError
                    got += part
            except BrokenPipeError:  # it may have ended, or have hung up and live on
                raise Ended(_cause(jail.status())) from None
            if len(got) > self._job["output"] or int.from_bytes(got[:4], "big") > self._job["output"]:
                raise Ended("a larger value than allowed")
        self._used += jail.processor_seconds() - before
        return bytes(got[4:])

    def _wait(
        self, jail: Jail, *, reading: bool = False, writing: bool = False, since: float = 0.0, tick: float = _TICK
    ) -> set[int]:
        """Return the descriptors on which something can be done, after a tick at most; Ended beyond a limit."""
        poll = select.poll()
        poll.register(self._line.reading, select.POLLIN)
        if reading:
            poll.register(jail.line.reading, select.POLLIN)
        if writing:
            poll.register(jail.line.writing, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(tick * 1000)}
        if self._line.reading in ready:  # nobody talks to a busy host: the other side is gone
            raise Abandoned
        if self._used + jail.processor_seconds() - since > self._limit["processor"]:
            raise Ended("more processor time than allowed")
        if time.monotonic() - self._started > self._limit["clock"]:
            raise Ended("more time than allowed")
        if jail.threads() > THREADS:
            raise Ended(f"more than {THREADS} threads")
        return ready

    def end(self) -> None:
        """End every process of the program."""
        for jail in (self._player, self._judge):
            if jail is not None:
                jail.end()
        self._player = self._judge = None
        self._sweep()

    def _sweep(self) -> None:
        """Kill what a program without a filter has started and left to us."""
        if self._job["isolation"] != "limits" or not _LINUX:
            return
        me = os.getpid()
        for _ in range(100):  # what is killed may have children, which become ours
            try:
                with open(f"/proc/{me}/task/{me}/children") as file:
                    children = [int(pid) for pid in file.read().split()]
            except OSError:  # not every kernel lists them
                return
            for pid in children:
                os.kill(pid, kernel.SIGKILL)
                os.waitpid(pid, 0)
            if not children:
                return


def _cause(code: int | None) -> str:
    if code == NO_SYNTAX:
        return "it is no Python"
    if code is None:
        return "it hung up"
    return f"it was ended by signal {-code}" if code < 0 else f"it ended with status {code}"


def serve() -> Role:
    """Answer requests until the other side is gone, and end. Returns in forks alone: what they shall become."""
    line = Line(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    job = marshal.loads(line.receive())  # written by our own parent
    host = None
    try:
        kernel.ignore_interrupts()
        if _LINUX:
            _volunteer()
            kernel.adopt_orphans()
        widen_stack()
        for name in _COMMON:
            if any(f"{word} {name}" in source for source in job["sources"] for word in ("import", "from")):
                __import__(name)
        host = Host(job, line)
        gc.freeze()  # what is there now is never garbage: forks need not look at it, and so not copy it
        line.send(b"r")
        while request := line.receive():
            line.send(host.answer(marshal.loads(request)))
    except Become as become:
        return become.role
    except (Abandoned, BrokenPipeError):
        pass
    except Exception as error:  # noqa: BLE001 whatever it is, no test has been judged
        line.send(f"e{type(error).__name__}: {error}".encode())
    if host is not None:
        host.end()
    try:  # noqa: SIM105 contextlib takes long to import
        os.rmdir(job["folder"])  # its owner does that too, unless he is gone
    except OSError:
        pass
    os._exit(0)  # the interpreter's own end takes longer than all of the above


def _volunteer() -> None:
    """When memory runs out, let the kernel end this and its forks before anything else of the user."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass
