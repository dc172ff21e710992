"""Rewards made of others: sum, product, cascade, route, and a rule with a judge (gate, fallback, mixed).

A part that cannot change the result is not computed: it is `skipped`. A part that is dropped for the group is left out:
the result is that of the other parts. Every part keeps its name and its score in the result.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, TypeVar

from pydantic import Field

from rewardsmith.config import Chosen
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.base import Composed, Halt, Part
from rewardsmith.rewards.component import Component, ScoreColumn, only_score
from rewardsmith.rewards.failures import ComponentSettings, because, failed, in_place
from rewardsmith.types import Failure, RolloutGroup, Score

RESERVED = frozenset({"mean", "spread", "accuracy", "failed", "flat", "reward"})
"""What a part may not be called: `reward/mean` is the metric of the whole."""


class TermSettings(ComponentSettings):
    """Settings of a part of a product."""

    weight: float = Field(default=1.0, description="factor of this part")
    when: str = Field(default="", description="compute it only where this earlier part holds: answer, base.answer")
    at_least: float = Field(default=1.0, description="threshold from which that part holds")


class PartSettings(TermSettings):
    """Settings of a part of a sum."""

    watch: bool = Field(default=False, description="compute it for the metrics although its weight is 0")
    discount: float | None = Field(
        default=None, ge=0, le=1, description="γ of this part's own stream, where parts are combined after the estimate"
    )


class StepSettings(ComponentSettings):
    """Settings of a part of a cascade."""

    below: float | None = Field(default=None, description="a value of at most this decides")
    above: float | None = Field(default=None, description="a value of at least this decides")


class RouteSettings(ComponentSettings):
    """Settings of a part of a route."""

    sources: list[Annotated[str, Field(min_length=1)]] = Field(
        default=[], description="sources of its prompts, or patterns such as math-*; none: the source of its name"
    )


Term = TypeVar("Term", bound=TermSettings)
PartChoice = Annotated[Chosen, in_place(PartSettings)]
TermChoice = Annotated[Chosen, in_place(TermSettings)]
StepChoice = Annotated[Chosen, in_place(StepSettings)]
RouteChoice = Annotated[Chosen, in_place(RouteSettings)]

ScoreColumns = Mapping[str, ScoreColumn]


class _Combined(Composed):
    """Parts whose values are combined into one number for each rollout."""

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the combined scores. A rollout that a needed part could not score fails, and keeps its parts."""
        columns = await self._columns(group)
        rows = ({name: column[i] for name, column in columns.items()} for i in range(len(group.rollouts)))
        return tuple(self._combined(columns, parts) for parts in rows)

    def _combined(self, columns: ScoreColumns, parts: Mapping[str, Score]) -> Score:
        """Return the score of one rollout: a part that was skipped counts as 0, one that was dropped not at all."""
        values: dict[str, float] = {}
        counted = self._counted(parts)
        for name, part in counted.items():
            if columns[name].dropped is not None:
                continue
            if part.failure is not None and part.failure.kind != "skipped":
                return Score(failure=because(name, part.failure), parts=parts)
            values[name] = part.value or 0.0
        if not values:
            name = next(iter(counted))
            why = because(name, columns[name].dropped or Failure("invalid", "nothing is left"))
            return Score(failure=why, parts=parts)
        value = self._value(values)
        if not math.isfinite(value):
            return Score(failure=Failure("invalid", "the composed value is too large for a float"), parts=parts)
        return Score(value, parts=parts)

    async def _in_order(
        self,
        group: RolloutGroup,
        is_open: Callable[[str, float], bool],
        terms: Mapping[str, TermSettings],
    ) -> dict[str, ScoreColumn]:
        """Score part after part; the next one only scores rollouts whose value left them open."""
        columns: dict[str, ScoreColumn] = {}
        wanted = [True] * len(group.rollouts)
        for name, component in self.components.items():
            term = terms.get(name)
            before = columns[_first(term.when)] if term and term.when else None
            columns[name] = column = await _score_where(component, group, term, before, wanted)
            if column.dropped is None:
                wanted = [
                    was and score.value is not None and is_open(name, score.value)
                    for was, score in zip(wanted, column, strict=True)
                ]
        return columns

    def _counted(self, parts: Mapping[str, Score]) -> Mapping[str, Score]:
        return parts

    async def _columns(self, group: RolloutGroup) -> dict[str, ScoreColumn]:
        raise NotImplementedError

    def _value(self, values: Mapping[str, float]) -> float:
        raise NotImplementedError


