"""What every trainer is: a number of steps, each of which returns an `Update`, and a state that can be saved."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from rewardsmith.checks import require, require_count, require_text, vector
from rewardsmith.errors import UserError
from rewardsmith.jobs import Job, JobContext, Result
from rewardsmith.records import to_json
from rewardsmith.rewards.component import Component
from rewardsmith.types import ScoredGroup

if TYPE_CHECKING:
    from rewardsmith.engines.protocol import Engine

Item = TypeVar("Item")


@dataclass(frozen=True)
class Update:
    """The result of a step."""

    step: int  # from 1; 0 for what is measured before the first
    metrics: Mapping[str, float] = field(default_factory=dict)
    halt: Exception | None = None  # why the run must end after this step; it is saved first


TokenColumn = Sequence[NDArray[np.float32] | None]
"""A number for each token of each rollout; None for a rollout that has none."""


@dataclass(frozen=True, eq=False)
class GroupRecord:
    """One line of the rollouts file."""

    step: int
    kind: str  # `train` or `validation`
    dropped: str  # why the group was not learned from; "" when it was, or was not meant to be
    scored: ScoredGroup
    advantages: Sequence[float | None]  # mean of each rollout; None where it had none
    # The advantage of each token of each rollout, None where all tokens have the mean; empty where that holds for all.
    token_advantages: TokenColumn = ()
    token_values: TokenColumn = ()  # what the critic predicted before each token; empty where there is no critic
    token_kl: TokenColumn = ()  # the KL penalty in the reward, before its coefficient; empty where there is none

    def __post_init__(self) -> None:
        require_count("GroupRecord.step", self.step, minimum=0)
        require_text("GroupRecord.kind", self.kind)
        require_text("GroupRecord.dropped", self.dropped)
        require("GroupRecord.advantages", self.advantages, Sequence)
        for name in ("token_advantages", "token_values", "token_kl"):
            object.__setattr__(self, name, self._column(name))

    def __eq__(self, other: object) -> bool:
        return to_json(self) == to_json(other) if isinstance(other, GroupRecord) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def _column(self, name: str) -> TokenColumn:
        """Return a field with numbers of tokens as arrays; a ValueError if they are not those of the rollouts."""
        field_name, column, rollouts = f"GroupRecord.{name}", getattr(self, name), self.scored.group.rollouts
        require(field_name, column, Sequence)
        if len(column) not in (0, len(rollouts)):
            raise ValueError(f"GroupRecord has {len(column)} {name} for {len(rollouts)} rollouts: one each")
        found = [None if one is None else vector(f"{field_name}[{i}]", one, np.float32) for i, one in enumerate(column)]
        for i, (values, rollout) in enumerate(zip(found, rollouts, strict=False)):
            if values is not None and len(values) != len(rollout.tokens):
                raise ValueError(f"{field_name}[{i}] has {len(values)} numbers for {len(rollout.tokens)} tokens")
        return tuple(found)


Report = Callable[..., None]
"""Shows how far a part of a step is; it is called like `JobContext.progress`."""


def no_report(*_: Any, **__: Any) -> None:
    """Show nothing."""


def reporting(what: str, report: Report) -> Report:
    """Return a report whose phases begin with `what`, such as "validation"."""
    return lambda phase, *counts, **more: report(f"{what}: {phase}", *counts, **more)


def counting(report: Report, phase: str, total: int, unit: str = "rollouts") -> Callable[[int], None]:
    """Return a function that adds up the rows that have been learned from, and reports how far a step is."""
    done = 0
    report(phase, done, total, unit=unit)

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        report(phase, done, total, unit=unit)

    return count


class Context(JobContext, Protocol):
    """What a run gives its trainers."""

    def engine(self, name: str) -> Engine:
        """Return a model of the recipe, loaded on first use."""
        ...

    def on_device(self, *names: str) -> AbstractAsyncContextManager[None]:
        """Keep these models on the device; those that share it with them are offloaded meanwhile."""
        ...

    def keep(self, records: Sequence[GroupRecord]) -> None:
        """Write groups to the rollouts file."""
        ...

    def keep_result(self, result: Result) -> None:
        """Write what a job returned: its tables are shown in the report."""
        ...

    def keep_audit(self, kind: Literal["audits", "watch"], content: dict[str, Any]) -> None:
        """Write what the stage's audit or watch has found to `audit.json`."""
        ...


