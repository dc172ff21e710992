"""The pool: a queue of texts, and a thread for each worker process.

    score() --queue--> thread --task--> worker process --replies--> thread --outcomes--> the caller's future

A rule may hang, crash or use all memory on some text. That costs this text a failure and the pool a worker, and no
other text anything.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.pool.calls import Call, JsonResult, PendingCall, PendingText, encode_task
from rewardsmith.rewards.pool.processes import ForkServer, ForkServerError, LossCause, Worker, WorkerLostError
from rewardsmith.types import Prompt, Score

LOAD_TIMEOUT, LOAD_RETRY = 60.0, 300.0
"""Seconds that importing a rule may take, and after which a failed import is tried again."""

MAX_CHUNK, MAX_CHUNK_CHARACTERS = 16, 1 << 20
"""Texts and characters that a worker is sent at once; one text is always sent."""

MAX_TRIES, RETRY_PAUSE = 6, 0.1
"""How often a text may get no worker, or lose it before it began, and the seconds by which the pauses grow."""

WAITING_WORKERS = 32
"""Workers of the pool for functions that mostly wait, such as coroutines that call a service."""


@dataclass(eq=False)
class _Slot:
    """A thread, and the worker it has at the moment."""

    worker: Worker | None = None
    thread: threading.Thread | None = None


class Pool:
    """Worker processes that score texts by rules. All methods may be called from any thread."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = _worker_count(workers)
        self.closed = False
        self.lost = 0
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._queue: deque[PendingText] = deque()
        self._pending: set[PendingCall] = set()
        self._slots: set[_Slot] = set()
        self._busy = 0
        self._exclusive = False
        self._server: ForkServer | None = None
        self._server_lock = threading.Lock()
        self._load_errors: dict[bytes, tuple[float, str]] = {}
        _POOLS.add(self)

    async def score(
        self, call: Call, prompt: Prompt, texts: Sequence[str], *, deadline: float, memory: int
    ) -> list[Score]:
        """Return one score per text, in order. Equal texts are scored once; if the rule cannot be loaded, all fail.

        The deadline is in seconds per text, from when a worker begins it; the memory in MiB, beyond what the worker
        had when it was forked.
        """
        unique = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        scores = cast("list[Score]", await self._submit(PendingCall(call, prompt, list(unique), deadline, memory)))
        return [scores[unique[text]] for text in texts]

    async def result(self, call: Call, argument: Any, text: str = "", *, deadline: float, memory: int) -> Any:
        """Return the JSON that a function with a `Call.loader` returns for these two arguments."""
        (outcome,) = await self._submit(PendingCall(call, argument, [text], deadline, memory))
        if isinstance(outcome, JsonResult):
            return outcome.value
        assert outcome.failure is not None
        raise CannotScore(outcome.failure.kind, outcome.failure.detail)

    async def load(self, call: Call, *, limit: float = LOAD_TIMEOUT) -> None:
        """Import a rule in the fork server; raises a `UserError` if that fails or takes more than `limit` seconds."""
        await asyncio.to_thread(self.load_now, call, limit=limit)

    def load_now(self, call: Call, *, limit: float = LOAD_TIMEOUT) -> None:
        """Do what `load` does, for callers without an event loop."""
        self._require_usable()
        self._load_errors.pop(call.pickled, None)
        try:
            self._server_with(call, limit)
        except ForkServerError as error:
            raise UserError(str(error)) from None

    def resize(self, workers: int) -> None:
        """Change the number of workers; surplus ones end after their task."""
        with self._lock:
            self.workers = _worker_count(workers)
            self._work.notify_all()
            self._start_threads()

    def close(self) -> None:
        """End all workers. Texts without a score fail as cancelled."""
        if self._process != os.getpid():
            return
        with self._lock:
            self.closed = True
            self._queue.clear()
            slots = list(self._slots)
            self._work.notify_all()
        for pending in list(self._pending):
            for item in pending.texts:
                item.fail("cancelled", "the pool was closed")
        with self._server_lock:  # a server that is being started is closed too
            server = self._server
        if server:
            server.close()
        for slot in slots:
            assert slot.thread is not None
            slot.thread.join(timeout=5.0)

    def abandon(self) -> None:
        """Close the socket that a fork of the trainer has copied: the server must notice when the trainer ends."""
        self.closed = True
        if self._server:
            self._server.abandon()

    def _require_usable(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError("this pool belongs to another process: make a new one after a fork")
        if self.closed:
            raise RuntimeError("the pool is closed: make a new one")

    async def _submit(self, pending: PendingCall) -> list[Score | JsonResult]:
        """Queue the texts and return their outcomes; if the caller is cancelled, so is `pending.future`."""
        with self._lock:
            self._require_usable()
            if not pending.texts:
                return []
            self._pending.add(pending)
            self._queue.extend(pending.texts)
            self._work.notify(len(pending.texts))
            self._start_threads()
        try:
            return await asyncio.wrap_future(pending.future)
        finally:
            self._pending.discard(pending)

    def _start_threads(self) -> None:
        """Have a thread for each text that is queued, up to the number of workers. Needs the lock."""
        while len(self._slots) < min(self.workers, self._busy + len(self._queue)):
            slot = _Slot()
            slot.thread = threading.Thread(target=self._run, args=(slot,), daemon=True, name="rewardsmith-rules")
            self._slots.add(slot)
            slot.thread.start()

    def _run(self, slot: _Slot) -> None:
        while chunk := self._take(slot):
            again: list[PendingText] = []
            try:
                again = self._serve(slot, chunk)
            except Exception as error:  # noqa: BLE001 a bug of ours must not leave a caller waiting
                for item in chunk:
                    item.fail("crashed", f"the pool failed: {type(error).__name__}: {error}")
            finally:
                self._put_back(again)
        self._end_worker(slot)

    def _take(self, slot: _Slot) -> list[PendingText]:
        """Wait for the next texts; return none when the thread must end."""
        with self._lock:
            while not self.closed and len(self._slots) <= self.workers:
                while self._queue and self._queue[0].call.future.done():  # cancelled
                    self._queue.popleft()
                if self._queue and not self._exclusive and not (self._queue[0].exclusive and self._busy):
                    chunk = self._next_chunk()
                    self._exclusive = chunk[0].exclusive
                    self._busy += 1
                    return chunk
                self._work.wait()
            self._slots.discard(slot)
            return []

    def _next_chunk(self) -> list[PendingText]:
        """Take texts off the queue: one if there are few, so that all workers have some; more if there are many."""
        size = min(MAX_CHUNK, max(1, len(self._queue) // (4 * self.workers)))
        chunk = [self._queue.popleft()]
        characters = len(chunk[0].text)
        while self._queue and len(chunk) < size and not chunk[0].tries:
            item = self._queue[0]
            characters += len(item.text)
            if item.tries or characters > MAX_CHUNK_CHARACTERS or item.call.kind != chunk[0].call.kind:
                break
            self._queue.popleft()
            if not item.call.future.done():  # else it was cancelled
                chunk.append(item)
        return chunk

    def _put_back(self, items: Sequence[PendingText]) -> None:
        """Return texts without an outcome to the front of the queue."""
        with self._lock:
            if not self.closed:
                self._queue.extendleft(reversed(items))
            self._busy -= 1
            if self._exclusive or (self._queue and self._queue[0].exclusive):
                self._exclusive = False
                self._work.notify_all()
            else:
                self._work.notify(len(items))
            self._start_threads()

    def _serve(self, slot: _Slot, chunk: Sequence[PendingText]) -> list[PendingText]:
        """Score texts of one kind; return those that must be tried again."""
        pending = chunk[0].call
        try:
            worker, number = self._worker_for(slot, chunk[0])
        except UserError as error:
            for item in chunk:
                item.fail("crashed", str(error))
            return []
        except ForkServerError as error:
            time.sleep(RETRY_PAUSE * chunk[0].tries)
            return _retry(chunk, str(error))
        done, is_fresh = 0, worker.served == 0
        try:
            task = encode_task(chunk, number)
            for outcome in worker.run(task, len(chunk), pending.deadline, is_rule=not pending.call.loader):
                chunk[done].call.finish(chunk[done].index, outcome)
                done += 1
        except WorkerLostError as loss:
            self._count_loss()
            return _after_loss(chunk[done:], loss.cause, self._end_worker(slot), is_fresh=is_fresh and done == 0)
        if worker.recycled:
            self._end_worker(slot)
        return list(chunk[done:])

    def _worker_for(self, slot: _Slot, item: PendingText) -> tuple[Worker, int]:
        """Return a worker that waits for a task and has the rule, and the number of the rule."""
        server, number = self._server_with(item.call.call)
        if (worker := slot.worker) is not None:
            is_lost = worker.server is server and not worker.is_waiting()
            if is_lost:
                self._count_loss()
            if is_lost or worker.server is not server or worker.functions <= number or item.tries:
                self._end_worker(slot)
        slot.worker = slot.worker or server.fork()
        return slot.worker, number

    def _end_worker(self, slot: _Slot) -> str | None:
        worker, slot.worker = slot.worker, None
        return worker.end() if worker else None

    def _count_loss(self) -> None:
        with self._lock:
            self.lost += 1

    def _server_with(self, call: Call, limit: float = LOAD_TIMEOUT) -> tuple[ForkServer, int]:
        """Return the fork server, started if need be, and the rule's number. A failed import is remembered a while."""
        when, why = self._load_errors.get(call.pickled, (0.0, ""))
        if why and time.monotonic() < when + LOAD_RETRY:
            raise UserError(why)
        try:
            for is_last in (False, True):
                with self._server_lock:
                    if self.closed:
                        raise ForkServerError("the pool is closed")
                    if self._server is None or self._server.gone:
                        self._server = ForkServer()
                    server = self._server
                try:
                    return server, server.load(call, limit)
                except ForkServerError as error:
                    if error.timed_out:
                        raise UserError(
                            f"{call.title} cannot be loaded: importing it took more than {limit:g} s"
                        ) from None
                    if is_last and not self.closed:  # twice: the import itself ends the process
                        raise UserError(f"{call.title} cannot be loaded: {error} while importing it") from None
        except UserError as error:
            self._load_errors[call.pickled] = time.monotonic(), str(error)
            raise
        raise ForkServerError("the pool is closed")


def _after_loss(rest: Sequence[PendingText], cause: LossCause, how: str | None, *, is_fresh: bool) -> list[PendingText]:
    """Decide what the loss of a worker means for the texts it had not scored; return those to try again.

    Only the first of them can be the cause, and only if the worker had begun it. A crash counts if the worker had
    scored nothing before and the fork server survived; else an earlier or a concurrent text may be the cause.
    """
    first, *others = rest
    if cause == "timeout" and how != "signal 9":
        cause = "died"  # before we killed it; a process that the rule had started kept the socket open
    if cause == "timeout":
        first.fail("timeout", f"no verdict within {first.call.deadline:g} s: the worker was killed")
        return others
    if cause == "before begin":
        return _retry(rest, "the worker died before it began")
    if first.exclusive if how is None else is_fresh:
        died = f"the worker died: {how}" if how else "the worker killed the fork server"
        details = {
            "memory": f"MemoryError: the rule needed more than {first.call.memory} MiB",
            "malformed": "the worker sent a malformed verdict",
        }
        first.fail("crashed", details.get(cause, died))
        return others
    first.tries += 1
    first.exclusive = how is None
    return [first, *others]


def _retry(items: Sequence[PendingText], detail: str) -> list[PendingText]:
    """Return texts that had no worker and may be tried again."""
    for item in items:
        item.tries += 1
        if item.tries == MAX_TRIES:
            item.fail("crashed", detail)
    return [item for item in items if item.tries < MAX_TRIES]


def _worker_count(workers: int | None) -> int:
    if workers is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers < 1:
        raise UserError(f"a pool of {workers} workers: it needs at least 1")
    return workers


# ---- the pools of this process ---------------------------------------------------------------------------------------

_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()
_shared: dict[str, Pool] = {}
_shared_lock = threading.Lock()


def shared(workers: int | None = None) -> Pool:
    """Return the pool that all rules of this process share; `workers` sets its size, at first one per processor."""
    pool = _shared_pool("rules", workers)
    if workers is not None:
        pool.resize(workers)
    return pool


def shared_waiting() -> Pool:
    """Return the pool for functions that mostly wait: it has more workers than processors."""
    return _shared_pool("waiting", WAITING_WORKERS)


def _shared_pool(kind: str, workers: int | None) -> Pool:
    with _shared_lock:
        if kind not in _shared or _shared[kind].closed:
            _shared[kind] = Pool(workers)
        return _shared[kind]


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _after_fork() -> None:
    """A forked child makes new pools: its parent's threads are gone, and the sockets belong to the parent."""
    global _shared_lock  # noqa: PLW0603 one per process
    _shared_lock = threading.Lock()
    _shared.clear()
    for pool in list(_POOLS):
        pool.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
