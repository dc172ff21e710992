"""The host: a small process, one per program, that forks the processes in which untrusted code runs.

It never runs such code itself. Forking an interpreter that already runs makes a fresh one in about a millisecond. The
host watches its forks (time, output, threads), ends them and reports what happened. It knows neither the expected
outputs nor the sources of tests, because a fork can find in its memory whatever the host knows.
Started by `sandbox.py`; standard library only, and little of it: every program pays for the imports.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import marshal
import os
import select
import sys
import time

from .confine import MAX_THREADS, SIGKILL, confine, prepare, widen_stack
from .seccomp import libc, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

_NOT_PYTHON = 121  # exit status of a program that does not compile; a program may exit with it too, to no advantage
_POLL_SECONDS = 0.05
_PR_SET_CHILD_SUBREAPER = 36
_IS_LINUX = sys.platform == "linux"

# Common modules of the standard library: imported once by the host, not once by every fork.
_COMMON = (
    *("array", "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq"),
    *("itertools", "json", "math", "operator", "queue", "random", "re", "statistics", "string", "threading", "typing"),
)


class ProcessEnded(Exception):  # noqa: N818 the process ended, nothing is wrong here
    """A confined process ended before it replied; the message is the cause."""


class ClientGone(Exception):  # noqa: N818 as above
    """The process that started the host is gone."""


class Pipes:
    """Messages over two pipes, each with its length before it."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing

    def send(self, message: bytes) -> None:
        """Write a message."""
        rest = memoryview(len(message).to_bytes(4, "big") + message)
        while rest:
            rest = rest[os.write(self.writing, rest) :]

    def receive(self) -> bytes:
        """Return the next message; b"" when the other side is gone."""
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, length: int) -> bytes:
        parts = []
        while length > 0:
            part = os.read(self.reading, min(length, 1 << 20))
            if not part:
                return b""
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


class ConfinedProcess:
    """A fork of the host, and the pipes to it."""

    def __init__(self, pid: int, pipes: Pipes) -> None:
        self.pid, self.pipes = pid, pipes
        self._status: int | None = None
        if pipes.writing >= 0:
            os.set_blocking(pipes.writing, False)

    def status(self, wait: bool = False) -> int | None:
        """Return the exit code (negative: the signal), or None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, 0 if wait else os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def end(self) -> None:
        """Kill it and close its pipes."""
        if self.status() is None:
            os.kill(self.pid, SIGKILL)
            self.status(wait=True)
        for descriptor in (self.pipes.reading, self.pipes.writing):
            if descriptor >= 0:
                os.close(descriptor)

    def processor_seconds(self) -> float:
        """Return the time it has used on all processors; 0 where the system does not report it."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2) if _IS_LINUX else 0.0
        except OSError:  # it has ended
            return 0.0

    def threads(self) -> int:
        """Return how many threads it has; 1 where the system does not report it."""
        try:
            return os.stat(f"/proc/{self.pid}/task").st_nlink - 2 if _IS_LINUX else 1
        except OSError:
            return 1