class Trainer(Protocol):
    """One stage at work."""

    steps: int
    learners: Mapping[str, Engine]
    best_by: str
    reward: Component | None

    async def begin(self) -> Update:
        """Do what comes before the first step, such as a validation."""
        return Update(0)

    async def begin_again(self) -> None:
        """Do what comes before the next step of a run that was restored from a checkpoint."""

    async def step(self, number: int) -> Update:
        """Take step `number`, counted from 1."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs besides the weights, as JSON values."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""

    async def close(self) -> None:
        """End what is still under way."""


class JobStage(Trainer):
    """A job as a stage: one step, whose result goes to the evaluations of the run."""

    def __init__(self, job: Job, context: Context) -> None:
        self._job, self._context = job, context
        self.steps, self.learners, self.best_by, self.reward = 1, {}, "", None

    async def step(self, number: int) -> Update:
        """Run the job and write its tables."""
        result = await self._job.run(self._context)
        self._context.keep_result(result)
        for note in result.notes:
            self._context.log(note)
        if result.problem:
            raise UserError(result.problem)
        if result.failed >= 1:
            raise UserError(". ".join(["no item has a result", *result.notes[:1]]))
        return Update(number, {f"validation/{name}": value for name, value in result.metrics.items()})


# ---- items of a source ----------------------------------------------------------------------------------------------


class Draws(Generic[Item]):
    """Items of a source without end, pass after pass, with a position that can be saved.

    `source` yields the items of one pass, in an order given by a seed; each pass has a seed derived from `seed`.
    """

    def __init__(self, source: Callable[[int], Iterator[Item]], seed: int, name: str) -> None:
        self._source, self._seed, self._name = source, seed, name
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


MAX_COUNTED = 2_000_000
"""Items of a source that are counted for epochs; one with more, or without end, needs steps."""


def count_items(items: Iterator[Any], what: str, data: str, log: Callable[[str], None]) -> int:
    """Return how many items one pass over a source has; `what` they are is for messages."""
    log(f"counting the {what} of data.{data}")
    count = sum(1 for _ in islice(items, MAX_COUNTED + 1))
    if count > MAX_COUNTED:
        raise UserError(f"data.{data} has no end, or more than {MAX_COUNTED:,} {what}: set steps instead of epochs")
    if not count:
        raise UserError(f"data.{data} is empty: there is nothing to learn from")
    return count


HELD_OUT_SEED = 0
"""Order in which a source gives what is measured on: a constant, so that runs, stages and seeds can be compared."""

MAX_HELD_OUT = 100_000
"""Maximum of items for `all`: a built-in world has no end."""


def _checked_count(value: object) -> object:
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError('must be an integer of at least 1, or "all"')


Count = Annotated[int | Literal["all"], BeforeValidator(_checked_count)]
"""How many items to measure on; "all" takes every one that the data has."""


def held_out(read: Callable[[int], Iterator[Item]], count: int | Literal["all"], data: str) -> list[Item]:
    """Return the first `count` items of a source, or fewer where it has fewer, to measure on."""
    items = list(islice(read(HELD_OUT_SEED), MAX_HELD_OUT + 1 if count == "all" else count))
    if not items:
        raise UserError(f"data.{data} is empty: there is nothing to measure on")
    if count == "all" and len(items) > MAX_HELD_OUT:
        raise UserError(f'data.{data} has no end, or more than {MAX_HELD_OUT:,} items: set a number instead of "all"')
    return items


def derive(seed: int, *parts: int | str) -> int:
    """Return a seed for one purpose, below 2^63: the same parts, the same seed; others, an unrelated one."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *parts))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
