"""The process that imports the rules, and the workers that it forks in milliseconds.

The trainer starts it as a new interpreter, because the trainer has threads and a GPU and must not be forked. It has one
thread, runs no rule, and ends when the trainer does, which closes its socket. multiprocessing's fork server would run
the user's main script again in each worker and cannot import rules after its start.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import math
import os
import pickle
import resource
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

from rewardsmith.config import import_name
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import failure_of
from rewardsmith.types import MAX_DETAIL

LoadedFunction = tuple[Callable[[Any, str], Any], bool]
"""A function with its settings, and whether it is a rule."""

MAX_SERVED = 20_000
"""Texts after which a worker is replaced, so that leaks in a rule's libraries stay bounded."""

MAX_RESULT = 1 << 26
"""Bytes in a result of a function that is not a rule, such as the prompts of a judge for a whole group."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # see prctl(2)


class _Server:
    """Handles requests of the trainer, one at a time; a reply is a value and an error, one of them empty."""

    def __init__(self, trainer: Connection[Any, Any]) -> None:
        self._trainer = trainer
        self._functions: list[LoadedFunction] = []
        self._versions: dict[str, str] = {}
        self._workers: set[int] = set()
        self._children_of_imports: set[int] = set()

    def run(self) -> None:
        """Work until the trainer closes the socket."""
        handlers: dict[str, Callable[..., Any]] = {"load": self._load, "fork": self._fork, "end": self._end}
        try:
            self._trainer.send(("ready", ""))
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 2)  # until here, the trainer reads from it why the start failed
            os.close(devnull)
            while True:
                verb, *arguments = self._trainer.recv()
                try:
                    self._trainer.send((handlers[verb](*arguments), ""))
                except UserError as error:
                    self._trainer.send((None, str(error)[:MAX_DETAIL]))
        finally:
            for pid in list(self._workers):
                self._end(pid)

    def _load(self, path: list[str], call: bytes) -> int:
        """Import a function. Its number is its position among those that were loaded."""
        try:
            sys.path[:] = path
            importlib.invalidate_caches()
            name, arguments, modules, version, loader = pickle.loads(call)  # noqa: S301 from the trainer
            for module in modules:
                importlib.import_module(module)
            home = name.partition(":")[0]
            if self._versions.get(home, version) != version:
                sys.modules.pop(home, None)
            function = import_name(loader)(name, **arguments) if loader else partial(import_name(name), **arguments)
        except UserError:
            raise
        except BaseException as error:  # noqa: BLE001 a module may do anything while it is imported
            raise UserError(f"{type(error).__name__}: {error}") from None
        self._versions[home] = version
        self._functions.append((function, not loader))
        self._children_of_imports |= _children() - self._workers
        gc.collect()
        gc.freeze()  # imported objects are shared with the workers; their collectors must not touch them
        return len(self._functions) - 1

    def _fork(self) -> int:
        """Fork a worker that gets the socket of this request."""
        descriptor, server = recv_handle(self._trainer), os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            raise UserError(f"a worker cannot be forked: {error}") from None
        finally:
            if os.getpid() == server:
                os.close(descriptor)
        if pid == 0:
            try:
                self._trainer.close()
                with contextlib.suppress(EOFError):
                    _serve(Connection(descriptor), self._functions, server)
                os._exit(0)
            finally:
                os._exit(1)
        self._workers.add(pid)
        return pid

    def _end(self, pid: int) -> str:
        """Kill a worker with everything it started, and return how it ended: a dead worker keeps its own cause."""
        for kill in (os.kill, os.killpg):  # it may be too young to have a process group
            with contextlib.suppress(OSError):
                kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._workers.discard(pid)
        for _ in range(100):  # the children of orphans become ours too
            orphans = _children() - self._workers - self._children_of_imports
            for orphan in orphans:
                with contextlib.suppress(OSError):
                    os.kill(orphan, signal.SIGKILL)
                    os.waitpid(orphan, 0)
            if not orphans:
                break
        return f"signal {-code}" if code < 0 else f"exit {code}"


def main(descriptor: int) -> None:
    """Run the fork server on the socket with that file descriptor."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with contextlib.suppress(OSError, EOFError):
        _Server(Connection(descriptor)).run()


# ---- a worker --------------------------------------------------------------------------------------------------------


def _serve(trainer: Connection[Any, Any], functions: Sequence[LoadedFunction], server: int) -> None:
    """Serve tasks until the trainer closes the socket: the number of a function, MiB, and pairs of prompt and text.

    The replies, one per text and in order, are JSON. After one with `recycle` the worker ends.

        [position, recycle, "value", value]
        [position, recycle, "failure", kind, detail]
        [position, true, "memory"]: the cap was reached
    """
    os.setsid()  # a process group, so that what the rule starts can be killed with the worker
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A child of the rule must not write in the name of the worker, nor keep the socket open after its death.
    os.register_at_fork(after_in_child=trainer.close)
    initial_memory = _address_space()
    served, pickled_prompt, prompt = 0, b"", None
    while True:
        number, memory, texts = trainer.recv()
        _limit_memory(initial_memory + (memory << 20))
        for position, (argument, text) in enumerate(texts):
            try:
                if argument != pickled_prompt:
                    pickled_prompt, prompt = argument, pickle.loads(argument)  # noqa: S301 from the trainer
                outcome = _call(functions[number], prompt, text)
            except MemoryError:
                _limit_memory(None)
                trainer.send_bytes(json.dumps([position, True, "memory"]).encode())
                return
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm of this rule must not hit the next text
            served += 1
            recycle = position + 1 == len(texts) and (
                served >= MAX_SERVED or _address_space() > initial_memory + (memory << 19) or _left_running()
            )
            reply = json.dumps([position, recycle, *outcome]).encode()
            if len(reply) > MAX_RESULT:
                detail = f"the result is larger than {MAX_RESULT >> 20} MiB"
                reply = json.dumps([position, recycle, "failure", "crashed", detail]).encode()
            trainer.send_bytes(reply)
            if recycle:
                return
        _limit_memory(None)  # the next task may be long


def _call(loaded: LoadedFunction, argument: Any, text: str) -> tuple[Any, ...]:
    """Return the fields of a reply; the caller handles a MemoryError."""
    function, is_rule = loaded
    try:
        value = function(argument, text)
        if not is_rule:
            return "value", value
        if isinstance(value, str | bytes | bytearray) or not hasattr(value, "__float__"):  # float() would parse text
            raise TypeError(f"the rule returned {type(value).__name__}: it must return a number")
        number = float(value)
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001 whatever it raises, even SystemExit, concerns this text alone
        try:
            failure = failure_of(error)
        except MemoryError:
            raise
        except BaseException:  # noqa: BLE001 even the text of an exception may raise
            return "failure", "crashed", "an exception that cannot be shown"
        return "failure", failure.kind, failure.detail
    return ("value", number) if math.isfinite(number) else ("failure", "invalid", f"the rule returned {number}")


def _address_space() -> int:
    """Return the bytes of address space in use; 0 where the system does not list them."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _limit_memory(size: int | None) -> None:
    """Limit the address space; None removes the limit. It is a soft limit, so it can move."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = hard if size is None else size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _left_running() -> bool:
    """Return whether the rule left threads or processes behind."""
    return threading.active_count() > 1 or bool(_children())


def _children() -> set[int]:
    """Return the process ids of this process's children; empty where the system has no list."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return set()


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