class Host:
    """Forks, watches and ends the processes of one program."""

    def __init__(self, job: dict[str, Any], client: Pipes) -> None:
        self._job, self._client = job, client
        self._rules = prepare(job["isolation"], job["folder"])
        self._devnull = os.open(os.devnull, os.O_RDWR)
        self._program: ConfinedProcess | None = None
        self._tester: ConfinedProcess | None = None
        self._load_error = ""
        self._used, self._started = 0.0, 0.0
        self._limit: dict[str, float] = {}

    def reply(self, request: dict[str, Any]) -> bytes:
        """Return `r` and the result of a test, or `f` and why there is none."""
        verbs: dict[str, Callable[[Any], bytes]] = {"run": self._run, "call": self._call, "test": self._test}
        self._limit, self._started, self._used = request["limit"], time.monotonic(), 0.0
        try:
            return b"r" + verbs[request["do"]](request["what"])
        except ProcessEnded as ended:
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
        standard = (reading, theirs, self._devnull)
        process = self._fork(lambda: _run_script(source), standard, (), Pipes(ours, -1))
        os.close(reading)
        os.close(theirs)
        try:
            return self._collect(process)
        finally:
            process.end()
            self._kill_orphans()

    def _collect(self, process: ConfinedProcess) -> bytes:
        output, size, is_open = [], 0, True
        while is_open or process.status() is None:
            if is_open and process.pipes.reading in self._wait(process, reading=True):
                part = os.read(process.pipes.reading, 1 << 16)
                is_open = bool(part)
                size += len(part)
                output.append(part)
                if size > self._job["output"]:
                    raise ProcessEnded("more output than allowed")
            elif not is_open:  # it has closed its output, and is most likely about to end
                self._wait(process, seconds=0.001)
            elif process.status() is not None and not self._has_output(process):
                break  # something that it has started holds its output open
        if process.status():
            raise ProcessEnded(_cause(process.status()))
        return b"".join(output)

    def _has_output(self, process: ConfinedProcess) -> bool:
        """Return whether there is output to read: a process may write and end between a poll and the check of it."""
        return process.pipes.reading in self._wait(process, reading=True, seconds=0.0)

    def _call(self, message: bytes) -> bytes:
        """Send a request to the process that holds the program; return its reply."""
        return self._exchange(self._loaded_program(), message)

    def _test(self, index: int) -> bytes:
        """Run a test; return the verdict. Carries requests of the tester to the program, and replies back.

        The program is loaded at the first request: an error in the tests alone is found without it.
        """
        if self._load_error:
            raise ProcessEnded(self._load_error)
        if self._tester is None:
            self._tester = self._fork_tester()
        message = str(index).encode()
        while (reply := self._exchange(self._tester, message)).startswith(b"?"):
            message = self._exchange(self._loaded_program(), reply[1:])
            if not message:  # the tester would wait for more
                raise ProcessEnded("its reply was empty")
        return reply[1:]

    def _loaded_program(self) -> ConfinedProcess:
        """Return the process that holds the program. A program that cannot be loaded is not tried again."""
        if self._load_error:
            raise ProcessEnded(self._load_error)
        if self._program is None:
            from .program import serve_program  # noqa: PLC0415 programs that run as scripts do without

            sources = self._job["sources"]
            self._program = self._fork_server(lambda receive, send: serve_program(sources, receive, send))
            try:
                loaded = self._exchange(self._program, b"")
            except ProcessEnded as ended:
                self._load_error = f"while it was loaded: {ended}"
                raise
            if loaded != b"{}":
                self._load_error = f"it could not be loaded: {loaded.decode(errors='replace')}"
                raise ProcessEnded(self._load_error)
        return self._program

    def _fork_tester(self) -> ConfinedProcess:
        import json  # noqa: PLC0415

        from .tester import serve_tests  # noqa: PLC0415

        tests = self._job["tests"]  # a descriptor, read in the fork

        def work(receive: Callable[[], bytes], send: Callable[[bytes], None]) -> None:
            with open(tests, "rb") as file:
                file.seek(0)
                sources = json.load(file)
            serve_tests(sources, receive, send)

        return self._fork_server(work, tests)

    def _fork_server(self, work: Callable[..., None], *kept: int) -> ConfinedProcess:
        """Fork a process that replies to messages."""
        their_reading, our_writing = os.pipe()
        our_reading, their_writing = os.pipe()
        theirs = Pipes(their_reading, their_writing)

        def serve() -> None:
            _add_exits()
            work(theirs.receive, theirs.send)

        standard, kept = (self._devnull,) * 3, (their_reading, their_writing, *kept)
        process = self._fork(serve, standard, kept, Pipes(our_reading, our_writing))
        os.close(their_reading)
        os.close(their_writing)
        return process

    def _fork(
        self, work: Callable[[], None], standard: tuple[int, int, int], kept: tuple[int, ...], pipes: Pipes
    ) -> ConfinedProcess:
        """Fork a confined process that does some work; OSError when it could not be confined."""
        ours, report = os.pipe()
        host, job = os.getpid(), self._job
        seconds = self._limit["processor"] if pipes.writing < 0 else job["total"]
        pid = os.fork()
        if pid == 0:
            try:
                for number, descriptor in enumerate(standard):
                    os.dup2(descriptor, number)
                _close_all_but({0, 1, 2, report, self._rules, *kept})
                confine(job["isolation"], self._rules, host, job["memory"], seconds)
            except BaseException as error:  # noqa: BLE001 nothing may run unless all of this has worked
                os.write(report, f"{type(error).__name__}: {error}".encode()[:2000])
                os._exit(1)
            try:
                os.write(report, b"ok")
                os.close(report)
                sys.setrecursionlimit(sys.getrecursionlimit() + 10)  # for the frames of the host
                work()
                os._exit(0)
            finally:
                os._exit(1)
        os.close(report)
        process = ConfinedProcess(pid, pipes)
        reported = b""
        while part := os.read(ours, 4096):
            reported += part
        os.close(ours)
        if reported != b"ok":
            process.end()
            raise OSError(f"a process could not be confined: {reported.decode(errors='replace') or 'it died'}")
        return process

    def _exchange(self, process: ConfinedProcess, message: bytes) -> bytes:
        """Send a message to a process, unless it is empty, and return the next one from it."""
        rest = len(message).to_bytes(4, "big") + message if message else b""
        received = bytearray()
        before = process.processor_seconds()
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            ready = self._wait(process, reading=True, writing=bool(rest), since=before)
            try:
                if process.pipes.writing in ready and rest:
                    rest = rest[os.write(process.pipes.writing, rest[: 1 << 16]) :]
                if process.pipes.reading in ready:
                    part = os.read(process.pipes.reading, 1 << 16)
                    if not part:
                        raise BrokenPipeError
                    received += part
            except BrokenPipeError:  # it has ended, or has closed its pipes and runs on
                raise ProcessEnded(_cause(process.status())) from None
            if len(received) > self._job["output"] or int.from_bytes(received[:4], "big") > self._job["output"]:
                raise ProcessEnded("a larger value than allowed")
        self._used += process.processor_seconds() - before
        return bytes(received[4:])

    def _wait(
        self,
        process: ConfinedProcess,
        *,
        reading: bool = False,
        writing: bool = False,
        since: float = 0.0,
        seconds: float = _POLL_SECONDS,
    ) -> set[int]:
        """Return the descriptors that are ready, after some time at most; ProcessEnded beyond a limit."""
        poll = select.poll()
        poll.register(self._client.reading, select.POLLIN)
        if reading:
            poll.register(process.pipes.reading, select.POLLIN)
        if writing:
            poll.register(process.pipes.writing, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
        if self._client.reading in ready:  # nobody writes to a busy host: the other side is gone
            raise ClientGone
        if self._used + process.processor_seconds() - since > self._limit["processor"]:
            raise ProcessEnded("more processor time than allowed")
        if time.monotonic() - self._started > self._limit["clock"]:
            raise ProcessEnded("more time than allowed")
        if process.threads() > MAX_THREADS:
            raise ProcessEnded(f"more than {MAX_THREADS} threads")
        return ready

    def end(self) -> None:
        """End every process of the program."""
        for process in (self._program, self._tester):
            if process is not None:
                process.end()
        self._program = self._tester = None
        self._kill_orphans()

    def _kill_orphans(self) -> None:
        """Kill what a program without a filter has started and left to us."""
        if self._job["isolation"] != "limits" or not _IS_LINUX:
            return
        me = os.getpid()
        for _ in range(100):  # the children of orphans become ours too
            try:
                with open(f"/proc/{me}/task/{me}/children") as file:
                    children = [int(pid) for pid in file.read().split()]
            except OSError:  # not every kernel lists them
                return
            for pid in children:
                os.kill(pid, SIGKILL)
                os.waitpid(pid, 0)
            if not children:
                return


def _cause(code: int | None) -> str:
    if code == _NOT_PYTHON:
        return "it is not valid Python"
    if code is None:
        return "it closed its pipes"
    return f"it was ended by signal {-code}" if code < 0 else f"it ended with status {code}"


def _close_all_but(kept: set[int]) -> None:
    """Close what was inherited: above all the host's pipes, on which the program could reply for the host."""
    for descriptor in {int(name) for name in os.listdir("/dev/fd")} - kept:
        try:  # noqa: SIM105 contextlib takes long to import
            os.close(descriptor)
        except OSError:  # the one with which the list was read
            pass


def _add_exits() -> None:
    """Define the `exit` and `quit` that scripts have; the interpreter was started without its site module."""
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]


