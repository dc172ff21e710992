"""Rewards made of any number of named rewards: sum, product, cascade.

A part that cannot change the result is not computed: it is `skipped`. A part that is dropped for the group is left out:
the result is that of the other parts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, TypeVar

from pydantic import Field

from rewardsmith.config import Chosen
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.base import Composed, Part
from rewardsmith.rewards.component import Column, Component
from rewardsmith.rewards.failures import ComponentSettings, because, in_place
from rewardsmith.types import NOT_ASKED, Failure, RolloutGroup, Score

RESERVED = frozenset({"mean", "spread", "accuracy", "failed", "flat", "reward"})
"""What a part may not be called: `reward/mean` is the metric of the whole."""


class TermSettings(ComponentSettings):
    """What a product says about each of its parts."""

    weight: float = Field(default=1.0, description="factor of this part")
    when: str = Field(default="", description="ask only where this earlier part holds, such as answer or base.answer")
    at_least: float = Field(default=1.0, description="the value from which on that part holds")


class PartSettings(TermSettings):
    """What a sum says about each of its parts."""

    watch: bool = Field(default=False, description="compute it although its weight is 0, to see it in the metrics")
    discount: float | None = Field(
        default=None, ge=0, le=1, description="γ of this part's own stream, where parts are combined after the estimate"
    )


Term = TypeVar("Term", bound=TermSettings)


class StepSettings(ComponentSettings):
    """What a cascade says about each of its parts."""

    below: float | None = Field(default=None, description="a value of at most this decides")
    above: float | None = Field(default=None, description="a value of at least this decides")


PartChoice = Annotated[Chosen, in_place(PartSettings)]
TermChoice = Annotated[Chosen, in_place(TermSettings)]
StepChoice = Annotated[Chosen, in_place(StepSettings)]


class Sum(Composed):
    """Add up weighted rewards; those that do not depend on each other are computed at once.

    Attributes:
        asked: the names of the parts that are computed.
    """

    def __init__(
        self, *, parts: Annotated[dict[str, PartChoice], Field(min_length=1, description="the rewards, by name")]
    ) -> None:
        self.components = named(parts)
        self._terms = _terms(parts, self.components, PartSettings)
        self.streams = {name: Part(term.weight, term.discount) for name, term in self._terms.items() if term.weight}
        if not self.streams:
            raise UserError("every part of the sum has weight 0: there is nothing to add up")
        self.asked = asked_of(self._terms)
        for name in set(parts) - set(self.streams):
            self.components[name].forgiven = True

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return Σ weight · part. A rollout that one part could not score has no sum: it fails, and keeps its parts."""
        tasks: dict[str, asyncio.Task[Column]] = {}
        try:
            async with asyncio.TaskGroup() as parts:
                for name in self.components:
                    tasks[name] = parts.create_task(self._ask(name, group, tasks))
        except BaseExceptionGroup as several:  # a task group wraps even a single cause
            raise several.exceptions[0] from None
        columns = {name: task.result() for name, task in tasks.items()}
        return tuple(self._add(columns, row(columns, i)) for i in range(len(group.rollouts)))

    async def _ask(self, name: str, group: RolloutGroup, tasks: Mapping[str, asyncio.Task[Column]]) -> Column:
        term, component = self._terms[name], self.components[name]
        wanted = [name in self.asked] * len(group.rollouts)
        if not term.when:
            return await component.chat(group, wanted)
        return await _ask_where(component, group, term, await tasks[_first(term.when)], wanted)

    def _add(self, columns: Mapping[str, Column], parts: Mapping[str, Score]) -> Score:
        counted = {name: part for name, part in parts.items() if self._terms[name].weight}
        left = remaining(columns, counted)
        if isinstance(left, Failure):
            return Score(failure=left, parts=parts)
        return finite(sum(self._terms[name].weight * value for name, value in left.items()), parts)

    def without(self, score: Score, names: Collection[str]) -> Score:
        """Return a score of this sum as it would be if some of its parts had been skipped."""
        skipped = Score(failure=Failure("skipped", "it is left out"))
        parts = {name: skipped if name in names else part for name, part in score.parts.items()}
        dropped = {n: p.failure if p.failure and p.failure.kind == "dropped" else None for n, p in parts.items()}
        return self._add({name: Column((part,), dropped[name]) for name, part in parts.items()}, parts)


