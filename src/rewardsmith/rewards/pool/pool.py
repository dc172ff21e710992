"""The pool: a queue of texts, and a thread for each worker process.

    score() --queue--> thread --task--> worker process --replies--> thread --outcomes--> the caller's future

A rule may hang, crash or use all memory on some text. That costs this text a failure and the pool a worker, and no
other text anything.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.pool.processes import ForkServer, ForkServerError, LossCause, Worker, WorkerLostError
from rewardsmith.types import Failure, Prompt, Score

LOAD_TIMEOUT = 60.0
"""Seconds that importing a rule may take."""

MAX_CHUNK, MAX_CHUNK_CHARACTERS = 16, 1 << 20
"""Texts and characters that a worker is sent at once; one text is always sent."""

MAX_TRIES, RETRY_PAUSE = 6, 0.1
"""How often a text may get no worker, and the seconds by which the pauses grow."""

WAITING_WORKERS = 32
"""Workers of the pool for functions that mostly wait, such as coroutines that call a service."""


@dataclass(frozen=True)
class Call:
    """A function that workers can import, with its settings as keyword arguments."""

    name: str  # module:attribute
    arguments: Mapping[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = ()  # heavy ones that the rule imports when it is called; imported once, ahead of it
    version: str = ""  # a module whose version changed is imported again
    loader: str = ""
    """Empty for a rule. Else `module:function` of ours that gets the name and the arguments and returns the function to
    call: it takes two arguments, as a rule does, and returns JSON instead of a number."""

    pickled: bytes = field(init=False)  # all of this: the message for the fork server, and the identity of the call

    def __post_init__(self) -> None:
        fields = (self.name, dict(self.arguments), self.modules, self.version, self.loader)
        try:
            object.__setattr__(self, "pickled", pickle.dumps(fields))
        except Exception as error:  # a setting may be anything
            cause = f"{type(error).__name__}: {error}"
            raise UserError(f"the settings of {self.title} cannot be sent to a worker: {cause}") from error

    @property
    def title(self) -> str:
        """Its name in messages."""
        return self.name if self.loader else f"the rule {self.name}"


def version_of(target: Any) -> str:
    """Return the file of a function's module with its time and size, or "" without a file."""
    path = getattr(sys.modules.get(getattr(target, "__module__", "")), "__file__", None)
    try:
        status = os.stat(path or "")
    except OSError:
        return ""
    return f"{path}:{status.st_mtime_ns}:{status.st_size}"


class PendingCall:
    """The distinct texts of one call of the pool; the future gets what the function returned for each, or a `Failure`.

    Texts of calls with an equal `kind` may be sent to a worker together.
    """

    def __init__(self, call: Call, argument: Any, texts: Sequence[str], deadline: float, memory: int) -> None:
        self.call, self.deadline, self.memory = call, deadline, memory
        self.argument = pickle.dumps(argument)
        self.kind = (call.pickled, deadline, memory)
        self.texts = [PendingText(self, i, text) for i, text in enumerate(texts)]
        self.future: Future[list[Any]] = Future()
        self._outcomes: dict[int, Any] = {}
        self._lock = threading.Lock()

    def finish(self, index: int, outcome: Any) -> None:
        """Set the outcome of one text; the first one counts. The last text resolves the future."""
        with self._lock:
            self._outcomes.setdefault(index, outcome)
            if len(self._outcomes) < len(self.texts):
                return
        with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
            self.future.set_result([self._outcomes[i] for i in range(len(self.texts))])


@dataclass(eq=False, slots=True)
class PendingText:
    """One text of a pending call.

    From the first loss of its worker on, it is scored by a fresh worker that gets nothing else, so that the outcome is
    due to this text. If the fork server was lost too, the next try runs while no other text does.
    """

    call: PendingCall
    index: int
    text: str
    tries: int = 0
    exclusive: bool = False

    def fail(self, kind: str, detail: str) -> None:
        """Set a failure as the outcome."""
        self.call.finish(self.index, Failure(kind, detail, attempts=self.tries + 1))  # type: ignore[arg-type]


