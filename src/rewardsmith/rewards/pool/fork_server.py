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
import math
import os
import pickle
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from rewardsmith.config import import_name
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import failure_of
from rewardsmith.rewards.pool.channel import MAX_RESULT, as_socket, connect, encode_reply
from rewardsmith.types import MAX_DETAIL

LoadedFunction = tuple[Callable[[Any, str], Any], bool]
"""A function with its settings, and whether it is a rule."""

MAX_SERVED = 20_000
"""Texts after which a worker is replaced, so that leaks in a rule's libraries stay bounded."""

IMPORT_GRACE = 5.0
"""Seconds beyond the limit of an import after which the server ends itself, in case the trainer died meanwhile."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # see prctl(2)


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._trainer = connect(control)
        self._functions: list[LoadedFunction] = []
        self._versions: dict[str, str] = {}
        self._workers: set[int] = set()
        self._children_of_imports: set[int] = set()

    def run(self) -> None:
        """Handle requests, one at a time, until the trainer closes the socket."""
        handlers: dict[str, Callable[..., bytes]] = {"load": self._load, "fork": self._fork, "end": self._end}
        try:
            self._trainer.send_bytes(encode_reply("ready"))
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 2)  # until here, the trainer reads from it why the start failed
            os.close(devnull)
            while True:
                verb, *arguments = pickle.loads(self._trainer.recv_bytes())  # noqa: S301 from the trainer
                self._trainer.send_bytes(handlers[verb](*arguments))
        finally:
            for pid in list(self._workers):
                self._end(pid)

    def _load(self, path: list[str], limit: float, call: bytes) -> bytes:
        """Import a function. Its number is its position among those that were loaded."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit + IMPORT_GRACE)
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
            self._versions[home] = version
        except UserError as error:
            return encode_reply("error", str(error)[:MAX_DETAIL])
        except BaseException as error:  # noqa: BLE001 a module may do anything while it is imported
            return encode_reply("error", f"{type(error).__name__}: {error}"[:MAX_DETAIL])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._functions.append((function, not loader))
        self._children_of_imports |= _children() - self._workers
        gc.collect()
        gc.freeze()  # imported objects are shared with the workers; their collectors must not touch them
        return encode_reply("loaded", len(self._functions) - 1)

    def _fork(self) -> bytes:
        """Fork a worker that gets the socket and the wake-up pipe of this request."""
        with as_socket(self._trainer) as control:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        server = os.getpid()
        try:
            pid = os.fork()
            if pid == 0:
                self._become_worker(descriptors, server)
        except OSError as error:
            return encode_reply("error", f"a worker cannot be forked: {error}")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._workers.add(pid)
        return encode_reply("forked", pid)

    def _become_worker(self, descriptors: Sequence[int], server: int) -> NoReturn:
        connection, wakeup = descriptors
        try:
            self._trainer.close()
            with contextlib.suppress(EOFError):
                _serve(socket.socket(fileno=connection), wakeup, self._functions, server)
            os._exit(0)
        finally:
            os._exit(1)

    def _end(self, pid: int) -> bytes:
        """Kill a worker with everything it started, and reply how it ended: a dead worker keeps its own cause."""
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
        return encode_reply("ended", f"signal {-code}" if code < 0 else f"exit {code}")


def main(descriptor: int) -> None:
    """Run the fork server on the socket with that file descriptor."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with contextlib.suppress(OSError, EOFError):
        _Server(socket.socket(fileno=descriptor)).run()


# ---- a worker --------------------------------------------------------------------------------------------------------


def _serve(connection: socket.socket, wakeup: int, functions: Sequence[LoadedFunction], server: int) -> None:
    """Serve tasks (see `encode_task`) until the trainer closes the socket.

    The replies are `begin` and one per text, in order:

        ["value", position, value, recycle]
        ["result", position, JSON, recycle]: of a function that is not a rule
        ["failure", position, kind, detail, recycle]
        ["memory", position]: the cap was reached

    After `memory` and after a reply with `recycle` the worker ends. A byte in the wake-up pipe means that the task is
    done or has one text left: the trainer reads the replies while the worker scores the last text.
    """
    os.setsid()  # a process group, so that what the rule starts can be killed with the worker
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _reset_signals()
    trainer = connect(connection)
    # A child of the rule must not write in the name of the worker, nor keep the socket open after its death.
    os.register_at_fork(after_in_child=trainer.close)
    os.register_at_fork(after_in_child=partial(os.close, wakeup))
    initial_memory = _address_space()
    served, pickled_prompt, prompt = 0, b"", None
    while True:
        number, memory, prompts, texts = pickle.loads(trainer.recv_bytes())  # noqa: S301 from the trainer
        trainer.send_bytes(encode_reply("begin"))
        _limit_memory(initial_memory + (memory << 20))
        for position, (which, text) in enumerate(texts):
            try:
                if prompts[which] != pickled_prompt:
                    pickled_prompt, prompt = prompts[which], pickle.loads(prompts[which])  # noqa: S301 as above
                kind, *values = _call(functions[number], prompt, text)
            except MemoryError:
                _limit_memory(None)
                trainer.send_bytes(encode_reply("memory", position))
                return
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm of this rule must not hit the next text
            served += 1
            recycle = position + 1 == len(texts) and (
                served >= MAX_SERVED or _address_space() > initial_memory + (memory << 19) or _left_running()
            )
            reply = encode_reply(kind, position, *values, recycle)
            if len(reply) > MAX_RESULT:
                detail = f"the result is larger than {MAX_RESULT >> 20} MiB"
                reply = encode_reply("failure", position, "crashed", detail, recycle)
            if kind == "result":
                os.write(wakeup, b"!")  # it may not fit into the socket's buffer: the trainer must read meanwhile
            trainer.send_bytes(reply)
            if recycle:
                return
            if position + 2 >= len(texts):
                os.write(wakeup, b"!")
        _limit_memory(None)  # the next task may be long


def _call(loaded: LoadedFunction, argument: Any, text: str) -> tuple[Any, ...]:
    """Return the fields of a reply; the caller handles a MemoryError."""
    function, is_rule = loaded
    try:
        value = function(argument, text)
        if not is_rule:
            return "result", value
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
    except (OSError, ValueError):
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
    except (OSError, ValueError):
        return set()


def _reset_signals() -> None:
    """Undo changes of imported modules. A closed pipe stays an exception, as in every Python program."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