class Product(Composed):
    """Multiply rewards in their order; what is 0 already is not asked about any more."""

    def __init__(
        self, *, parts: Annotated[dict[str, TermChoice], Field(min_length=1, description="the rewards, by name")]
    ) -> None:
        self.components = named(parts)
        self._terms = _terms(parts, self.components, TermSettings)
        for name, term in self._terms.items():
            if not term.weight:
                raise UserError(f'the part "{name}" of the product has weight 0: every reward would be 0')

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return Π weight · part; a part whose `when` does not hold is a factor of 0."""
        columns: dict[str, Column] = {}
        open_ = [True] * len(group.rollouts)
        for name, component in self.components.items():
            term = self._terms[name]
            if term.when:
                column = await _ask_where(component, group, term, columns[_first(term.when)], open_)
            else:
                column = await component.chat(group, open_)
            columns[name] = column
            if column.dropped is None:
                open_ = [was and bool(score.value) for was, score in zip(open_, column.scores, strict=True)]
        return tuple(self._multiply(columns, row(columns, i)) for i in range(len(group.rollouts)))

    def _multiply(self, columns: Mapping[str, Column], parts: Mapping[str, Score]) -> Score:
        left = remaining(columns, parts)
        if isinstance(left, Failure):
            return Score(failure=left, parts=parts)
        return finite(math.prod(self._terms[name].weight * value for name, value in left.items()), parts)


class Cascade(Composed):
    """Ask cheap rewards first; the next one is asked only about rollouts that are still open.

    The value is that of the part that decided. The last part always decides.
    """

    def __init__(
        self, *, parts: Annotated[dict[str, StepChoice], Field(min_length=1, description="the rewards, by name")]
    ) -> None:
        self.components = named(parts)
        self._steps = {name: chosen.slot for name, chosen in parts.items()}
        for name in list(parts)[:-1]:
            step = self._steps[name]
            assert isinstance(step, StepSettings)
            if step.below is None and step.above is None:
                raise UserError(f'the part "{name}" has neither below nor above: it would never decide')

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the value of the first part that decides."""
        columns: dict[str, Column] = {}
        open_ = [True] * len(group.rollouts)
        for name, component in self.components.items():
            columns[name] = column = await component.chat(group, open_)
            if column.dropped is None:
                open_ = [
                    was and score.value is not None and not self._decides(name, score.value)
                    for was, score in zip(open_, column.scores, strict=True)
                ]
        return tuple(self._decided(columns, row(columns, i)) for i in range(len(group.rollouts)))

    def _decides(self, name: str, value: float) -> bool:
        step = self._steps[name]
        assert isinstance(step, StepSettings)
        return (step.below is not None and value <= step.below) or (step.above is not None and value >= step.above)

    def _decided(self, columns: Mapping[str, Column], parts: Mapping[str, Score]) -> Score:
        """Return the last part that was asked: the others are skipped, or dropped for the group."""
        asked = {name: p for name, p in parts.items() if p.failure is None or p.failure.kind not in NOT_ASKED}
        left = remaining(columns, asked or parts)
        if isinstance(left, Failure):
            return Score(failure=left, parts=parts)
        return Score(left[list(left)[-1]], parts=parts)


# ---- what compositions share ---------------------------------------------------------------------------------------


def named(parts: Mapping[str, Chosen]) -> dict[str, Component]:
    """Return the parts of a composition, after checking their names."""
    for name in parts:
        if name in RESERVED:
            raise UserError(f"a part is called {name!r}, as a metric of the whole reward is: rename it")
        if "." in name or not name:
            raise UserError(f"a part is called {name!r}: a name is not empty, and dots stand between nested parts")
    return {name: Component.of(name, chosen) for name, chosen in parts.items()}