class Pool:
    """Worker processes that score texts by rules. All methods may be called from any thread."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or _processors()
        self.closed = False
        self.lost = 0
        self.busy = 0
        self._process = os.getpid()
        self._work = threading.Condition()
        self._queue: deque[PendingText] = deque()
        self._pending: set[PendingCall] = set()
        self._threads: list[_WorkerThread] = []
        self._exclusive = False
        self._server: ForkServer | None = None
        self._server_lock = threading.Lock()
        _POOLS.add(self)

    async def score(
        self, call: Call, prompt: Prompt, texts: Sequence[str], *, deadline: float, memory: int
    ) -> list[Score]:
        """Return one score per text, in order. Equal texts are scored once; if the rule cannot be loaded, all fail.

        The deadline is in seconds per text, from when a worker begins it; the memory in MiB, beyond what the worker
        had when it was forked.
        """
        unique = list(dict.fromkeys(texts))
        outcomes = await self._submit(PendingCall(call, prompt, unique, deadline, memory))
        scores = {
            text: Score(failure=outcome) if isinstance(outcome, Failure) else Score(outcome)
            for text, outcome in zip(unique, outcomes, strict=True)
        }
        return [scores[text] for text in texts]

    async def result(self, call: Call, argument: Any, text: str = "", *, deadline: float, memory: int) -> Any:
        """Return the JSON that a function with a `Call.loader` returns for these two arguments."""
        (outcome,) = await self._submit(PendingCall(call, argument, [text], deadline, memory))
        if isinstance(outcome, Failure):
            raise CannotScore(outcome.kind, outcome.detail)
        return outcome

    async def load(self, call: Call, *, limit: float = LOAD_TIMEOUT) -> None:
        """Import a rule in the fork server; raises a `UserError` if that fails or takes more than `limit` seconds."""
        await asyncio.to_thread(self.load_now, call, limit=limit)

    def load_now(self, call: Call, *, limit: float = LOAD_TIMEOUT) -> None:
        """Do what `load` does, for callers without an event loop."""
        self._require_usable()
        try:
            self.server().load(call, limit)
        except ForkServerError as error:
            raise UserError(str(error)) from None

    def close(self) -> None:
        """End all workers. Texts without a score fail as cancelled."""
        if self._process != os.getpid():
            return
        with self._work:
            self.closed = True
            self._queue.clear()
            self._work.notify_all()
        for pending in list(self._pending):
            for item in pending.texts:
                item.fail("cancelled", "the pool was closed")
        with self._server_lock:  # a server that is being started is closed too
            if self._server:
                self._server.close()
        for thread in self._threads:
            thread.join(timeout=5.0)
        _POOLS.discard(self)

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

    async def _submit(self, pending: PendingCall) -> list[Any]:
        """Queue the texts and return their outcomes; if the caller is cancelled, so is `pending.future`."""
        with self._work:
            self._require_usable()
            if not pending.texts:
                return []
            self._pending.add(pending)
            self._queue.extend(pending.texts)
            self._work.notify(len(pending.texts))
            while len(self._threads) < min(self.workers, self.busy + len(self._queue)):
                self._threads.append(_WorkerThread(self))
                self._threads[-1].start()
        try:
            return await asyncio.wrap_future(pending.future)
        finally:
            self._pending.discard(pending)

    # ---- for the threads ---------------------------------------------------------------------------------------------

    def server(self) -> ForkServer:
        """Return the fork server, started if need be."""
        with self._server_lock:
            if self.closed:
                raise ForkServerError("the pool is closed")
            if self._server is None or self._server.gone:
                self._server = ForkServer()
            return self._server

    def take(self) -> list[PendingText]:
        """Wait for the next texts of one kind; return none when the thread must end.

        One text if there are few, so that all workers have some; more if there are many.
        """
        with self._work:
            while not self.closed:
                while self._queue and self._queue[0].call.future.done():  # cancelled
                    self._queue.popleft()
                if self._queue and not self._exclusive and not (self._queue[0].exclusive and self.busy):
                    break
                self._work.wait()
            else:
                return []
            size = min(MAX_CHUNK, max(1, len(self._queue) // (4 * self.workers)))
            first = self._queue.popleft()
            chunk, characters = [first], len(first.text)
            while self._queue and len(chunk) < size and not first.tries:
                item = self._queue[0]
                characters += len(item.text)
                if item.tries or characters > MAX_CHUNK_CHARACTERS or item.call.kind != first.call.kind:
                    break
                chunk.append(self._queue.popleft())
            self._exclusive = first.exclusive
            self.busy += 1
            return chunk

    def put_back(self, items: Sequence[PendingText]) -> None:
        """End a task; texts without an outcome return to the front of the queue."""
        with self._work:
            if not self.closed:
                self._queue.extendleft(reversed(items))
            self.busy -= 1
            if self._exclusive or items:
                self._exclusive = False
                self._work.notify_all()
            elif self._queue and self._queue[0].exclusive:
                self._work.notify_all()


class _WorkerThread(threading.Thread):
    """Scores texts of the queue in a worker process, which it replaces when it is lost."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(daemon=True, name="rewardsmith-rules")
        self._pool = pool
        self._worker: Worker | None = None

    def run(self) -> None:
        """Work until the pool is closed."""
        while chunk := self._pool.take():
            again: list[PendingText] = []
            try:
                again = self._serve(chunk)
            except Exception as error:  # noqa: BLE001 a bug of ours must not leave a caller waiting
                for item in chunk:
                    item.fail("crashed", f"the pool failed: {type(error).__name__}: {error}")
            finally:
                self._pool.put_back(again)
        self._end_worker()

    def _serve(self, chunk: Sequence[PendingText]) -> list[PendingText]:
        """Score texts of one kind; return those that must be tried again."""
        pending = chunk[0].call
        try:
            worker, number = self._worker_for(chunk[0])
        except UserError as error:
            for item in chunk:
                item.fail("crashed", str(error))
            return []
        except ForkServerError as error:
            time.sleep(RETRY_PAUSE * chunk[0].tries)
            for item in chunk:
                item.tries += 1
                if item.tries == MAX_TRIES:
                    item.fail("crashed", str(error))
            return [item for item in chunk if item.tries < MAX_TRIES]
        done, is_fresh = 0, worker.served == 0
        task = (number, pending.memory, [(item.call.argument, item.text) for item in chunk])
        try:
            for outcome in worker.run(task, pending.deadline, is_rule=not pending.call.loader):
                chunk[done].call.finish(chunk[done].index, outcome)
                done += 1
        except WorkerLostError as loss:
            self._pool.lost += 1
            return _after_loss(chunk[done:], loss.cause, self._end_worker(), is_fresh=is_fresh and done == 0)
        if worker.recycled:
            self._end_worker()
        return list(chunk[done:])

    def _worker_for(self, item: PendingText) -> tuple[Worker, int]:
        """Return a worker that waits for a task and has the rule, and the number of the rule."""
        server = self._pool.server()
        number = server.load(item.call.call, LOAD_TIMEOUT)
        if (worker := self._worker) is not None:
            is_lost = worker.server is server and not worker.is_waiting()
            self._pool.lost += is_lost
            if is_lost or worker.server is not server or worker.functions <= number or item.tries:
                self._end_worker()
        self._worker = self._worker or server.fork()
        return self._worker, number

    def _end_worker(self) -> str | None:
        worker, self._worker = self._worker, None
        return worker.end() if worker else None