@dataclass(kw_only=True, eq=False)
class Sum(_Combined):
    """Add up weighted rewards; those that do not depend on each other are computed concurrently."""

    parts: Annotated[dict[str, PartChoice], Field(min_length=1, description="the rewards, by name")]

    def __post_init__(self) -> None:
        self.components = _built(self.parts)
        self._terms = _terms(self.parts, self.components, PartSettings)
        self.streams = {name: Part(term.weight, term.discount) for name, term in self._terms.items() if term.weight}
        if not self.streams:
            raise UserError("every part of the sum has weight 0: there is nothing to add up")
        self.computed = computed_parts(self._terms)
        for name in set(self.parts) - set(self.streams):
            self.components[name].ignore_failures = True

    async def _columns(self, group: RolloutGroup) -> dict[str, ScoreColumn]:
        tasks: dict[str, asyncio.Task[ScoreColumn]] = {}

        async def column(name: str) -> ScoreColumn:
            term, wanted = self._terms[name], [name in self.computed] * len(group.rollouts)
            before = await tasks[_first(term.when)] if term.when else None
            return await _score_where(self.components[name], group, term, before, wanted)

        try:
            async with asyncio.TaskGroup() as parts:
                for name in self.components:
                    tasks[name] = parts.create_task(column(name))
        except BaseExceptionGroup as several:  # a task group wraps even a single cause
            raise several.exceptions[0] from None
        return {name: task.result() for name, task in tasks.items()}

    def _counted(self, parts: Mapping[str, Score]) -> Mapping[str, Score]:
        return {name: part for name, part in parts.items() if name in self.streams}

    def _value(self, values: Mapping[str, float]) -> float:
        return sum(self._terms[name].weight * value for name, value in values.items())

    def scale_weight(self, name: str, factor: float) -> None:
        """Multiply the weight that a part has in the recipe, from now on."""
        slot = self.parts[name].slot
        assert isinstance(slot, PartSettings)
        self._terms = self._terms | {name: slot.model_copy(update={"weight": slot.weight * factor})}
        self.streams = {**self.streams, name: replace(self.streams[name], weight=slot.weight * factor)}

    def without(self, score: Score, names: Collection[str]) -> Score:
        """Return a score of this sum as it would be if some of its parts had been skipped."""
        skipped = Score(failure=Failure("skipped", "it is left out"))
        parts = {name: skipped if name in names else part for name, part in score.parts.items()}
        dropped = {n: p.failure if p.failure and p.failure.kind == "dropped" else None for n, p in parts.items()}
        return self._combined({name: ScoreColumn((part,), dropped[name]) for name, part in parts.items()}, parts)


@dataclass(kw_only=True, eq=False)
class Product(_Combined):
    """Multiply weighted rewards in order; after a 0 the rest is not computed. A part whose `when` fails is 0."""

    parts: Annotated[dict[str, TermChoice], Field(min_length=1, description="the rewards, by name")]

    def __post_init__(self) -> None:
        self.components = _built(self.parts)
        self._terms = _terms(self.parts, self.components, TermSettings)
        for name, term in self._terms.items():
            if not term.weight:
                raise UserError(f'the part "{name}" of the product has weight 0: every reward would be 0')

    async def _columns(self, group: RolloutGroup) -> dict[str, ScoreColumn]:
        return await self._in_order(group, lambda name, value: value != 0, self._terms)

    def _value(self, values: Mapping[str, float]) -> float:
        return math.prod(self._terms[name].weight * value for name, value in values.items())


@dataclass(kw_only=True, eq=False)
class Cascade(_Combined):
    """Compute cheap rewards first; the next one only scores rollouts that are still undecided.

    The value is that of the part that decided. The last part always decides.
    """

    parts: Annotated[dict[str, StepChoice], Field(min_length=1, description="the rewards, by name")]

    def __post_init__(self) -> None:
        self.components = _built(self.parts)
        self._limits = {
            name: (getattr(chosen.slot, "below", None), getattr(chosen.slot, "above", None))
            for name, chosen in self.parts.items()
        }
        for name in list(self.parts)[:-1]:
            if self._limits[name] == (None, None):
                raise UserError(f'the part "{name}" has neither below nor above: it would never decide')

    async def _columns(self, group: RolloutGroup) -> dict[str, ScoreColumn]:
        return await self._in_order(group, lambda name, value: not self._decides(name, value), {})

    def _decides(self, name: str, value: float) -> bool:
        below, above = self._limits[name]
        return (below is not None and value <= below) or (above is not None and value >= above)

    def _counted(self, parts: Mapping[str, Score]) -> Mapping[str, Score]:
        computed = {name: part for name, part in parts.items() if part.ok or failed(part)}
        return computed or parts

    def _value(self, values: Mapping[str, float]) -> float:
        return list(values.values())[-1]


