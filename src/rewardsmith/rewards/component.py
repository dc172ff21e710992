"""A reward in its place: what its failure does, how many failures are too many, and who waits when it is gone.

    Component --ask--> Column: one score per rollout, and whether the whole column was dropped

A leaf is a reward that is not made of others. Deadline, waiting and budget belong to leaves: what is made of them fails
because they do.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rewardsmith.components import Choice, Chosen, Settings
from rewardsmith.rewards.protocol import Halt, Part, Reward, parts_of, score
from rewardsmith.rewards.tree import blank, components_of, walk
from rewardsmith.types import NOT_ASKED, Failure, RolloutGroup, Score

FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
"""Seconds before a dead dependency is tried again: doubled each time, up to the second."""

InsteadChoice = Annotated[Chosen, Choice("reward", "rewardsmith.rewards:REWARDS", methods=("score",))]


class FailureSettings(Settings):
    """What happens when a reward cannot score a rollout."""

    do: Literal["drop-rollout", "drop-component", "use", "stop"] = Field(
        default="drop-rollout",
        description="the rollout has no vote; the whole group goes without this reward; another reward is used; the"
        " run stops",
    )
    instead: InsteadChoice | None = Field(default=None, description='the other reward of do = "use"')
    share: float = Field(default=0.25, gt=0, le=1, description="stop the run when more than this share fails")
    window: int = Field(default=512, ge=1, description="rollouts over which the share is taken, the last ones")
    least: int = Field(default=32, ge=1, description="with fewer failures than this in the window the run goes on")
    wait: float = Field(
        default=300.0, ge=0, description="seconds to wait for an unreachable service to come back before the run stops"
    )
    deadline: float = Field(
        default=600.0, gt=0, description="seconds for one group, unless the reward has a deadline of its own"
    )

    @model_validator(mode="after")
    def _goes_together(self) -> FailureSettings:
        if (self.do == "use") != (self.instead is not None):
            raise ValueError('do = "use" and instead go together: instead = { type = "…" } says which reward')
        if self.least > self.window:
            raise ValueError(f"least is {self.least}, more than window = {self.window}: the run would never stop")
        return self


class ComponentSettings(Settings):
    """What the place of a reward says about it."""

    failure: FailureSettings = Field(default=FailureSettings(), description="what happens when it cannot score")


def in_place(beside: type[ComponentSettings] = ComponentSettings) -> Choice:
    """Return the choice of a reward at a place that says more about it, such as its weight in a sum."""
    return Choice("reward", "rewardsmith.rewards:REWARDS", beside, methods=("score",))


@dataclass(frozen=True)
class Column:
    """What one component says of a group.

    Attributes:
        scores: one per rollout.
        dropped: why the component is left out for this group as a whole; None when it is not.
    """

    scores: tuple[Score, ...]
    dropped: Failure | None = None


class Component:
    """A reward with a name and a policy for its failures; itself a reward.

    Args:
        name: for messages; `reward` for the whole.
        reward: what scores.
        failure: what happens when it cannot.
    """

    def __init__(self, name: str, reward: Reward, failure: FailureSettings | None = None) -> None:
        self.name = name
        self.reward = reward
        self.seconds: list[float] = []
        self.say: Callable[[str], None] = lambda text: None
        self._failure = failure or FailureSettings()
        self._leaf = not components_of(reward)
        self._shape: Score | None = None
        self._recent: deque[Failure | None] = deque(maxlen=self._failure.window)
        self._answered_at = time.monotonic()
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    @classmethod
    def of(cls, name: str, chosen: Chosen) -> Component:
        """Return the component that a table of a recipe describes."""
        failure = getattr(chosen.beside, "failure", None) or FailureSettings()
        reward: Reward = chosen.build()
        if failure.instead is None:
            return cls(name, reward, failure)
        first = cls("first", reward, _made_good(failure))
        return cls(name, Instead(first, cls("instead", failure.instead.build())))

    @classmethod
    def root(cls, chosen: Chosen, say: Callable[[str], None] | None = None) -> Component:
        """Return the whole reward that a recipe describes; its components know their dotted names.

        Args:
            chosen: the table.
            say: tells the user something, such as that a service is waited for.
        """
        whole = cls.of("reward", chosen)
        for path, component in walk(whole):
            component.name = path or whole.name
            component.say = say or component.say
        return whole

    @property
    def streams(self) -> Mapping[str, Part]:
        """The parts that may be reward streams of their own."""
        return parts_of(self.reward)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; only `Halt` is raised."""
        return (await self.ask(group)).scores

    async def ask(self, group: RolloutGroup, wanted: Sequence[bool] | None = None) -> Column:
        """Score the rollouts that are wanted; the others are `skipped`.

        The reward sees a group of the wanted rollouts alone, and is not called when there are none.
        """
        chosen = [i for i in range(len(group.rollouts)) if wanted is None or wanted[i]]
        scores = [self.blank("skipped", "it could not change the result")] * len(group.rollouts)
        if not chosen:
            return Column(tuple(scores))
        asked = group if len(chosen) == len(scores) else _subset(group, chosen)
        begun = time.perf_counter()
        for i, answer in zip(chosen, await self._settled(asked), strict=True):
            scores[i] = answer
        self.seconds.append(time.perf_counter() - begun)
        failed = [score.failure for score in scores if score.failure and score.failure.kind not in NOT_ASKED]
        if self._failure.do != "drop-component" or not failed:
            return Column(tuple(scores))
        return Column(tuple(map(_dropped(len(failed), failed[0]), scores)), dropped=failed[0])

    def blank(self, kind: Literal["skipped", "dropped"], detail: str) -> Score:
        """Return a score without a value for a rollout that the reward is not asked about, with all part names."""
        return self._fill(Failure(kind, detail))

    def _fill(self, why: Failure) -> Score:
        return blank(self.reward, why) if self._shape is None else _like(self._shape, why)

    # ---- the reward itself -----------------------------------------------------------------------------------------

    async def _settled(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the reward's scores, after waiting for it where it is unreachable; count the failures of a leaf."""
        if not self._leaf:
            scores = await self._called(group)
        else:
            scores = await self._waited(group)
            self._count(scores)
        failure = next((score.failure for score in scores if _failed(score)), None)
        if self._failure.do == "stop" and failure is not None:
            raise Halt(
                f'the reward "{self.name}" could not score a rollout of {group.prompt.id!r}, and failure.do is "stop":'
                f" {failure.kind}: {failure.detail}"
            )
        return scores

    async def _called(self, group: RolloutGroup) -> tuple[Score, ...]:
        limit = self._failure.deadline if self._leaf and not hasattr(self.reward, "deadline") else None
        try:
            async with asyncio.timeout(limit):
                scores = tuple((await score(self.reward, group)).scores)
        except TimeoutError:
            return (self._fill(Failure("timeout", f"no answer within {limit:g} s")),) * len(group.rollouts)
        if self._shape is None:
            self._shape = next((score for score in scores if score.ok), None)
        return tuple(self._whole(score) for score in scores)

    def _whole(self, score: Score) -> Score:
        """Give a failed score the part names that it lacks."""
        if score.failure is None:
            return score
        lacking = {n: part for n, part in self._fill(score.failure).parts.items() if n not in score.parts}
        return replace(score, parts={**score.parts, **lacking}) if lacking else score

    # ---- a service that is gone ------------------------------------------------------------------------------------

    async def _waited(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the scores; rollouts whose service was unreachable are tried again until it is back.

        Raises:
            Halt: when it answered nobody for `failure.wait` seconds.
        """
        scores = list(await self._called(group))
        gone = self._gone(scores)
        if not gone or not self._failure.wait:
            return tuple(scores)
        begun, pause = time.monotonic(), FIRST_WAIT
        async with self._one_at_a_time():  # one group finds out whether it is back, for all
            while gone:
                why = scores[gone[0]].failure
                assert why is not None
                left = begun + self._failure.wait - time.monotonic()
                if left <= 0:
                    break
                if self._answered_at < begun:
                    if pause == FIRST_WAIT:
                        self.say(f'"{self.name}" is unreachable, waiting up to {left:.0f} s: {why.detail[:300]}')
                    await asyncio.sleep(min(pause, left))
                    pause = min(2 * pause, LONGEST_WAIT)
                    if not await self._healthy():
                        continue
                for i, answer in zip(gone, await self._called(_subset(group, gone)), strict=True):
                    scores[i] = answer
                gone = self._gone(scores)
                if gone and self._answered_at >= begun:
                    break  # it answers others: these rollouts have failed
        if gone and self._answered_at < begun:
            raise self._exhausted(scores[gone[0]].failure)
        return tuple(scores)

    def _one_at_a_time(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._waiting is None or self._waiting[0] is not loop:  # a lock belongs to one event loop
            self._waiting = loop, asyncio.Lock()
        return self._waiting[1]

    def _gone(self, scores: Sequence[Score]) -> list[int]:
        gone = [i for i, s in enumerate(scores) if s.failure is not None and s.failure.kind == "unreachable"]
        if len(gone) < len(scores):
            self._answered_at = time.monotonic()
        return gone

    async def _healthy(self) -> bool:
        check = getattr(self.reward, "check", None)
        try:
            if check is not None:
                await check()
        except Exception:  # noqa: BLE001 whatever it is, it is not back
            return False
        return True

    def _exhausted(self, failure: Failure | None) -> Halt:
        return Halt(
            f'the reward "{self.name}" was unreachable for {self._failure.wait:g} s (failure.wait):'
            f" {failure.detail if failure else ''}\nBring it back and run the same command again"
        )

    # ---- the budget ------------------------------------------------------------------------------------------------

    def _count(self, scores: Sequence[Score]) -> None:
        """Note which rollouts failed; raise `Halt` when there are too many of them."""
        settings = self._failure
        self._recent.extend(score.failure for score in scores if not _skipped(score))
        failures = [failure for failure in self._recent if failure is not None]
        if len(failures) < settings.least or len(failures) <= settings.share * len(self._recent):
            return
        causes = Counter(failure.kind for failure in failures).most_common()
        last = {failure.kind: failure.detail for failure in failures}
        details = "\n".join(f"  {count} {kind}, the last: {last[kind][:500]}" for kind, count in causes)
        raise Halt(
            f'the reward "{self.name}" could not score {len(failures)} of its last {len(self._recent)} rollouts, more'
            f" than failure.share = {settings.share:g} allows:\n{details}\n"
            "Mend the cause and run the same command again, or change failure.share, failure.window, failure.least"
        )


class Instead:
    """A reward, and another for the rollouts that it could not score."""

    def __init__(self, first: Component, instead: Component) -> None:
        self.components = {"first": first, "instead": instead}

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the score of `first`, or of `instead` where that failed."""
        first = await self.components["first"].ask(group)
        other = await self.components["instead"].ask(group, [not score.ok for score in first.scores])
        pairs = zip(first.scores, other.scores, strict=True)
        return tuple(replace(a if a.ok else b, parts={"first": a, "instead": b}) for a, b in pairs)


def _made_good(failure: FailureSettings) -> FailureSettings:
    """Return the settings of a reward whose failures another reward makes good: budget and waiting stay."""
    return failure.model_copy(update={"do": "drop-rollout", "instead": None})


def whole_of(column: Column, i: int, name: str) -> Score:
    """Return the score of a rollout where the column is all there is: dropped for the group means failed."""
    score = column.scores[i]
    if score.failure is None:
        return score
    return Score(failure=because(name, column.dropped or score.failure), feedback=score.feedback)


def because(name: str, failure: Failure) -> Failure:
    """Return the failure of a part as that of the whole."""
    return Failure(failure.kind, f'part "{name}": {failure.detail}', failure.attempts)


def _skipped(score: Score) -> bool:
    return score.failure is not None and score.failure.kind in NOT_ASKED


def _failed(score: Score) -> bool:
    return score.failure is not None and score.failure.kind not in NOT_ASKED


def _dropped(count: int, first: Failure) -> Callable[[Score], Score]:
    why = Failure("dropped", f"left out for the group: it failed for {count} of its rollouts ({first.kind})")

    def drop(score: Score) -> Score:
        return Score(failure=why, parts=score.parts, feedback=score.feedback) if score.ok else score

    return drop


def _subset(group: RolloutGroup, chosen: Sequence[int]) -> RolloutGroup:
    return replace(group, rollouts=[group.rollouts[i] for i in chosen])


def _like(shape: Score, why: Failure) -> Score:
    return Score(failure=why, parts={name: _like(part, why) for name, part in shape.parts.items()})
