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

from .confine import MAX_THREADS, SIGKILL, confine, libc, prctl, prepare, widen_stack

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


def send(descriptor: int, message: bytes) -> None:
    """Write a message with its length before it."""
    rest = memoryview(len(message).to_bytes(4, "big") + message)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def receive(descriptor: int) -> bytes:
    """Return the next message; b"" when the other side is gone."""
    message, length = bytearray(), 4
    while len(message) < length:
        part = os.read(descriptor, min(length - len(message), 1 << 20))
        if not part:
            return b""
        message += part
        if len(message) == 4 == length:
            length += int.from_bytes(message, "big")
    return bytes(message[4:])


class ConfinedProcess:
    """A fork of the host, and the pipes to it; a script has none to write to."""

    def __init__(self, pid: int, reading: int, writing: int = -1) -> None:
        self.pid, self.reading, self.writing = pid, reading, writing
        self._status: int | None = None
        self._seconds_before = 0.0
        if writing >= 0:
            os.set_blocking(writing, False)

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
        for descriptor in (self.reading, self.writing):
            if descriptor >= 0:
                os.close(descriptor)

    def start_test(self) -> None:
        """Count processor time from now on."""
        self._seconds_before = self._processor_seconds()

    def test_seconds(self) -> float:
        """Return the time that this test has used on all processors."""
        return self._processor_seconds() - self._seconds_before

    def _processor_seconds(self) -> float:
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

    def __init__(self, job: dict[str, Any], client: int) -> None:
        self._job, self._client = job, client
        self._rules = prepare(job["isolation"], job["folder"])
        self._devnull = os.open(os.devnull, os.O_RDWR)
        self._processes: dict[str, ConfinedProcess] = {}
        self._load_error = ""
        self._limit: dict[str, float] = {}
        self._deadline = 0.0

    def reply(self, request: dict[str, Any]) -> bytes:
        """Return `r` and the result of a test, or `f` and why there is none."""
        self._limit = request["limit"]
        self._deadline = time.monotonic() + self._limit["clock"]
        for process in self._processes.values():
            process.start_test()
        try:
            return b"r" + (self._run(request["given"]) if "given" in request else self._test(request["index"]))
        except ProcessEnded as ended:
            self.end()
            return b"f" + str(ended).encode()

    def _run(self, given: bytes) -> bytes:
        """Run the program as a script; return what it wrote."""
        path = os.path.join(self._job["folder"], "input")
        with open(path, "wb") as file:
            file.write(given)
        their_input = os.open(path, os.O_RDONLY)
        os.unlink(path)
        ours, theirs = os.pipe()
        source = self._job["sources"][-1]
        seconds = self._limit["processor"]
        pid = self._fork(lambda: _run_script(source), seconds, (their_input, theirs, self._devnull))
        process = self._processes["script"] = ConfinedProcess(pid, ours)
        os.close(their_input)
        os.close(theirs)
        output = self._collect(process)
        self.end("script")
        return output

    def _collect(self, process: ConfinedProcess) -> bytes:
        output, is_open = bytearray(), True
        while True:
            ended = process.status() is not None  # before the poll: a process may write and end in between
            seconds = 0.0 if ended else _POLL_SECONDS if is_open else 0.001
            if process.reading in self._wait(process, reading=is_open, seconds=seconds):
                part = os.read(process.reading, 1 << 16)
                is_open = bool(part)
                output += part
                if len(output) > self._job["output"]:
                    raise ProcessEnded("more output than allowed")
            elif ended:  # what it has started may still hold its output open
                break
        if process.status():
            raise ProcessEnded(_cause(process.status()))
        return bytes(output)

    def _test(self, index: int) -> bytes:
        """Run a test; return the verdict. Carries requests of the tester to the program, and replies back.

        The program is loaded at the first request: an error in the tests alone is found without it.
        """
        if self._load_error:
            raise ProcessEnded(self._load_error)
        tester = self._processes.get("tester") or self._start_tester()
        message = str(index).encode()
        while (reply := self._exchange(tester, message)).startswith(b"?"):
            message = self._exchange(self._processes.get("program") or self._load_program(), reply[1:])
            if not message:  # the tester would wait for more
                raise ProcessEnded("its reply was empty")
        return reply[1:]

    def _load_program(self) -> ConfinedProcess:
        """Return a new process that holds the program. A program that cannot be loaded is not tried again."""
        from .program import serve_program  # noqa: PLC0415 programs that run as scripts do without

        process = self._fork_server("program", lambda *pipes: serve_program(self._job["sources"], *pipes))
        try:
            loaded = self._exchange(process, b"")
        except ProcessEnded as ended:
            self._load_error = f"while it was loaded: {ended}"
            raise
        self._load_error = "" if loaded == b"{}" else f"it could not be loaded: {loaded.decode(errors='replace')}"
        if self._load_error:
            raise ProcessEnded(self._load_error)
        return process

    def _start_tester(self) -> ConfinedProcess:
        import json  # noqa: PLC0415

        from .tester import serve_tests  # noqa: PLC0415

        tests = self._job["tests"]  # a descriptor, read in the fork

        def serve(*pipes: Callable[..., Any]) -> None:
            with open(tests, "rb") as file:
                file.seek(0)
                table = json.load(file)
            serve_tests(table, *pipes)

        return self._fork_server("tester", serve, tests)

    def _fork_server(self, name: str, serve: Callable[..., None], *kept: int) -> ConfinedProcess:
        """Fork a process that replies to messages."""
        their_reading, our_writing = os.pipe()
        our_reading, their_writing = os.pipe()

        def work() -> None:
            _add_exits()
            serve(lambda: receive(their_reading), lambda message: send(their_writing, message))

        kept = (their_reading, their_writing, *kept)
        pid = self._fork(work, self._job["total"], (self._devnull,) * 3, *kept)
        process = self._processes[name] = ConfinedProcess(pid, our_reading, our_writing)
        os.close(their_reading)
        os.close(their_writing)
        return process

    def _fork(self, work: Callable[[], None], seconds: float, standard: tuple[int, int, int], *kept: int) -> int:
        """Fork a confined process that does some work; OSError when it could not be confined."""
        ours, report = os.pipe()
        host, job = os.getpid(), self._job
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
        with open(ours, "rb") as file:
            reported = file.read()
        if reported != b"ok":
            os.waitpid(pid, 0)
            raise OSError(f"a process could not be confined: {reported.decode(errors='replace') or 'it died'}")
        return pid

    def _exchange(self, process: ConfinedProcess, message: bytes) -> bytes:
        """Send a message to a process, unless it is empty, and return the next one from it."""
        rest = len(message).to_bytes(4, "big") + message if message else b""
        received = bytearray()
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            ready = self._wait(process, reading=True, writing=bool(rest))
            try:
                if process.writing in ready:
                    rest = rest[os.write(process.writing, rest[: 1 << 16]) :]
                if process.reading in ready:
                    part = os.read(process.reading, 1 << 16)
                    if not part:
                        raise BrokenPipeError
                    received += part
            except BrokenPipeError:  # it has ended, or has closed its pipes and runs on
                raise ProcessEnded(_cause(process.status())) from None
            if len(received) > self._job["output"] or int.from_bytes(received[:4], "big") > self._job["output"]:
                raise ProcessEnded("a larger value than allowed")
        return bytes(received[4:])

    def _wait(
        self, process: ConfinedProcess, *, reading: bool, writing: bool = False, seconds: float = _POLL_SECONDS
    ) -> set[int]:
        """Return the descriptors that are ready, after some time at most; ProcessEnded beyond a limit."""
        poll = select.poll()
        poll.register(self._client, select.POLLIN)
        if reading:
            poll.register(process.reading, select.POLLIN)
        if writing:
            poll.register(process.writing, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
        if self._client in ready:  # nobody writes to a busy host: the other side is gone
            raise ClientGone
        if sum(each.test_seconds() for each in self._processes.values()) > self._limit["processor"]:
            raise ProcessEnded("more processor time than allowed")
        if time.monotonic() > self._deadline:
            raise ProcessEnded("more time than allowed")
        if process.threads() > MAX_THREADS:
            raise ProcessEnded(f"more than {MAX_THREADS} threads")
        return ready

    def end(self, *names: str) -> None:
        """End these processes of the program, or all of them."""
        for name in names or tuple(self._processes):
            self._processes.pop(name).end()
        if self._job["isolation"] == "limits" and _IS_LINUX:
            _kill_children()


def _kill_children() -> None:
    """Kill what a program without a filter has started and left to us."""
    path = f"/proc/self/task/{os.getpid()}/children"
    for _ in range(100):  # the children of orphans become ours too
        try:
            with open(path) as file:
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
    client, writing = os.dup(0), os.dup(1)
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    os.close(devnull)
    job = marshal.loads(receive(client))  # from our own parent
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
        send(writing, b"r")
        while request := receive(client):
            send(writing, host.reply(marshal.loads(request)))
    except (ClientGone, BrokenPipeError):
        pass
    except Exception as error:  # noqa: BLE001 whatever it is, no test has a verdict
        send(writing, f"e{type(error).__name__}: {error}".encode())
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