# ---- a cheap rule and a costly judge, joined in three common ways: p is the rule's value, v the judge's --------------


@dataclass(kw_only=True, eq=False)
class _Pair(_Combined):
    """Two components, the rule first; subclasses define where the judge is needed, and how the two are joined."""

    rule: Annotated[Chosen, in_place(), Field(description="p: computed first")]
    judge: Annotated[Chosen, in_place(), Field(description="v: computed where it can change the result")]

    def __post_init__(self) -> None:
        self.components = {"rule": Component.build("rule", self.rule), "judge": Component.build("judge", self.judge)}
        self.roles = ["rule", "judge"]  # those that count

    async def _columns(self, group: RolloutGroup) -> dict[str, ScoreColumn]:
        rule = await self.components["rule"].score(group, ["rule" in self.roles] * len(group.rollouts))
        wanted = ["judge" in self.roles] * len(rule)
        if len(self.roles) == 2 and rule.dropped is None:
            wanted = [score.value is not None and self._needs_judge(score.value) for score in rule]
        return {"rule": rule, "judge": await self.components["judge"].score(group, wanted)}

    def _counted(self, parts: Mapping[str, Score]) -> Mapping[str, Score]:
        return {name: parts[name] for name in self.roles}

    def _value(self, values: Mapping[str, float]) -> float:
        return self._join(values.get("rule"), values.get("judge"))

    def _needs_judge(self, p: float) -> bool:
        raise NotImplementedError

    def _join(self, p: float | None, v: float | None) -> float:
        """Return the value; one of the two is None where it was dropped for the group, or does not count."""
        raise NotImplementedError


@dataclass(kw_only=True, eq=False)
class Gate(_Pair):
    """p · v: the judge counts only where the rule holds; where it does not, the judge is not called."""

    threshold: Annotated[float | None, Field(description="a rule below this counts as 0; not set: only 0 does")] = None

    def _needs_judge(self, p: float) -> bool:
        return p != 0 and (self.threshold is None or p >= self.threshold)

    def _join(self, p: float | None, v: float | None) -> float:
        if p is not None and not self._needs_judge(p):
            return 0.0
        return (1.0 if p is None else p) * (1.0 if v is None else v)


@dataclass(kw_only=True, eq=False)
class Fallback(_Pair):
    """The judge only where the rule fails: p where it reaches the threshold, else factor · v.

    It corrects false negatives of the rule. A correct answer stays correct whatever the judge thinks: to catch correct
    answers with wrong reasoning, use `gate`.
    """

    factor: Annotated[float, Field(gt=0, description="factor of the judge's value")] = 1.0
    correct_threshold: Annotated[float, Field(description="the answer is correct from this value of the rule")] = 1

    def _needs_judge(self, p: float) -> bool:
        return p < self.correct_threshold

    def _join(self, p: float | None, v: float | None) -> float:
        if v is None or (p is not None and not self._needs_judge(p)):
            return p or 0.0
        return self.factor * v


@dataclass(kw_only=True, eq=False)
class Mixed(_Pair):
    """share · v + (1 − share) · p."""

    share: Annotated[float, Field(ge=0, le=1, description="share of the judge")] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.roles = [name for name, counts in (("rule", self.share < 1), ("judge", self.share > 0)) if counts]

    def _needs_judge(self, p: float) -> bool:
        return True

    def _join(self, p: float | None, v: float | None) -> float:
        if p is None or v is None:
            return p or v or 0.0
        return self.share * v + (1 - self.share) * p


