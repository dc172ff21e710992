"""Many questions at once: what comes back is kept at once, what fails is listed, an outage is waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError
from rewardsmith.runs.preparing.kept import KeptAnswers
from rewardsmith.runs.progress import Progress
from rewardsmith.trainers.protocol import Update

T = TypeVar("T")

STREAK = 20
"""Questions in a row without any answer, after which something is wrong with all of them, such as a used up quota."""

ANSWERED = ("unparsable", "invalid", "truncated")
"""Failures that are those of one row: the model did answer, and the same command would meet the same rows again."""

FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
"""Seconds before a model that is out of reach is asked again: doubled each time, up to the second."""


@dataclass(frozen=True)
class Job(Generic[T]):
    """Something to ask about.

    Attributes:
        key: what the answer is known by.
        where: file and row, for messages.
        item: what it is about.
    """

    key: str
    where: str
    item: T


@dataclass(frozen=True)
class Failed:
    """A question that stayed without an answer.

    Attributes:
        where: file and row.
        kind: why, as `rewardsmith.types.FailureKind`.
        detail: what was seen.
        tries: how often it was asked.
    """

    where: str
    kind: str
    detail: str
    tries: int

    def __str__(self) -> str:
        """Return the line for people."""
        return f"{self.where}: {self.kind} after {self.tries} {'try' if self.tries == 1 else 'tries'}: {self.detail}"

    def as_json(self) -> dict[str, Any]:
        """Return the same for a file."""
        return asdict(self)


@dataclass
class AskAll(Generic[T]):
    """Asks about all jobs.

    Attributes:
        work: asks about one; returns what is kept of the answer, as JSON. Raises `ModelCallError`.
        kept: where answers go; what is there already is not asked again.
        progress: what the user sees.
        at_once: how many are asked about at the same time.
        wait: seconds that a model which is out of reach is waited for.
        failed: what stayed without an answer, by key.
        asked: how many got an answer now.
    """

    work: Callable[[T], Awaitable[Any]]
    kept: KeptAnswers
    progress: Progress
    at_once: int = 32
    wait: float = 300.0
    failed: dict[str, Failed] = field(default_factory=dict)
    asked: int = 0
    _resumed: int = 0
    _streak: int = 0
    _waiting: bool = False

    async def __call__(self, jobs: Iterator[Job[T]], done: int) -> None:
        """Ask about every job that has no answer yet; `done` have one.

        Raises:
            UserError: the model stays out of reach, or nothing succeeds any more; what was answered is kept.
        """
        self._resumed = done
        begun: set[str] = set()

        async def worker() -> None:
            for job in jobs:
                if job.key not in self.kept and job.key not in begun:
                    begun.add(job.key)
                    await self._one(job)
                    await asyncio.sleep(0)  # answers that a cache knows must not keep the others from their turn

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self.at_once):
                    tasks.create_task(worker())
        except BaseExceptionGroup as several:  # a task group wraps even a single cause
            raise several.exceptions[0] from None

    async def _one(self, job: Job[T]) -> None:
        try:
            self.kept.add(job.key, await self._patiently(job))
            self.asked += 1
            self._streak = 0
        except ModelCallError as error:
            self.failed[job.key] = Failed(job.where, error.kind, str(error)[:2_000], error.attempts)
            self._streak = 0 if error.kind in ANSWERED else self._streak + 1
            if self._streak >= STREAK:
                raise UserError(
                    f"the last {STREAK} questions stayed without an answer. {self.failed[job.key]}\n{self._remedy}"
                ) from None
        settled = self._resumed + self.asked + len(self.failed)
        self.progress.step(Update(settled, {"reward/failed": len(self.failed) / settled}))

    async def _patiently(self, job: Job[T]) -> Any:
        until, pause = None, FIRST_WAIT
        while True:
            try:
                answer = await self.work(job.item)
            except ModelCallError as error:
                if error.kind != "unreachable":
                    raise
                until = time.monotonic() + self.wait if until is None else until
                left = until - time.monotonic()
                if left <= 0:
                    raise UserError(f"the model is out of reach: {error}\n{self._remedy}") from None
                if not self._waiting:
                    self._waiting = True
                    self.progress.log(f"the model is out of reach; waiting up to {left:.0f} s for it: {error}")
                await asyncio.sleep(min(pause, left))
                pause = min(2 * pause, LONGEST_WAIT)
            else:
                if self._waiting:
                    self._waiting = False
                    self.progress.log("the model answers again")
                return answer

    @property
    def _remedy(self) -> str:
        return f"The same command goes on; {self.kept.file} has {self._resumed + self.asked:,} answers"


__all__ = ["AskAll", "Failed", "Job"]
