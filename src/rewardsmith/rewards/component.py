"""A reward in its place: it has a name, and a policy for its failures.

A leaf is a reward that is not made of others. Deadline, outage wait and budget belong to leaves: a composition fails
when its leaves do.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rewardsmith.config import Chosen
from rewardsmith.errors import UserError
from rewardsmith.llm import Models
from rewardsmith.rewards.base import (
    Composed,
    Halt,
    Reward,
    caught,
    checked_scores,
    failure_of,
    may_pass,
    started,
)
from rewardsmith.rewards.failures import LEAF_SETTINGS, FailureSettings, because, failed
from rewardsmith.rewards.tree import components_of, connect, walk
from rewardsmith.types import NOT_COMPUTED, Failure, RolloutGroup, Score, ScoredGroup

NOT_NEEDED = Failure("skipped", "it could not change the result")
NOT_YET = Failure("skipped", "the trainer scores it once the groups of the step are selected")

FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0
"""Seconds before an unreachable service is tried again: doubled each time, up to the second."""

MAX_SECONDS = 100_000
"""Latencies of groups that are kept until they are read."""

MAX_REPEATS = 3
"""How often rollouts are scored again while the service responds to others: after that, the rollouts are at fault."""


class ScoreColumn(tuple[Score, ...]):
    """The scores of one component, one per rollout."""

    dropped: Failure | None

    def __new__(cls, scores: Iterable[Score], dropped: Failure | None = None) -> ScoreColumn:  # noqa: D102
        column = super().__new__(cls, scores)
        column.dropped = dropped
        return column


class Component:
    """A reward with a name and a policy for its failures; itself a reward."""

    def __init__(self, name: str, reward: Reward, failure: FailureSettings | None = None) -> None:
        self.name = name
        self.reward = reward
        # How long each group took, until `latencies` reads it.
        self.seconds: deque[float] = deque(maxlen=MAX_SECONDS)
        self.log: Callable[[str], None] = lambda text: None
        self.ignore_failures = False  # True where nothing depends on it: its failures never stop the run
        self.unlimited = False  # True where its failures are what is measured: there is no budget
        self.scored_by_trainer = False  # True where a trainer scores the selected groups: here it is skipped
        self.waiting = False  # whether an unreachable service is waited for
        self._failure = failure or FailureSettings()
        self._leaf = not isinstance(reward, Composed)
        wrong = [one for one in LEAF_SETTINGS if getattr(self._failure, one) != getattr(FailureSettings(), one)]
        if wrong and not self._leaf:
            raise UserError(f"failure.{wrong[0]} of {name}, a composed reward, has no effect: set it on its parts")
        names: object = getattr(reward, "parts", None) if self._leaf else ()
        # A user's own reward need not declare the names of its parts.
        self.knows_parts = isinstance(names, list | tuple) and all(isinstance(one, str) for one in names)
        self.declared: tuple[str, ...] = tuple(names) if self.knows_parts else ()  # type: ignore[arg-type]
        self._schema: Score | None = None  # the first score of a leaf
        self._recent: deque[Failure | None] = deque(maxlen=self._failure.window)
        self._last_response = -math.inf  # when it last responded for every rollout of a call

    @classmethod
    def build(cls, name: str, chosen: Chosen) -> Component:
        """Return the component that a table of a recipe describes."""
        failure = getattr(chosen.slot, "failure", None) or FailureSettings()
        reward: Reward = chosen.build()
        if failure.instead is None:
            return cls(name, reward, failure)
        return cls(name, UseInstead(cls("first", reward, failure), cls("instead", failure.instead.build())))

    @classmethod
    def root(cls, chosen: Chosen, log: Callable[[str], None] | None = None, models: Models | None = None) -> Component:
        """Return the tree of a reward table; its components have their dotted names.

        A run may build the tree once and reuse it: `tree.connect` may be called again, with other models.
        """
        root = cls.build("reward", chosen)
        for path, component in walk(root):
            component.name = path or root.name
        connect(root, log, models)
        return root

    @property
    def whole(self) -> bool:
        """Whether the score of a rollout depends on the others of its group."""
        return bool(getattr(self.reward, "whole", False)) or self._failure.do == "drop-component"

    async def check(self) -> None:
        """Raise if the reward cannot work; one that has no `check` can."""
        check = getattr(self.reward, "check", None)
        if check is None:
            return
        limit = None if hasattr(self.reward, "deadline") else self._failure.deadline
        try:
            async with asyncio.timeout(limit):
                await check()
        except TimeoutError:
            raise UserError(f"its check did not end within {limit:g} s (failure.deadline)") from None

    def failed_score(self, why: Failure) -> Score:
        """Return a failed score with all the part names that scores of the reward have, as far as they are known."""
        if not self._leaf:
            parts = {name: inner.failed_score(why) for name, inner in components_of(self.reward).items()}
            return Score(failure=why, parts=parts)
        if self._schema is None:
            return Score(failure=why, parts={name: Score(failure=why) for name in self.declared})
        return _failed_like(self._schema, why)

    # ---- scoring: each of the following calls the next -------------------------------------------------------------

    async def score(self, group: RolloutGroup, wanted: Sequence[bool] | None = None) -> ScoreColumn:
        """Score the wanted rollouts, all by default; the others are `skipped`. Only `Halt` is raised.

        The reward gets a group of the wanted rollouts alone, and is not called when there are none.
        """
        if self.scored_by_trainer:
            return ScoreColumn([self.failed_score(NOT_YET)] * len(group.rollouts))
        rows = [i for i in range(len(group.rollouts)) if wanted is None or wanted[i]]
        if not rows:
            return ScoreColumn([self.failed_score(NOT_NEEDED)] * len(group.rollouts))
        started_at = time.perf_counter()
        if self._leaf:
            results = await self._score_with_outage_wait(_subset(group, rows))
            if not self.ignore_failures and not self.unlimited:
                self._spend(results)
        else:
            results, _ = await self._score_once(_subset(group, rows))
        self.seconds.append(time.perf_counter() - started_at)
        causes = [score.failure for score in results if failed(score)]
        if causes and self._failure.do == "stop":
            self._stop(group, rows, results)
        found, skipped = dict(zip(rows, results, strict=True)), self.failed_score(NOT_NEEDED)
        scores = [found.get(i, skipped) for i in range(len(group.rollouts))]
        if not causes or self._failure.do != "drop-component":
            return ScoreColumn(scores)
        why = Failure("dropped", f"left out for the group: it failed for {len(causes)} of its rollouts")
        dropped = (Score(failure=why, parts=one.parts, feedback=one.feedback) if one.ok else one for one in scores)
        return ScoreColumn(dropped, causes[0])

    async def _score_with_outage_wait(self, group: RolloutGroup) -> Sequence[Score]:
        """Score a group with a leaf; rollouts that a service could not score are scored again when it is back."""
        scores, passing = await self._score_once(group)
        begun, pause, repeats = time.monotonic(), FIRST_PAUSE, 0
        lost = self._lost(scores, range(len(scores)), passing)
        while lost and self._failure.wait and repeats < MAX_REPEATS:
            failure = scores[lost[0]].failure
            assert failure is not None
            left = begun + self._failure.wait - time.monotonic()
            if left <= 0:
                silent = self._last_response < begun and not repeats and not passing
                if silent and self._failure.do != "use" and not self.ignore_failures:
                    raise Halt(
                        f'the reward "{self.name}" was unreachable for {self._failure.wait:g} s (failure.wait):'
                        f" {failure.detail}\nRestart the service and run the same command again"
                    )
                break
            if not self.waiting:
                self.waiting = True
                what = {"unreachable": "is unreachable", "timeout": "timed out"}.get(
                    failure.kind, "replied with an error"
                )
                self.log(f'"{self.name}" {what}, waiting up to {left:.0f} s: {failure.detail[:300]}')
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, MAX_PAUSE)
            is_up = await self._service_is_up(left)
            if is_up is False:
                continue
            # Where scores depend on each other, the rest of a group must not be compared with itself alone.
            rows = range(len(scores)) if getattr(self.reward, "whole", False) else lost
            tried = time.monotonic()
            again, passing = await self._score_once(_subset(group, rows))
            found = dict(zip(rows, again, strict=True))
            scores = [found.get(i, score) for i, score in enumerate(scores)]
            lost = self._lost(scores, rows, passing)
            responded = is_up or len(lost) < len(rows) or self._last_response >= tried or passing
            repeats += bool(lost and responded)
        return scores

    def _lost(self, scores: Sequence[Score], rows: Iterable[int], passing: bool) -> list[int]:
        """Return the rollouts for which the service did not respond; if there are none, the outage has ended."""
        kinds = ("unreachable", "timeout", "refused") if passing else ("unreachable",)
        lost = [i for i in rows if (why := scores[i].failure) is not None and why.kind in kinds]
        if not lost:
            if self.waiting:
                self.log(f'"{self.name}" responds again: the failed requests were repeated')
            self.waiting, self._last_response = False, time.monotonic()
        return lost

    async def _service_is_up(self, left: float) -> bool | None:
        """Return whether the reward's own check passes; None where only scoring again can show it."""
        check = getattr(self.reward, "check", None)
        if check is None:
            return None
        try:
            async with asyncio.timeout(left):
                await check()
        except UserError:
            return None  # waiting does not fix it: the next call reports what it is
        except (Exception, SystemExit):  # noqa: BLE001 whatever it is, the service is not back
            return False
        return True

    async def _score_once(self, group: RolloutGroup) -> tuple[Sequence[Score], bool]:
        """Return the reward's scores, and whether what it raised may pass: the boundary for its exceptions."""
        limit = self._failure.deadline if self._leaf and not hasattr(self.reward, "deadline") else None
        passing = False
        try:
            async with asyncio.timeout(limit):
                try:
                    scores = checked_scores(await started(self.reward, group), group)
                except BaseException as error:  # noqa: BLE001 a reward may be a user's own code
                    scores = [Score(failure=caught(error))] * len(group.rollouts)
                    passing = may_pass(error)
        except TimeoutError:
            scores = [Score(failure=Failure("timeout", f"no scores within {limit:g} s"))] * len(group.rollouts)
        if self._leaf:
            scores = [_computed(score) for score in scores]
            if self._schema is None:
                self._schema = next((score for score in scores if score.ok), None)
        try:
            return ScoredGroup(group, [self._with_all_parts(score) for score in scores]).scores, passing
        except (TypeError, ValueError) as error:
            return [self.failed_score(failure_of(error))] * len(scores), False

    def _with_all_parts(self, score: Score) -> Score:
        """Give a failed score the part names that it lacks."""
        if score.failure is None:
            return score
        expected = self.failed_score(score.failure).parts
        return score if expected.keys() <= score.parts.keys() else replace(score, parts={**expected, **score.parts})

    def _spend(self, scores: Sequence[Score]) -> None:
        """Count the scores of a group; raise `Halt` when too many of the last ones have failed."""
        settings = self._failure
        self._recent.extend(score.failure for score in scores)
        failures = [failure for failure in self._recent if failure is not None]
        enough = len(failures) >= min(settings.min_failures, settings.window)
        if not enough or len(failures) <= settings.share * len(self._recent):
            return
        last = {failure.kind: failure.detail for failure in failures}
        causes = Counter(failure.kind for failure in failures).most_common()
        details = "\n".join(f"  {count} {kind}, the last: {last[kind][:500]}" for kind, count in causes)
        raise Halt(
            f'the reward "{self.name}" could not score {len(failures)} of its last {len(self._recent)} rollouts, more'
            f" than failure.share = {settings.share:g} allows:\n{details}\n"
            "Fix the cause and run the same command again, or change failure.share, failure.window,"
            " failure.min_failures"
        )

    def _stop(self, group: RolloutGroup, rows: Sequence[int], scores: Sequence[Score]) -> None:
        row, failure = next((i, one.failure) for i, one in zip(rows, scores, strict=True) if failed(one))
        assert failure is not None
        raise Halt(
            f'the reward "{self.name}" could not score a rollout of {group.prompt.id!r}, and failure.do is "stop":'
            f" {failure.kind}: {failure.detail}\nThe rollout begins: {group.rollouts[row].text[:300]!r}"
        )