def asked_of(terms: Mapping[str, PartSettings]) -> frozenset[str]:
    """Return the names of the parts of a sum that are computed: they count, are watched, or are a condition."""
    conditions = {_first(term.when) for term in terms.values()}
    return frozenset(name for name, term in terms.items() if term.weight or term.watch or name in conditions)


def row(columns: Mapping[str, Column], i: int) -> dict[str, Score]:
    """Return the scores of rollout `i` by part."""
    return {name: column.scores[i] for name, column in columns.items()}


def remaining(columns: Mapping[str, Column], parts: Mapping[str, Score]) -> dict[str, float] | Failure:
    """Return the values of the parts that count for a rollout, 0 where a part was skipped, or why there is none.

    Args:
        columns: what each part said of the group.
        parts: the scores of one rollout.
    """
    values: dict[str, float] = {}
    for name, part in parts.items():
        if columns[name].dropped is not None:
            continue
        if part.failure is None:
            assert part.value is not None
            values[name] = part.value
        elif part.failure.kind == "skipped":
            values[name] = 0.0
        else:
            return because(name, part.failure)
    if not values and parts:
        name = next(iter(parts))
        return because(name, columns[name].dropped or Failure("invalid", "nothing is left"))
    return values


def finite(value: float, parts: Mapping[str, Score]) -> Score:
    """Return a score of composed numbers, which may have become too large for a float."""
    if math.isfinite(value):
        return Score(value, parts=parts)
    return Score(failure=Failure("invalid", "the composed value is too large for a float"), parts=parts)


def _first(when: str) -> str:
    return when.partition(".")[0]


async def _ask_where(
    component: Component, group: RolloutGroup, term: TermSettings, before: Column, wanted: Sequence[bool]
) -> Column:
    """Ask about the rollouts for which the condition holds.

    A condition that is not known says neither yes nor no: where it failed, so does the part; where it was dropped for
    the group, so is the part.
    """
    conditions = [_condition(score, term) for score in before.scores]
    unknown = [why for why in conditions if isinstance(why, Failure)]
    if before.dropped is not None or any(why.kind == "dropped" for why in unknown):
        cause = before.dropped or next((why for why in unknown if why.kind != "dropped"), unknown[0])
        blank = component.blank("dropped", f'left out for the group, as "{term.when}" is')
        return Column((blank,) * len(group.rollouts), cause)
    column = await component.chat(group, [want and held is True for want, held in zip(wanted, conditions, strict=True)])
    scores = [
        component.lacking(because(term.when, why)) if want and isinstance(why, Failure) else score
        for score, want, why in zip(column.scores, wanted, conditions, strict=True)
    ]
    return Column(tuple(scores), column.dropped)


def _condition(score: Score, term: TermSettings) -> bool | Failure:
    """Return whether a rollout meets the condition of a part, or why that is not known."""
    path = term.when.partition(".")[2]
    if path:
        known = dict(score.named_parts())
        if path not in known:
            return Failure("invalid", f"there is no such part: it has {listing(known)}")
        score = known[path]
    if score.failure is not None:
        return False if score.failure.kind == "skipped" else score.failure
    return score.value is not None and score.value >= term.at_least


def _terms(parts: Mapping[str, Chosen], components: Mapping[str, Component], kind: type[Term]) -> dict[str, Term]:
    """Return what stands beside each part, after checking that `when` names an earlier part."""
    terms: dict[str, Term] = {}
    known: list[str] = []
    for name, chosen in parts.items():
        term = chosen.slot
        assert isinstance(term, kind)
        if term.when and term.when not in known:
            raise UserError(
                f'the part "{name}" asks when = "{term.when}", which is no part before it.'
                f"{nearest(term.when, known)} Parts before it: {listing(known)}"
            )
        terms[name] = term
        known += _names(name, components[name].lacking(Failure("skipped")))
    return terms


def _names(name: str, score: Score) -> list[str]:
    return [name, *(inner for inner, _ in score.named_parts(f"{name}."))]
