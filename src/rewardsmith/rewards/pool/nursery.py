"""The process that workers come from. It imports the rules once; a worker is a clean copy of it, made in milliseconds.

It is started by the trainer, which may have threads and a GPU and is therefore never forked itself. It has one thread,
runs no rule, and ends when the trainer does: its socket is closed then, however the trainer ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from rewardsmith.config import import_name
from rewardsmith.errors import UserError
from rewardsmith.rewards.pool import limits, worker
from rewardsmith.rewards.pool.wire import Inbox, reply
from rewardsmith.types import MAX_DETAIL

SPARE = 5.0
"""Seconds beyond the limit of an import after which the nursery ends itself, for a trainer that died meanwhile."""


class _Nursery:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._inbox = Inbox(longest=None)
        self._rules: list[worker.Answerer] = []
        self._versions: dict[str, str] = {}
        self._workers: set[int] = set()
        self._kept: set[int] = set()  # children that an import started; they are not ours to end

    def run(self) -> None:
        """Answer requests, one at a time, until the trainer hangs up."""
        try:
            self._control.sendall(reply("ready"))
            self._quiet()
            while (request := self._next()) is not None:
                (verb, *arguments), handed = request
                answers: dict[str, Callable[..., bytes]] = {
                    "load": self._load,
                    "fork": partial(self._fork, handed),
                    "end": self._end,
                }
                self._control.sendall(answers[verb](*arguments))
        finally:
            for pid in list(self._workers):
                self._end(pid)

    def _quiet(self) -> None:
        """What a rule writes is nobody's business; until here, the trainer reads why this process could not start."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)

    def _next(self) -> tuple[tuple[Any, ...], list[int]] | None:
        handed: list[int] = []
        while (body := self._inbox.take()) is None:
            data, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 2)
            handed += fds
            if not data:
                return None
            self._inbox.add(data)
        return pickle.loads(body), handed  # noqa: S301 from the trainer

    def _load(
        self,
        path: list[str],
        name: str,
        version: str,
        modules: tuple[str, ...],
        loader: str,
        arguments: bytes,
        limit: float,
    ) -> bytes:
        """Import a rule, or load another function; its number is its place among those that were loaded."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit + SPARE)
        try:
            sys.path[:] = path
            importlib.invalidate_caches()
            for module in modules:
                importlib.import_module(module)
            home = name.partition(":")[0]
            if self._versions.get(home, version) != version:  # another file, or edited since
                sys.modules.pop(home, None)
            settings = pickle.loads(arguments)  # noqa: S301 from the trainer
            if loader:
                self._rules.append(partial(worker.result, import_name(loader)(name, **settings)))
            else:
                self._rules.append(partial(worker.verdict, partial(import_name(name), **settings)))
            self._versions[home] = version
        except UserError as error:
            return reply("error", str(error)[:MAX_DETAIL])
        except BaseException as error:  # noqa: BLE001 a module may do anything while it is imported
            return reply("error", f"{type(error).__name__}: {error}"[:MAX_DETAIL])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._kept |= limits.children() - self._workers
        gc.collect()
        gc.freeze()  # what was imported is shared with the workers; their collector need not touch it
        return reply("loaded", len(self._rules) - 1)

    def _fork(self, handed: list[int]) -> bytes:
        nursery = os.getpid()
        try:
            pid = os.fork()
            if pid == 0:
                self._become_worker(handed, nursery)
        except OSError as error:
            return reply("error", f"no worker could be made: {error}")
        finally:
            for descriptor in handed:
                os.close(descriptor)
        self._workers.add(pid)
        return reply("forked", pid)

    def _become_worker(self, handed: list[int], nursery: int) -> NoReturn:
        connection, bell = handed
        try:
            self._control.close()
            worker.serve(socket.socket(fileno=connection), bell, self._rules, nursery)
            os._exit(0)
        finally:
            os._exit(1)

    def _end(self, pid: int) -> bytes:
        """Kill a worker and all that it started; a worker that was dead already keeps its own cause."""
        if pid not in self._workers:
            return reply("error", f"{pid} is no worker")
        for kill in (os.kill, os.killpg):  # it may be too young to have its own group
            with contextlib.suppress(OSError):
                kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._workers.discard(pid)
        self._end_orphans()
        return reply("ended", f"signal {-code}" if code < 0 else f"exit {code}")

    def _end_orphans(self) -> None:
        """End what a dead worker left behind. What a living one starts is never ours: it adopts its own orphans."""
        for _ in range(100):  # the orphans of orphans come to us too
            orphans = limits.children() - self._workers - self._kept
            for pid in orphans:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            if not orphans:
                return


def main(descriptor: int) -> None:
    """Run the nursery on the socket with that file descriptor."""
    limits.no_core_files()
    limits.adopt_orphans()
    with socket.socket(fileno=descriptor) as control, contextlib.suppress(OSError):
        _Nursery(control).run()
