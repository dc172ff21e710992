"""A reward in its place: it has a name, and a policy for its failures.

    Component --ask--> Column: one score per rollout, and whether the whole column was dropped

A leaf is a reward that is not made of others. Deadline, waiting and budget belong to leaves: what is made of them fails
because they do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rewardsmith.config import Chosen
from rewardsmith.errors import UserError
from rewardsmith.llm import Models
from rewardsmith.rewards.base import Composed, Halt, Part, Reward, failure_of, parts_of, scores_and_retry
from rewardsmith.rewards.failures import Budget, FailureSettings, because, failed
from rewardsmith.rewards.patience import Patience
from rewardsmith.rewards.tree import components_of, connect, walk
from rewardsmith.types import NOT_ASKED, Failure, RolloutGroup, Score, ScoredGroup


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

    Attributes:
        seconds: how long each group took, since somebody last looked.
        say: tells the user something.
        forgiven: True where nothing depends on it: its failures never stop the run.
        unlimited: True where its failures are what is measured: they are counted, and no share of them is too much.
        late: True where a trainer scores the groups of a step together, once they are selected: until then the reward
            is skipped.
        declared: the names of the parts that a leaf says it has.
        tells_parts: whether its scores have no other parts than those that are known; a reward of a user's own need not
            say which it has.
    """

    def __init__(self, name: str, reward: Reward, failure: FailureSettings | None = None) -> None:
        self.name = name
        self.reward = reward
        self.seconds: list[float] = []
        self.say: Callable[[str], None] = lambda text: None
        self.forgiven = False
        self.unlimited = False
        self.late = False
        self._failure = failure or FailureSettings()
        self._leaf = not isinstance(reward, Composed)
        if not self._leaf and (wrong := self._failure.of_leaf()):
            raise UserError(
                f"failure.{wrong[0]} of {name} is that of a reward made of others: set it on those that it is made of"
            )
        self.declared: tuple[str, ...] = (_declared(reward) or ()) if self._leaf else ()
        self.tells_parts = not self._leaf or _declared(reward) is not None
        self._shape: Score | None = None
        self._budget = Budget(self._failure)
        self._patience = Patience(self._failure.wait, getattr(reward, "check", None))

    @classmethod
    def of(cls, name: str, chosen: Chosen) -> Component:
        """Return the component that a table of a recipe describes."""
        failure = getattr(chosen.slot, "failure", None) or FailureSettings()
        reward: Reward = chosen.build()
        if failure.instead is None:
            return cls(name, reward, failure)
        return cls(name, Instead(cls("first", reward, failure), cls("instead", failure.instead.build())))

    @classmethod
    def root(cls, chosen: Chosen, say: Callable[[str], None] | None = None, models: Models | None = None) -> Component:
        """Return the whole reward that a recipe describes; its components know their dotted names.

        Args:
            chosen: the table.
            say: tells the user something, such as that a service is waited for.
            models: from the name of a model to the model, for rewards that ask one; None makes a reward that can be
                looked at, but that cannot score if it asks a model.
        """
        whole = cls.of("reward", chosen)
        for path, component in walk(whole):
            component.name = path or whole.name
            component.say = say or component.say
        if models is not None:
            connect(whole, models)
        return whole

    @property
    def streams(self) -> Mapping[str, Part]:
        """The parts that may be reward streams of their own."""
        return parts_of(self.reward)

    @property
    def waiting(self) -> bool:
        """Whether a service is gone and waited for."""
        return self._patience.waiting

    async def check(self) -> None:
        """Ask the reward whether it can work; one that has no `check` can."""
        check = getattr(self.reward, "check", None)
        if check is None:
            return
        limit = None if hasattr(self.reward, "deadline") else self._failure.deadline
        try:
            async with asyncio.timeout(limit):
                await check()
        except TimeoutError:
            raise UserError(f"whether it can work was not known within {limit:g} s (failure.deadline)") from None

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; only `Halt` is raised."""
        return (await self.chat(group)).scores

    async def chat(self, group: RolloutGroup, wanted: Sequence[bool] | None = None) -> Column:
        """Score the rollouts that are wanted; the others are `skipped`.

        The reward sees a group of the wanted rollouts alone, and is not called when there are none.
        """
        if self.late:
            return Column(
                (self.blank("skipped", "it is asked about the groups that are learned from"),) * len(group.rollouts)
            )
        chosen = [i for i in range(len(group.rollouts)) if wanted is None or wanted[i]]
        begun = time.perf_counter()
        answers = await self._settled(group, chosen) if chosen else ()
        scores = [self.blank("skipped", "it could not change the result")] * len(group.rollouts)
        for i, answer in zip(chosen, answers, strict=True):
            scores[i] = answer
        if chosen:
            self.seconds.append(time.perf_counter() - begun)
        causes = [score.failure for score in scores if failed(score) and score.failure is not None]
        if self._failure.do != "drop-component" or not causes:
            return Column(tuple(scores))
        return Column(tuple(map(_dropped(len(causes), causes[0]), scores)), dropped=causes[0])

    def blank(self, kind: Literal["skipped", "dropped"], detail: str) -> Score:
        """Return a score without a value for a rollout that the reward is not asked about, with all part names."""
        return self.lacking(Failure(kind, detail))

    def lacking(self, why: Failure) -> Score:
        """Return a failed score that has all the part names that the reward's scores have, as far as is known."""
        if not self._leaf:
            parts = {name: inner.lacking(why) for name, inner in components_of(self.reward).items()}
            return Score(failure=why, parts=parts)
        if self._shape is None:
            return Score(failure=why, parts={name: Score(failure=why) for name in self.declared})
        return _like(self._shape, why)

    # ---- the reward itself -----------------------------------------------------------------------------------------

    async def _settled(self, group: RolloutGroup, chosen: Sequence[int]) -> Sequence[Score]:
        """Return the reward's scores of some rollouts; a leaf is waited for, and its failures are counted."""
        if self._leaf:
            scores = await self._waited(group, chosen)
            if not self.forgiven and not self.unlimited:
                self._budget.spend(self.name, scores)
        else:
            scores, _ = await self._called(_subset(group, chosen))
        if self._failure.do == "stop":
            for i, score in zip(chosen, scores, strict=True):
                if score.failure is not None and failed(score):
                    raise Halt(
                        f'the reward "{self.name}" could not score a rollout of {group.prompt.id!r}, and failure.do is'
                        f' "stop": {score.failure.kind}: {score.failure.detail}\n'
                        f"The rollout begins: {group.rollouts[i].text[:300]!r}"
                    )
        return scores

    async def _waited(self, group: RolloutGroup, chosen: Sequence[int]) -> Sequence[Score]:
        together: list[Score] = []

        async def ask(numbers: Sequence[int]) -> tuple[Sequence[Score], bool]:
            return await self._called(_subset(group, [chosen[i] for i in numbers]))

        async def ask_whole(numbers: Sequence[int]) -> tuple[Sequence[Score], bool]:
            # The scores belong together: what is left of a group must not be compared with itself alone.
            together[:], late = await self._called(_subset(group, chosen))
            gone = [score for score in together if score.failure is not None and score.failure.kind == "unreachable"]
            return [*gone, *together][:1], late

        def tell(failure: Failure, seconds: float) -> None:
            what = "is unreachable" if failure.kind == "unreachable" else "does not answer in time"
            self.say(f'"{self.name}" {what}, waiting up to {seconds:.0f} s: {failure.detail[:300]}')

        def back() -> None:
            self.say(f'"{self.name}" answers again: what it missed was asked once more')

        if getattr(self.reward, "whole", False):
            _, nobody = await self._patience.scores(ask_whole, 1, tell, back)
            scores: Sequence[Score] = together
        else:
            scores, nobody = await self._patience.scores(ask, len(chosen), tell, back)
        if nobody and self._failure.do != "use" and not self.forgiven:
            why = next(score.failure for score in scores if score.failure and score.failure.kind == "unreachable")
            raise Halt(
                f'the reward "{self.name}" was unreachable for {self._failure.wait:g} s (failure.wait): {why.detail}\n'
                "Bring it back and run the same command again"
            )
        return scores

    async def _called(self, group: RolloutGroup) -> tuple[Sequence[Score], bool]:
        """Return the reward's scores, and whether it raised a timeout that may pass."""
        limit = self._failure.deadline if self._leaf and not hasattr(self.reward, "deadline") else None
        try:
            async with asyncio.timeout(limit):
                scores, late = await scores_and_retry(self.reward, group)
        except TimeoutError:
            late = False
            scores = [Score(failure=Failure("timeout", f"no answer within {limit:g} s"))] * len(group.rollouts)
        if self._leaf:
            scores = [_answered(score) for score in scores]
            if self._shape is None:
                self._shape = next((score for score in scores if score.ok), None)
        scores = [self._whole(score) for score in scores]
        try:
            return ScoredGroup(group, scores).scores, late
        except (TypeError, ValueError) as error:
            return [self.lacking(failure_of(error))] * len(scores), False

    def _whole(self, score: Score) -> Score:
        """Give a failed score the part names that it lacks."""
        if score.failure is None:
            return score
        lacking = {n: part for n, part in self.lacking(score.failure).parts.items() if n not in score.parts}
        return replace(score, parts={**score.parts, **lacking}) if lacking else score