class UseInstead(Composed):
    """A reward, and another one for the rollouts that it could not score."""

    def __init__(self, first: Component, instead: Component) -> None:
        self.components = {"first": first, "instead": instead}

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the score of `first`, or of `instead` where that failed."""
        first = await self.components["first"].score(group)
        other = await self.components["instead"].score(group, [not score.ok for score in first])
        pairs = zip(first, other, strict=True)
        return tuple(replace(a if a.ok else b, parts={"first": a, "instead": b}) for a, b in pairs)


def only_score(column: ScoreColumn, i: int, name: str) -> Score:
    """Return the score of a rollout where the column is the only one: dropped for the group means failed."""
    score = column[i]
    if score.failure is None:
        return score
    return Score(failure=because(name, column.dropped or score.failure), feedback=score.feedback)


def _computed(score: Score) -> Score:
    """Return the score of a leaf, which cannot claim that it was not computed."""
    if score.failure is None or score.failure.kind not in NOT_COMPUTED:
        return score
    why = Failure("invalid", f"the reward itself returned {score.failure.kind}: {score.failure.detail}")
    return replace(score, failure=why)


def _subset(group: RolloutGroup, rows: Sequence[int]) -> RolloutGroup:
    if len(rows) == len(group.rollouts):
        return group
    return replace(group, rollouts=[group.rollouts[i] for i in rows])


def _failed_like(schema: Score, why: Failure) -> Score:
    return Score(failure=why, parts={name: _failed_like(part, why) for name, part in schema.parts.items()})