def _after_loss(rest: Sequence[PendingText], cause: LossCause, how: str | None, *, is_fresh: bool) -> list[PendingText]:
    """Decide what the loss of a worker means for the texts it had not scored; return those to try again.

    Only the first of them can be the cause. A crash counts if the worker had scored nothing before and the fork server
    survived; else an earlier or a concurrent text may be the cause.
    """
    first, *others = rest
    if cause == "timeout" and how != "signal 9":
        cause = "died"  # before we killed it; a process that the rule had started kept the socket open
    if cause == "timeout":
        first.fail("timeout", f"no verdict within {first.call.deadline:g} s: the worker was killed")
        return others
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


# ---- the pools of this process ---------------------------------------------------------------------------------------

_POOLS: set[Pool] = set()
_shared: dict[str, Pool] = {}
_shared_lock = threading.Lock()


def shared(workers: int | None = None) -> Pool:
    """Return the pool that all rules of this process share; another number of workers replaces it."""
    return _shared_pool("rules", workers)


def shared_waiting() -> Pool:
    """Return the pool for functions that mostly wait: it has more workers than processors."""
    return _shared_pool("waiting", WAITING_WORKERS)


def _shared_pool(kind: str, workers: int | None) -> Pool:
    with _shared_lock:
        pool = _shared.get(kind)
        if pool is not None and workers not in (None, pool.workers):
            pool.close()
        if pool is None or pool.closed:
            pool = _shared[kind] = Pool(workers)
        return pool


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _after_fork() -> None:
    """A forked child makes new pools: its parent's threads are gone, and the sockets belong to the parent."""
    global _shared_lock  # noqa: PLW0603 one per process
    _shared_lock = threading.Lock()
    _shared.clear()
    for pool in _POOLS:
        pool.abandon()
    _POOLS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