def _run_script(source: str) -> NoReturn:
    """Run a program as Python would run a script, to its end."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = open(number, mode, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    _add_exits()
    sys.argv[:] = ["program.py"]
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    try:
        compiled = compile(source, "program.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        os._exit(_NOT_PYTHON)
    status = 0
    try:
        exec(compiled, module.__dict__)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 whatever it was, the program has failed
        status = 1
    # What a program can see of the interpreter's end; that itself would touch and so copy the host's memory.
    threading = sys.modules.get("threading")
    for step in (threading and threading._shutdown, atexit._run_exitfuncs, module.__dict__.clear, gc.collect):
        if step:
            step()
    for output in (sys.stdout, sys.__stdout__):
        try:
            output.flush()  # type: ignore[union-attr]
        except Exception:  # noqa: BLE001 closed already, or replaced by something that has nothing to write
            continue
    os._exit(status & 0xFF)


def main() -> NoReturn:
    """Reply to requests until the other side is gone."""
    client = Pipes(os.dup(0), os.dup(1))
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    os.close(devnull)
    job = marshal.loads(client.receive())  # from our own parent
    host = None
    try:
        libc.signal(ctypes.c_int(2), ctypes.c_void_p(1))  # ignore Ctrl-C, which the parent handles
        if _IS_LINUX:
            _prefer_for_oom_killer()
            prctl(_PR_SET_CHILD_SUBREAPER, 1)
        widen_stack()
        for name in _COMMON:
            if any(f"{word} {name}" in source for source in job["sources"] for word in ("import", "from")):
                __import__(name)
        host = Host(job, client)
        gc.freeze()  # what exists now is never garbage: forks need not touch it, and so not copy it
        client.send(b"r")
        while request := client.receive():
            client.send(host.reply(marshal.loads(request)))
    except (ClientGone, BrokenPipeError):
        pass
    except Exception as error:  # noqa: BLE001 whatever it is, no test has a verdict
        client.send(f"e{type(error).__name__}: {error}".encode())
    if host is not None:
        host.end()
    try:  # noqa: SIM105 contextlib takes long to import
        os.rmdir(job["folder"])  # its owner does that too, unless it is gone
    except OSError:
        pass
    os._exit(0)  # the interpreter's own end takes longer than all of the above


def _prefer_for_oom_killer() -> None:
    """When memory runs out, let the kernel end this and its forks before anything else of the user."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass
