"""What is waiting to be scored."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.rewards.pool.call import Call, Result
from rewardsmith.types import Failure, Score


@dataclass(eq=False, slots=True)
class Item:
    """One text of a job.

    Attributes:
        job: what it belongs to.
        index: its place there.
        text: the answer to score.
        tries: how often its worker was lost, for whatever reason. From the first time on it is scored alone, by a
            worker that has scored nothing before: what happens then is due to this answer and to no other.
        solo: True when all workers were lost at once while it was scored. It is tried again while no other runs.
    """

    job: Job
    index: int
    text: str
    tries: int = 0
    solo: bool = False

    def finish(self, outcome: Score | Result) -> None:
        """Give the outcome; the first one counts."""
        self.job.finish(self.index, outcome)

    def fail(self, failure: Failure) -> None:
        """Give a failure as the score."""
        self.finish(Score(failure=failure))


class Job:
    """The texts of one call of `score`, each of them once.

    Attributes:
        call: the rule.
        prompt: pickled; for a function that is no rule, its first argument.
        deadline: seconds per answer.
        memory: MiB that a worker may use beyond what it had when it was made.
        kind: items of jobs with an equal kind may be sent to a worker together.
        waiting: the items that have not been queued yet.
        future: the outcomes, in the order of the items: scores, or results of a function that is no rule.
    """

    def __init__(self, call: Call, prompt: Any, texts: Sequence[str], *, deadline: float, memory: int) -> None:
        self.call = call
        self.prompt = pickle.dumps(prompt)
        self.deadline = deadline
        self.memory = memory
        self.waiting = [Item(self, i, text) for i, text in enumerate(texts)]
        self.waiting.reverse()  # taken from the end
        self.future: Future[list[Score | Result]] = Future()
        try:
            self.kind: object = (call.key, deadline, memory)
        except UserError:
            self.kind = object()  # it will fail when it is loaded
        self._outcomes: list[Score | Result | None] = [None] * len(texts)
        self._left = len(texts)
        self._lock = threading.Lock()

    def finish(self, index: int, outcome: Score | Result) -> None:
        """Take the outcome of one item; with the last one the job is done."""
        with self._lock:
            if self._outcomes[index] is not None:
                return
            self._outcomes[index] = outcome
            self._left -= 1
            if self._left:
                return
        with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
            self.future.set_result([outcome for outcome in self._outcomes if outcome is not None])


def task_of(chunk: Sequence[Item], number: int) -> bytes:
    """Return what a worker is sent: the number of the rule, its cap, the prompts and the texts."""
    job = chunk[0].job
    prompts: dict[bytes, int] = {}
    answers = [(prompts.setdefault(item.job.prompt, len(prompts)), item.text) for item in chunk]
    return pickle.dumps((number, job.memory, list(prompts), answers))
