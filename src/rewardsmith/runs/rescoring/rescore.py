"""Score stored rollouts: many groups at once, results in order, kept as they come.

rescored = rescore(StoredRollouts("runs/quickstart"), find_reward("recipe.toml:policy"), progress=Progress(console))
rescored.measured[""].mean
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from rewardsmith.config import Chosen
from rewardsmith.errors import UserError
from rewardsmith.llm import Usage
from rewardsmith.rewards.base import Halt, Reward, score
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.measure import Measured, Measures, quantiles
from rewardsmith.rewards.tree import check, latencies
from rewardsmith.runs.model_registry import ModelRegistry
from rewardsmith.runs.progress import Progress
from rewardsmith.runs.rescoring.alike import Alike
from rewardsmith.runs.rescoring.compare import Compared, Comparison
from rewardsmith.runs.rescoring.kept import KeptScores
from rewardsmith.runs.rescoring.outcomes import Known, Outcomes
from rewardsmith.runs.rescoring.stored import Stored, StoredRollouts
from rewardsmith.runs.stopping import Interrupted, stoppable
from rewardsmith.trainers.protocol import Update
from rewardsmith.types import NOT_ASKED, ScoredGroup

HELD = 8
"""How many times the groups in flight may be held back, finished, because an earlier one is not."""

Keep = Callable[[Stored, ScoredGroup], None]


@dataclass(frozen=True)
class Rescored:
    """What scoring stored rollouts brought.

    Attributes:
        groups: all that have scores now.
        rollouts: of these groups.
        unscored: how many of the rollouts have no value.
        resumed: how many groups had their scores from an earlier start of the command.
        measured: each component over all groups; "" is the whole reward.
        seconds: quantiles of how long each component took for a group, of those that were scored now; see `quantiles`.
        at_once: how many groups were scored at the same time.
        rollouts_per_second: scored now; None when there were none.
        compared: against the stored rewards; None unless that was asked for.
        known: what the components know of an outcome; None unless that was asked for.
        details: what the first failure of each component and kind said, by `component kind`.
        used: what was asked of each model, by its name.
    """

    groups: int
    rollouts: int
    unscored: int
    resumed: int
    measured: Mapping[str, Measured]
    seconds: Mapping[str, Mapping[str, float]]
    at_once: int
    rollouts_per_second: float | None
    compared: Compared | None
    known: Known | None
    details: Mapping[str, str]
    used: Mapping[str, Usage]


class Halted(Halt):
    """The reward wants to stop.

    Attributes:
        rescored: what had been scored by then.
    """

    def __init__(self, text: str, rescored: Rescored) -> None:
        super().__init__(text)
        self.rescored = rescored


def rescore(
    rollouts: StoredRollouts,
    chosen: Chosen,
    *,
    progress: Progress,
    models: ModelRegistry | None = None,
    kept: KeptScores | None = None,
    comparison: Comparison | None = None,
    outcomes: Outcomes | None = None,
    at_once: int = 32,
    watch: Callable[[Any], Any] | None = None,
) -> Rescored:
    """Score all groups, or those that an earlier start has left.

    Args:
        rollouts: what to score.
        chosen: the reward.
        progress: what the user sees.
        models: those that the reward asks; they are closed at the end. None where it asks none.
        kept: where the scores go; None keeps none.
        comparison: takes in the old scores beside the new; None compares nothing.
        outcomes: takes in both too; None asks for no outcome.
        at_once: how many groups are scored at the same time.
        watch: from a model to what stands in its place; None leaves it as it is.

    Raises:
        UserError: for whatever a user can mend; what was scored before is kept.
        Interrupted: after Ctrl-C or a polite kill.
    """
    watched = models if models is None or watch is None else lambda name: watch(models(name))
    reward = Component.root(chosen, progress.log, watched)
    tally = _Tally(kept, comparison, Alike(reward), outcomes, progress)
    try:
        with stoppable(), _kept(rollouts, kept) as total:
            for text in rollouts.left_out:
                progress.log(text)
            stored = tally.replayed(_comparable(rollouts, comparison))
            with progress.stage("score", total, tally.resumed, unit="groups"):
                asyncio.run(_score(reward, stored, tally, at_once, models))
    except KeyboardInterrupt:
        raise Interrupted(f"stopped after {_counted(tally.groups)}. {tally.remedy()}") from None
    except Halt as error:
        text = f"{error}\nThat was after {_counted(tally.groups)}. {tally.remedy()}"
        raise Halted(text, tally.result(latencies(reward), at_once)) from None
    return tally.result(latencies(reward), at_once)


async def _score(
    reward: Component, stored: Iterator[Stored], tally: _Tally, at_once: int, models: ModelRegistry | None
) -> None:
    first = next(stored, None)
    if first is None:
        return
    try:
        tally.require(reward, first)
        await check(reward)
        if models is not None:
            models.log_unreachable()
        tally.begin()
        await score_in_order(reward, _chain(first, stored), tally.keep, at_once=at_once)
    finally:
        if models is not None:
            tally.used = models.totals()
            await models.close()


async def score_in_order(reward: Reward, stored: Iterable[Stored], keep: Keep, *, at_once: int) -> None:
    """Score groups at the same time, and hand each on in the order of `stored`.

    Args:
        reward: scores them.
        stored: read as far as needed: `HELD` × `at_once` groups ahead.
        keep: called for each group.
        at_once: how many are with the reward at the same time.

    Raises:
        Halt: the reward wants to stop; groups that were not handed on by then are lost.
        UserError: what `stored` or `keep` raised.
    """
    free = asyncio.Semaphore(at_once)
    waiting: deque[tuple[Stored, asyncio.Task[ScoredGroup]]] = deque()

    async def one(item: Stored) -> ScoredGroup:
        async with free:
            return await score(reward, item.group)

    async def hand_on(held: int) -> None:
        while len(waiting) > held or (waiting and waiting[0][1].done()):
            item, task = waiting.popleft()
            keep(item, await task)

    try:
        async with asyncio.TaskGroup() as tasks:
            for item in stored:
                waiting.append((item, tasks.create_task(one(item))))
                await asyncio.sleep(0)  # reading must not keep the others from going on
                await hand_on(HELD * at_once)
            await hand_on(0)
    except BaseExceptionGroup as several:  # a task group wraps even a single cause
        raise several.exceptions[0] from None


class _Tally:
    """All that is noted of the groups while they come in."""

    def __init__(
        self,
        kept: KeptScores | None,
        comparison: Comparison | None,
        alike: Alike,
        outcomes: Outcomes | None,
        progress: Progress,
    ) -> None:
        self._kept = kept
        self._comparison = comparison
        self._alike = alike
        self._outcomes = outcomes
        self._progress = progress
        self._measures = Measures()
        self._rollouts = self._failed = self._before = 0
        self._begun = self._ended = 0.0
        self._details: dict[str, str] = {}
        self.groups = self.resumed = 0
        self.used: dict[str, Usage] = {}

    def replayed(self, stored: Iterator[Stored]) -> Iterator[Stored]:
        """Count the groups that are kept already; return what is left of `stored`."""
        for item, scored in self._kept.scores(stored) if self._kept else ():
            self._count(item, scored)
        self.resumed, self._before = self.groups, self._rollouts
        return stored

    def require(self, reward: Component, first: Stored) -> None:
        """Refuse an outcome that is nowhere before models are loaded for it."""
        if self._outcomes is not None:
            self._outcomes.require(reward, first.scores)

    def begin(self) -> None:
        self._begun = self._ended = time.perf_counter()

    def keep(self, item: Stored, scored: ScoredGroup) -> None:
        if self._kept:
            self._kept.add(item.rescored(scored))
        self._count(item, scored)
        self._ended = time.perf_counter()
        rate = (self.groups - self.resumed) / max(1e-9, self._ended - self._begun)
        failed = self._failed / self._rollouts
        self._progress.step(Update(self.groups, {"groups/s": rate, "reward/failed": failed}))

    def _count(self, item: Stored, scored: ScoredGroup) -> None:
        self.groups += 1
        self._rollouts += len(scored.scores)
        self._failed += sum(not score.ok for score in scored.scores)
        self._measures.add(scored)
        for whole in scored.scores:
            for name, part in (("reward", whole), *whole.named_parts()):
                if part.failure is not None and part.failure.kind not in NOT_ASKED and not part.parts:
                    self._details.setdefault(f"{name} {part.failure.kind}", part.failure.detail)
        if self._comparison is not None:
            assert item.scores is not None
            self._comparison.add(item.group, item.scores, self._alike.scores(item, scored.scores))
            self._comparison.left_out |= self._alike.left_out
        if self._outcomes is not None:
            self._outcomes.add(item.scores, scored.scores)

    def remedy(self) -> str:
        if self._kept is None:
            return "Nothing was kept: with --out FILE the same command goes on"
        return f"The same command goes on; {self._kept.file} has what is scored"

    def result(self, seconds: Mapping[str, Sequence[float]], at_once: int) -> Rescored:
        now = self._rollouts - self._before
        return Rescored(
            groups=self.groups,
            rollouts=self._rollouts,
            unscored=self._failed,
            resumed=self.resumed,
            measured=self._measures.result(),
            seconds={name: quantiles(taken) for name, taken in seconds.items()},
            at_once=at_once,
            rollouts_per_second=now / max(1e-9, self._ended - self._begun) if now else None,
            compared=None if self._comparison is None or not self.groups else self._comparison.result(),
            known=None if self._outcomes is None or not self.groups else self._outcomes.result(),
            details=dict(self._details),
            used=self.used,
        )


@contextmanager
def _kept(rollouts: StoredRollouts, kept: KeptScores | None) -> Iterator[int]:
    """Look at all rollouts before the file for the scores is touched; give their number."""
    total = rollouts.count()
    with kept.open() if kept else nullcontext():
        yield total


def _counted(groups: int) -> str:
    return f"{groups} group{'' if groups == 1 else 's'}"


def _comparable(rollouts: StoredRollouts, comparison: Comparison | None) -> Iterator[Stored]:
    for stored in rollouts:
        if comparison is not None and stored.scores is None:
            raise UserError(f"{stored.place}: no reward is stored there, and --compare needs one: leave it out")
        yield stored


def _chain(first: Stored, others: Iterator[Stored]) -> Iterator[Stored]:
    yield first
    yield from others