@dataclass(kw_only=True, eq=False)
class Route(Composed):
    """Choose the reward by the source of the prompt: the first whose sources match.

    Every score has a part for each route; those that were not taken are skipped.
    """

    by_source: ClassVar[bool] = True

    routes: Annotated[dict[str, RouteChoice], Field(min_length=1, description="the rewards, by name; the order counts")]

    def __post_init__(self) -> None:
        self.components = _built(self.routes)
        self._sources: dict[str, list[str]] = {
            name: getattr(chosen.slot, "sources", None) or [name] for name, chosen in self.routes.items()
        }

    def find(self, source: str) -> str:
        """Return the name of the route for this source; raise `Halt` without one, which is a mistake in the recipe."""
        for name, patterns in self._sources.items():
            if any(source == pattern or fnmatchcase(source, pattern) for pattern in patterns):
                return name
        known = [pattern for patterns in self._sources.values() for pattern in patterns]
        raise Halt(
            f'no route has the source "{source}".{nearest(source, known)} Known: {", ".join(known)}. Add it to the'
            ' sources of a route, or add a last route with sources = ["*"]'
        )

    def components_for(self, source: str) -> Iterable[Component]:
        """Return the reward of the route for this source."""
        return [self.components[self.find(source)]]

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the scores of the route that the prompt takes."""
        taken, nothing = self.find(group.prompt.source), [False] * len(group.rollouts)
        columns = {
            name: await component.score(group, None if name == taken else nothing)
            for name, component in self.components.items()
        }
        return tuple(
            replace(only_score(columns[taken], i, taken), parts={name: column[i] for name, column in columns.items()})
            for i in range(len(group.rollouts))
        )


# ---- conditions, and the tables of parts ----------------------------------------------------------------------------


async def _score_where(
    component: Component,
    group: RolloutGroup,
    term: TermSettings | None,
    before: ScoreColumn | None,
    wanted: Sequence[bool],
) -> ScoreColumn:
    """Score the wanted rollouts for which the condition of a part, on the scores of the part `before`, holds.

    An unknown condition is neither true nor false: where it failed, so does the part; where it was dropped for the
    group, so is the part.
    """
    if term is None or before is None:
        return await component.score(group, wanted)
    conditions = [_condition(score, term) for score in before]
    unknown = [why for why in conditions if isinstance(why, Failure)]
    if before.dropped is not None or any(why.kind == "dropped" for why in unknown):
        cause = before.dropped or next((why for why in unknown if why.kind != "dropped"), unknown[0])
        why = Failure("dropped", f'left out for the group, as "{term.when}" is')
        return ScoreColumn([component.failed_score(why)] * len(group.rollouts), cause)
    column = await component.score(
        group, [want and held is True for want, held in zip(wanted, conditions, strict=True)]
    )
    scores = [
        component.failed_score(because(term.when, why)) if want and isinstance(why, Failure) else score
        for score, want, why in zip(column, wanted, conditions, strict=True)
    ]
    return ScoreColumn(scores, column.dropped)


def _condition(score: Score, term: TermSettings) -> bool | Failure:
    """Return whether a rollout meets the condition of a part, or why that is not known."""
    if path := term.when.partition(".")[2]:
        score = dict(score.named_parts())[path]
    if score.failure is not None:
        return False if score.failure.kind == "skipped" else score.failure
    return score.value is not None and score.value >= term.at_least


def _first(when: str) -> str:
    return when.partition(".")[0]


def _built(parts: Mapping[str, Chosen]) -> dict[str, Component]:
    """Return the parts of a composition, after checking their names."""
    for name in parts:
        if name in RESERVED or "." in name or not name:
            raise UserError(
                f"a part is called {name!r}: rename it, without dots and unlike {listing(sorted(RESERVED))}"
            )
    return {name: Component.build(name, chosen) for name, chosen in parts.items()}


def computed_parts(terms: Mapping[str, PartSettings]) -> frozenset[str]:
    """Return the names of the parts of a sum that are computed: they count, are watched, or are a condition."""
    conditions = {_first(term.when) for term in terms.values()}
    return frozenset(name for name, term in terms.items() if term.weight or term.watch or name in conditions)


def _terms(parts: Mapping[str, Chosen], components: Mapping[str, Component], kind: type[Term]) -> dict[str, Term]:
    """Return the settings of each part, after checking that `when` names an earlier part."""
    terms: dict[str, Term] = {}
    known: list[str] = []
    for name, chosen in parts.items():
        term = chosen.slot
        assert isinstance(term, kind)
        if term.when and term.when not in known:
            raise UserError(
                f'the part "{name}" has when = "{term.when}", which is no part before it.'
                f"{nearest(term.when, known)} Parts before it: {listing(known)}"
            )
        terms[name] = term
        shape = components[name].failed_score(Failure("skipped"))
        known += [name, *(inner for inner, _ in shape.named_parts(f"{name}."))]
    return terms
