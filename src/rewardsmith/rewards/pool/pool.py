"""The pool: a queue of answers, and a thread for each worker process.

    score() --queue--> thread of a slot --task--> worker process --verdicts--> thread --scores--> the caller's future

Rules are programs that may hang, crash or take all memory on some answer. Here that costs the answer a failure and
the pool a worker, and nobody else anything.
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
from concurrent.futures import Future
from typing import Any, cast

from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.pool.call import Call, Result
from rewardsmith.rewards.pool.handles import Nursery, UnavailableError
from rewardsmith.rewards.pool.jobs import Item, Job
from rewardsmith.rewards.pool.slot import Slot
from rewardsmith.types import Failure, Prompt, Score

LOAD, AGAIN = 60.0, 300.0
"""Seconds that importing a rule may take, and after which one that failed is tried again."""

MOST_TOGETHER, MOST_CHARACTERS = 16, 1 << 20
"""Items that a worker is sent at once at most, and characters in them; one item always goes."""


class Pool:
    """Worker processes that score texts by rules. All methods may be called from any thread.

    Attributes:
        room: items that may be queued; the texts of further calls wait outside, in the order of the calls.
    """

    def __init__(self, workers: int | None = None, *, room: int = 4096) -> None:
        self.room = room
        self._workers = _count(workers)
        self._process = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._queue: deque[Item] = deque()
        self._outside: deque[Job] = deque()  # jobs with texts that found no room
        self._slots: dict[int, tuple[Slot, threading.Thread]] = {}
        self._idle = 0
        self._busy = 0
        self._alone = False
        self._lost_before = 0
        self._nursery: Nursery | None = None
        self._nursery_lock = threading.Lock()
        self._unloadable: dict[object, tuple[float, str]] = {}
        _POOLS.add(self)

    @property
    def workers(self) -> int:
        """How many workers there may be."""
        return self._workers

    @property
    def closed(self) -> bool:
        """Whether it cannot be used any more."""
        return self._closed

    @property
    def lost(self) -> int:
        """How many workers had to be killed, or died."""
        with self._lock:
            return self._lost_before + sum(slot.lost for slot, _ in self._slots.values())

    async def score(
        self, call: Call, prompt: Prompt, texts: Sequence[str], *, deadline: float, memory: int
    ) -> list[Score]:
        """Return one score per text, in order. Equal texts are scored once.

        Args:
            call: the rule. It is loaded if it was not; if that fails, so do all texts.
            prompt: what was asked.
            texts: the answers.
            deadline: seconds per text, from when a worker begins it.
            memory: MiB that a worker may use beyond what it had when it was made.
        """
        job, unique = self._job(call, prompt, texts, deadline, memory)
        if not texts:
            return []
        self._admit(job)
        try:
            scores = cast("list[Score]", await asyncio.wrap_future(job.future))
        finally:
            self._withdraw(job)
        return [scores[unique[text]] for text in texts]

    async def result(self, call: Call, argument: Any, text: str = "", *, deadline: float, memory: int) -> Any:
        """Return what a function that is no rule (`Call.loader`) returns for these two arguments: JSON.

        Args:
            call: the function. It is loaded if it was not.
            argument: its first argument; it must be picklable.
            text: the second.
            deadline: seconds, from when a worker begins.
            memory: MiB that a worker may use beyond what it had when it was made.

        Raises:
            CannotScore: it raised something, took too long, or lost its worker.
        """
        job = Job(call, argument, [text], deadline=deadline, memory=memory)
        self._admit(job)
        try:
            (outcome,) = await asyncio.wrap_future(job.future)
        finally:
            self._withdraw(job)
        if isinstance(outcome, Result):
            return outcome.value
        assert outcome.failure is not None
        raise CannotScore(outcome.failure.kind, outcome.failure.detail)

    def score_now(
        self, call: Call, prompt: Prompt, texts: Sequence[str], *, deadline: float, memory: int
    ) -> list[Score]:
        """Return what `score` does, for callers without an event loop."""
        job, unique = self._job(call, prompt, texts, deadline, memory)
        if not texts:
            return []
        self._admit(job)
        try:
            scores = cast("list[Score]", job.future.result())
        finally:
            self._withdraw(job)
        return [scores[unique[text]] for text in texts]

    async def load(self, call: Call, *, limit: float = LOAD) -> None:
        """Import a rule in the process that workers come from.

        Raises:
            UserError: if it cannot be imported within `limit` seconds, with the reason.
        """
        self._require_usable()
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # an import cannot be called off; only the waiting can

        def load() -> None:
            try:
                self.load_now(call, limit=limit)
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 it is raised where it is awaited
                done.set_exception(error)

        threading.Thread(target=load, daemon=True, name="rewardsmith-load").start()
        await asyncio.wrap_future(done)

    def load_now(self, call: Call, *, limit: float = LOAD) -> None:
        """Do what `load` does, for callers without an event loop."""
        self._require_usable()
        try:
            self._nursery_with(call, limit, again=True)
        except UnavailableError as error:
            raise UserError(str(error)) from None

    def resize(self, workers: int) -> None:
        """Have that many workers; those that are too many end after what they are doing."""
        with self._lock:
            self._workers = _count(workers)
            self._work.notify_all()
            self._start_threads()

    def close(self) -> None:
        """End all workers. What was not scored yet fails as cancelled. A closed pool cannot be used again."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._closed = True
            open_items = [*self._queue, *(item for slot, _ in self._slots.values() for item in slot.chunk)]
            open_items += [item for job in self._outside for item in job.waiting]
            self._queue.clear()
            self._outside.clear()
            threads = [thread for _, thread in self._slots.values()]
            self._work.notify_all()
        for item in open_items:
            item.fail(Failure("cancelled", "the pool was closed"))
        with self._nursery_lock:  # one that is just being started is closed too
            nursery = self._nursery
        if nursery:
            nursery.close()
        for thread in threads:
            thread.join(timeout=5.0)

    def abandon(self) -> None:
        """Let go of sockets that a fork of the trainer has copied: the nursery must notice when the trainer ends."""
        self._closed = True
        for slot, _ in self._slots.values():
            if slot.worker:
                slot.worker.abandon()
        if self._nursery:
            self._nursery.abandon()

    def _job(
        self, call: Call, prompt: Prompt, texts: Sequence[str], deadline: float, memory: int
    ) -> tuple[Job, dict[str, int]]:
        self._require_usable()
        unique = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        return Job(call, prompt, list(unique), deadline=deadline, memory=memory), unique

    def _require_usable(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError("this pool was made by another process: after a fork, make a new one")
        if self._closed:
            raise RuntimeError("the pool is closed: make a new one")

    def _admit(self, job: Job) -> None:
        with self._lock:
            self._require_usable()
            self._outside.append(job)
            self._fill()

    def _fill(self) -> None:
        """Queue what waits outside, as far as there is room."""
        before = len(self._queue)
        while self._outside and len(self._queue) < self.room:
            waiting = self._outside[0].waiting
            while waiting and len(self._queue) < self.room:
                self._queue.append(waiting.pop())
            if not waiting:
                self._outside.popleft()
        if len(self._queue) > before:
            self._work.notify(len(self._queue) - before)
            self._start_threads()

    def _withdraw(self, job: Job) -> None:
        """Take what nobody waits for any more out of the queue."""
        if job.future.done() and not job.future.cancelled():
            return
        job.future.cancel()
        if self._process != os.getpid():
            return
        with self._lock:
            self._outside = deque(other for other in self._outside if other is not job)
            self._queue = deque(item for item in self._queue if item.job is not job)
            self._work.notify_all()
            self._fill()

    def _start_threads(self) -> None:
        """Have a thread for each item that is queued, as far as there may be that many workers."""
        for number in range(self._workers):
            if self._idle >= len(self._queue) or len(self._slots) >= self._workers:
                return
            if number not in self._slots:
                slot = Slot(number, self._nursery_with)
                name = f"rewardsmith-rules-{number}"
                thread = threading.Thread(target=self._run, args=(slot,), daemon=True, name=name)
                thread.start()  # it waits for our lock
                self._slots[number] = slot, thread
                self._idle += 1  # until it takes something

    def _run(self, slot: Slot) -> None:
        while chunk := self._take(slot):
            back: list[Item] = []
            try:
                back = slot.serve(chunk)
            except Exception as error:  # noqa: BLE001 a mistake of ours must not leave a caller waiting
                for item in chunk:
                    item.fail(Failure("crashed", f"the pool failed: {type(error).__name__}: {error}"))
            finally:
                self._put_back(slot, back)
        slot.release()
        with self._lock:
            self._lost_before += slot.lost
            del self._slots[slot.number]
            self._start_threads()

    def _take(self, slot: Slot) -> Sequence[Item]:
        """Return what the slot is to do next; nothing when it is no longer needed."""
        with self._lock:
            while not self._closed and slot.number < self._workers:
                ready = self._queue and not self._alone and not (self._queue[0].solo and self._busy)
                if ready:
                    slot.chunk = self._cut()
                    self._alone = slot.chunk[0].solo
                    self._busy += 1
                    self._idle -= 1
                    self._fill()
                    return slot.chunk
                self._work.wait()
            self._idle -= 1
            return ()

    def _cut(self) -> list[Item]:
        """Take items off the queue: one when there are few, so that all workers have some; more when there are many."""
        most = min(MOST_TOGETHER, max(1, len(self._queue) // (4 * self._workers)))
        chunk = [self._queue.popleft()]
        characters = len(chunk[0].text)
        while len(chunk) < most and not chunk[0].tries:
            item = self._queue[0]
            characters += len(item.text)
            if item.tries or characters > MOST_CHARACTERS or item.job.kind != chunk[0].job.kind:
                break
            chunk.append(self._queue.popleft())
        return chunk

    def _put_back(self, slot: Slot, items: Sequence[Item]) -> None:
        """End a slot's turn; what it could not finish goes to the front of the queue."""
        closed = False
        with self._lock:
            closed = self._closed
            wanted = [] if closed else [item for item in items if not item.job.future.done()]
            self._queue.extendleft(reversed(wanted))
            slot.chunk = ()
            self._busy -= 1
            self._idle += 1
            if self._alone or (self._queue and self._queue[0].solo):
                self._alone = False
                self._work.notify_all()
            else:
                self._work.notify(len(wanted))
            self._start_threads()
        if closed:
            for item in items:
                item.fail(Failure("cancelled", "the pool was closed"))

    def _nursery_with(self, call: Call, limit: float = LOAD, *, again: bool = False) -> tuple[Nursery, int]:
        """Return the nursery, started if need be, and the number that the rule has in it.

        A rule that could not be loaded is not tried again for a while, unless `again`: failing may take its time.
        """
        when, why = self._unloadable.get(call.key, (0.0, ""))
        if why and not again and time.monotonic() < when + AGAIN:
            raise UserError(why)
        try:
            return self._loaded(call, limit)
        except UserError as error:
            self._unloadable[call.key] = time.monotonic(), str(error)
            raise

    def _loaded(self, call: Call, limit: float) -> tuple[Nursery, int]:
        for last in (False, True):
            with self._nursery_lock:
                if self._closed:
                    raise UnavailableError("the pool is closed")
                if self._nursery is None or self._nursery.gone:
                    self._nursery = Nursery()
                nursery = self._nursery
            try:
                return nursery, nursery.load(call, limit)
            except UnavailableError as error:
                if error.late:
                    raise UserError(f"{call.title} cannot be loaded: importing it took more than {limit:g} s") from None
                if last and not self._closed:  # twice: the import itself ends the process
                    raise UserError(f"{call.title} cannot be loaded: {error} while importing it") from None
        raise UnavailableError("the pool is closed")


def _count(workers: int | None) -> int:
    if workers is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers < 1:
        raise UserError(f"a pool of {workers} workers: it needs at least 1")
    return workers


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _after_fork() -> None:
    """A forked child starts without a pool: its parent's threads are gone and its sockets are not for two."""
    for pool in list(_POOLS):
        pool.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