class Instead(Composed):
    """A reward, and another for the rollouts that it could not score."""

    def __init__(self, first: Component, instead: Component) -> None:
        self.components = {"first": first, "instead": instead}

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the score of `first`, or of `instead` where that failed."""
        first = await self.components["first"].chat(group)
        other = await self.components["instead"].chat(group, [not score.ok for score in first.scores])
        pairs = zip(first.scores, other.scores, strict=True)
        return tuple(replace(a if a.ok else b, parts={"first": a, "instead": b}) for a, b in pairs)


def whole_of(column: Column, i: int, name: str) -> Score:
    """Return the score of a rollout where the column is all there is: dropped for the group means failed."""
    score = column.scores[i]
    if score.failure is None:
        return score
    return Score(failure=because(name, column.dropped or score.failure), feedback=score.feedback)


def _answered(score: Score) -> Score:
    """Take only compositions at their word that nobody was asked."""
    if score.failure is None or score.failure.kind not in NOT_ASKED:
        return score
    why = Failure("invalid", f"the reward itself says {score.failure.kind}: {score.failure.detail}")
    return replace(score, failure=why)


def _declared(reward: Reward) -> tuple[str, ...] | None:
    names: object = getattr(reward, "parts", None)
    return tuple(names) if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) else None


def _dropped(count: int, first: Failure) -> Callable[[Score], Score]:
    why = Failure("dropped", f"left out for the group: it failed for {count} of its rollouts ({first.kind})")

    def drop(score: Score) -> Score:
        return Score(failure=why, parts=score.parts, feedback=score.feedback) if score.ok else score

    return drop


def _subset(group: RolloutGroup, chosen: Sequence[int]) -> RolloutGroup:
    if len(chosen) == len(group.rollouts):
        return group
    return replace(group, rollouts=[group.rollouts[i] for i in chosen])


def _like(shape: Score, why: Failure) -> Score:
    return Score(failure=why, parts={name: _like(part, why) for name, part in shape.parts.items()})
