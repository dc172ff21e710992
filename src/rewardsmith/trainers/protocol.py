"""What every trainer is: a number of steps, each of which returns an `Update`, and a state that can be saved."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rewardsmith.algorithms.schedules import SCHEDULES
from rewardsmith.engines.protocol import Loss, Outputs
from rewardsmith.errors import UserError
from rewardsmith.jobs import JobContext, Result
from rewardsmith.learning import OptimizerSettings
from rewardsmith.rewards.component import Component
from rewardsmith.types import ScoredGroup

if TYPE_CHECKING:
    from torch import Tensor

    from rewardsmith.engines.protocol import Engine

Item = TypeVar("Item")


@dataclass(frozen=True)
class Update:
    """What a step did.

    Attributes:
        step: its number, from 1; 0 for what is measured before the first.
        metrics: numbers by name, such as `reward/mean`.
        halt: why the run must end after this step; it is saved first.
    """

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    halt: Exception | None = None


@dataclass(frozen=True)
class GroupRecord:
    """One line of the rollouts file.

    Attributes:
        step: when it was written.
        kind: `train` or `validation`.
        dropped: why the group was not learned from; "" when it was, or was not meant to be.
        scored: the group and its scores.
        advantages: mean advantage of each rollout; None where it had none.
    """

    step: int
    kind: str
    dropped: str
    scored: ScoredGroup
    advantages: Sequence[float | None]


class Report(Protocol):
    """Shows how far a part of a step is; see `Context.progress`."""

    def __call__(self, phase: str, done: int, total: int, *, unit: str = "rollouts", tokens: int = 0) -> None:
        """Show it."""
        ...


def no_report(phase: str, done: int, total: int, *, unit: str = "rollouts", tokens: int = 0) -> None:
    """Show nothing."""


def reporting(what: str, report: Report) -> Report:
    """Return a report whose phases say that they belong to `what`, such as a validation."""

    def labelled(phase: str, done: int, total: int, *, unit: str = "rollouts", tokens: int = 0) -> None:
        report(f"{what}: {phase}", done, total, unit=unit, tokens=tokens)

    return labelled


def counting(report: Report, phase: str, total: int, unit: str = "rollouts") -> Callable[[Loss], Loss]:
    """Return what makes losses report the rows that have gone through them, all together, after each micro-batch."""
    done = 0

    def counted(loss: Loss) -> Loss:
        def reported(outputs: Outputs) -> Tensor:
            nonlocal done
            report(phase, done, total, unit=unit)
            done += len(outputs.rows)
            return loss(outputs)

        return reported

    return counted


class Context(JobContext, Protocol):
    """What a run gives its trainers."""

    def engine(self, name: str) -> Engine:
        """Return a model of the recipe, loaded when it is first asked for."""
        ...

    def on_device(self, *names: str) -> AbstractAsyncContextManager[None]:
        """Keep these models awake; those that share the device with them sleep meanwhile."""
        ...

    def keep(self, records: Sequence[GroupRecord]) -> None:
        """Write groups to the rollouts file."""
        ...

    def keep_result(self, result: Result) -> None:
        """Write what a job returned: its tables are shown in the report."""
        ...


class Trainer(Protocol):
    """One stage at work."""

    steps: int
    learners: Mapping[str, Engine]
    best_by: str
    reward: Component | None

    async def begin(self) -> Update:
        """Do what comes before the first step, such as a validation."""
        ...

    async def step(self, number: int) -> Update:
        """Take step `number`, counted from 1."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what going on after the last step needs beside the weights, as JSON values."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        ...


class Draws(Generic[Item]):
    """Items of a source without end, pass after pass, with a position that can be saved.

    Args:
        source: yields the items of one pass, in an order given by a seed.
        seed: of the first pass; later ones have seeds made from it.
        name: of the source in messages.
    """

    def __init__(self, source: Callable[[int], Iterator[Item]], seed: int, name: str) -> None:
        self._source = source
        self._seed = seed
        self._name = name
        self._open(0, 0)

    def _open(self, passes: int, taken: int) -> None:
        self._passes, self._taken = passes, taken
        self._items = self._source(derive(self._seed, passes))
        if taken and len(list(islice(self._items, taken - 1, taken))) != 1:
            raise UserError(
                f"data.{self._name} has fewer than {taken} items now: the data changed since the run stopped"
            )

    def take(self, count: int) -> list[Item]:
        """Return the next items."""
        items: list[Item] = []
        while len(items) < count:
            more = list(islice(self._items, count - len(items)))
            items += more
            self._taken += len(more)
            if len(items) < count:
                if not self._taken:
                    raise UserError(f"data.{self._name} is empty: there is nothing to learn from")
                self._open(self._passes + 1, 0)
        return items

    def state(self) -> list[int]:
        """Return the position."""
        return [self._passes, self._taken]

    def restore(self, state: Sequence[int]) -> None:
        """Go to a position that `state` returned."""
        self._open(*state)


MOST_COUNTED = 2_000_000
"""Items of a source that are counted for epochs; one with more, or without end, needs steps."""


def count_items(items: Iterator[Any], what: str, data: str, say: Callable[[str], None]) -> int:
    """Return how many items one pass over a source has.

    Args:
        items: one pass.
        what: what they are, for messages: `demonstrations`.
        data: the name of the source.
        say: tells the user that this may take a while.

    Raises:
        UserError: there are none, or more than `MOST_COUNTED`.
    """
    say(f"counting the {what} of data.{data}")
    count = sum(1 for _ in islice(items, MOST_COUNTED + 1))
    if count > MOST_COUNTED:
        raise UserError(f"data.{data} has no end, or more than {MOST_COUNTED:,} {what}: set steps instead of epochs")
    if not count:
        raise UserError(f"data.{data} is empty: there is nothing to learn from")
    return count


def learning_rate(optimizer: OptimizerSettings, done: int, total: int) -> float:
    """Return the rate of the optimizer step after `done` others; a warm-up begins above 0, or a step would be lost."""
    at = done + 1 if done < optimizer.warmup else done
    schedule = SCHEDULES[optimizer.schedule]
    return optimizer.lr * schedule(at, total=total, warmup=optimizer.warmup, floor=optimizer.floor)


def derive(seed: int, *parts: int | str) -> int:
    """Return a seed for one purpose, below 2^63: the same parts, the same seed; others, an unrelated one."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *parts))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
