"""What a confined process does: it gives up its rights, and then runs the program, answers for it, or tests it.

Loaded in the child.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import os
import sys

from .limits import confine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

NO_SYNTAX = 121
"""Exit status of a program that is no Python. A program may exit with it too, to no advantage."""


class Role:
    """What a forked process shall be.

    Args:
        work: what it does once it is confined.
        standard: the descriptors that become its 0, 1 and 2.
        kept: further descriptors that it keeps.
        report: descriptor on which it says `ok` before the work begins, or why it cannot begin.
        bounds: arguments of `limits.confine`.
    """

    def __init__(
        self,
        work: Callable[[], None],
        standard: tuple[int, int, int],
        kept: tuple[int, ...],
        report: int,
        bounds: dict[str, Any],
    ) -> None:
        self._work, self._standard, self._kept, self._report, self._bounds = work, standard, kept, report, bounds

    def enter(self) -> None:
        """Confine this process and do the work; where that fails, report it and end."""
        try:
            for number, descriptor in enumerate(self._standard):
                os.dup2(descriptor, number)
            _close_all_but({0, 1, 2, self._report, self._bounds["rules"], *self._kept})
            confine(**self._bounds)
        except BaseException as error:  # noqa: BLE001 nothing may run unless all of this has worked
            os.write(self._report, f"{type(error).__name__}: {error}".encode()[:2000])
            os._exit(1)
        os.write(self._report, b"ok")
        os.close(self._report)
        self._work()


def _close_all_but(kept: set[int]) -> None:
    """Close what was inherited: the host's channel above all, on which the program could answer for the host."""
    for descriptor in {int(name) for name in os.listdir("/dev/fd")} - kept:
        try:  # noqa: SIM105 contextlib takes long to import
            os.close(descriptor)
        except OSError:  # the one with which the list was read
            pass


def run_program(source: str) -> NoReturn:
    """Run a program as Python would run a script, to its end."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = open(number, mode, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    add_exits()
    sys.argv[:] = ["program.py"]
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    try:
        compiled = compile(source, "program.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        os._exit(NO_SYNTAX)
    status = 0
    try:
        exec(compiled, module.__dict__)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 whatever it was, the program has failed
        status = 1
    finish(module.__dict__)
    os._exit(status & 0xFF)


def finish(names: dict[str, Any]) -> None:
    """Do what a program can see of the interpreter's end, which itself would touch and so copy the host's memory.

    Threads are waited for, functions of `atexit` called, and what is still buffered written.
    """
    threading = sys.modules.get("threading")
    for step in (threading and threading._shutdown, atexit._run_exitfuncs, names.clear, gc.collect):
        if step:
            step()
    for stream in (sys.stdout, sys.__stdout__):
        try:
            stream.flush()  # type: ignore[union-attr]
        except Exception:  # noqa: BLE001 closed already, or replaced by something that has nothing to write
            continue


def add_exits() -> None:
    """Give programs the `exit` and `quit` that scripts have; the interpreter was started without its site module."""
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]


class Line:
    """Messages over two pipes, each with its length before it.

    Args:
        reading: descriptor to read from.
        writing: descriptor to write to.
    """

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


def speak(role: Callable[[Callable[[], bytes], Callable[[bytes], None]], None], line: Line) -> NoReturn:
    """Do a role that talks over a line, and end the process without the interpreter's own end."""
    try:
        role(line.receive, line.send)
    finally:
        os._exit(0)
