"""A place for one worker: keeps it supplied, replaces it, and decides what its loss says about the answers it had."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rewardsmith.errors import UserError
from rewardsmith.rewards.pool.call import Call
from rewardsmith.rewards.pool.handles import Cause, LostError, Nursery, UnavailableError, Worker
from rewardsmith.rewards.pool.jobs import Item, task_of
from rewardsmith.types import Failure

ATTEMPTS, PAUSE = 4, 0.25
"""How often a worker is asked for where none can be had, and the seconds by which the pauses between grow."""

MOST_TRIES = 10
"""How often an answer may lose its worker before it has begun. That is nobody's fault, but must end."""


class Slot:
    """Has at most one worker; used by one thread.

    Attributes:
        number: its place in the pool.
        chunk: what is being scored.
        worker: the worker, or None.
        lost: how many workers had to be killed or died.
    """

    def __init__(self, number: int, nursery_with: Callable[[Call], tuple[Nursery, int]]) -> None:
        self.number = number
        self.chunk: Sequence[Item] = ()
        self.worker: Worker | None = None
        self.lost = 0
        self._nursery_with = nursery_with

    def serve(self, chunk: Sequence[Item]) -> list[Item]:
        """Score the items, which are of one kind; return those that must be tried again, by whichever slot."""
        try:
            worker, number = self._worker_for(chunk[0])
        except (UserError, UnavailableError) as error:
            for item in chunk:
                item.fail(Failure("crashed", str(error)))
            return []
        done, fresh = 0, worker.served == 0
        try:
            job = chunk[0].job
            for outcome in worker.answers(
                task_of(chunk, number), len(chunk), job.deadline, results=bool(job.call.loader)
            ):
                chunk[done].finish(outcome)
                done += 1
        except LostError as loss:
            self.lost += 1
            return _judge(chunk[done:], loss.cause, self.release(), fresh=fresh and done == 0)
        if worker.tired:
            self.release()
        return list(chunk[done:])

    def release(self) -> str | None:
        """End the worker; return how it ended, None when the nursery is gone too."""
        worker, self.worker = self.worker, None
        return worker.end() if worker else None

    def _worker_for(self, item: Item) -> tuple[Worker, int]:
        """Return a worker that waits and knows the rule, and the number of the rule."""
        for attempt in range(ATTEMPTS):
            try:
                nursery, number = self._nursery_with(item.job.call)
                if self.worker and self.worker.nursery is nursery and not self.worker.idle():
                    self.lost += 1
                    self.release()
                elif self.worker and (
                    self.worker.nursery is not nursery
                    or self.worker.known <= number
                    or (item.tries and self.worker.served)
                ):
                    self.release()
                self.worker = self.worker or nursery.fork()
                return self.worker, number
            except UnavailableError:
                if attempt + 1 == ATTEMPTS:
                    raise
                time.sleep(PAUSE * attempt)
        raise AssertionError


def _judge(rest: Sequence[Item], cause: Cause, how: str | None, *, fresh: bool) -> list[Item]:
    """Decide what the loss of a worker means for the items that it had not scored; return those to try again.

    Only the first of them can be the cause, and only when the worker had begun it. A crash counts when it came from a
    worker that had scored nothing before, and while the other workers lived: else an earlier answer, or one that was
    scored beside it, may be the cause.
    """
    first, others = rest[0], list(rest[1:])
    if cause == "timeout" and how != "signal 9":
        cause = "died"  # before we could kill it; a process that it had started kept its socket open
    if cause == "timeout":
        first.fail(Failure("timeout", f"no verdict within {first.job.deadline:g} s: the worker was ended"))
        return others
    if cause == "idle":
        for item in rest:
            item.tries += 1
        for item in rest:
            if item.tries > MOST_TRIES:
                item.fail(Failure("crashed", "the worker died before it began", attempts=item.tries))
        return [item for item in rest if item.tries <= MOST_TRIES]
    sure = first.solo if how is None else fresh
    if sure:
        first.fail(_crash(first, cause, how))
        return others
    first.tries += 1
    first.solo = how is None
    return [first, *others]


def _crash(item: Item, cause: Cause, how: str | None) -> Failure:
    details = {
        "memory": f"MemoryError: the rule needed more than {item.job.memory} MiB",
        "garbled": "the worker sent what is no verdict",
        "died": f"the worker died: {how}" if how else "the worker ended the process that all workers come from",
    }
    return Failure("crashed", details[cause], attempts=item.tries + 1)
