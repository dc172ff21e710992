"""Rewards made of others: sum, product, cascade, route, and a rule with a judge (gate, fallback, mixed).

A part that cannot change the result is not computed: it is `skipped`. A part that is dropped for the group is left out:
the result is that of the other parts. Every part keeps its name and its score in the result.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, TypeVar

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
RuleRole = Annotated[Chosen, in_place(), Field(description="p: computed first")]
JudgeRole = Annotated[Chosen, in_place(), Field(description="v: computed where it can change the result")]

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

    def _counted(self, parts: Mapping[str, Score]) -> Mapping[str, Score]:
        return parts

    async def _columns(self, group: RolloutGroup) -> dict[str, ScoreColumn]:
        raise NotImplementedError

    def _value(self, values: Mapping[str, float]) -> float:
        raise NotImplementedError


class Sum(_Combined):
    """Add up weighted rewards; those that do not depend on each other are computed concurrently."""

    def __init__(
        self, *, parts: Annotated[dict[str, PartChoice], Field(min_length=1, description="the rewards, by name")]
    ) -> None:
        self.components = _built(parts)
        self._terms = _terms(parts, self.components, PartSettings)
        self.streams = {name: Part(term.weight, term.discount) for name, term in self._terms.items() if term.weight}
        if not self.streams:
            raise UserError("every part of the sum has weight 0: there is nothing to add up")
        self.computed = computed_parts(self._terms)
        for name in set(parts) - set(self.streams):
            self.components[name].ignore_failures = True

    async def _columns(self, group: RolloutGroup) -> dict[str, ScoreColumn]:
        tasks: dict[str, asyncio.Task[ScoreColumn]] = {}

        async def column(name: str) -> ScoreColumn:
            term, component = self._terms[name], self.components[name]
            wanted = [name in self.computed] * len(group.rollouts)
            if not term.when:
                return await component.score(group, wanted)
            return await _score_where(component, group, term, await tasks[_first(term.when)], wanted)

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

    def without(self, score: Score, names: Collection[str]) -> Score:
        """Return a score of this sum as it would be if some of its parts had been skipped."""
        skipped = Score(failure=Failure("skipped", "it is left out"))
        parts = {name: skipped if name in names else part for name, part in score.parts.items()}
        dropped = {n: p.failure if p.failure and p.failure.kind == "dropped" else None for n, p in parts.items()}
        return self._combined({name: ScoreColumn((part,), dropped[name]) for name, part in parts.items()}, parts)


class Product(_Combined):
    """Multiply weighted rewards in order; after a 0 the rest is not computed. A part whose `when` fails is 0."""

    def __init__(
        self, *, parts: Annotated[dict[str, TermChoice], Field(min_length=1, description="the rewards, by name")]
    ) -> None:
        self.components = _built(parts)
        self._terms = _terms(parts, self.components, TermSettings)
        for name, term in self._terms.items():
            if not term.weight:
                raise UserError(f'the part "{name}" of the product has weight 0: every reward would be 0')

    async def _columns(self, group: RolloutGroup) -> dict[str, ScoreColumn]:
        columns: dict[str, ScoreColumn] = {}
        open_ = [True] * len(group.rollouts)
        for name, component in self.components.items():
            term = self._terms[name]
            if term.when:
                column = await _score_where(component, group, term, columns[_first(term.when)], open_)
            else:
                column = await component.score(group, open_)
            columns[name] = column
            if column.dropped is None:
                open_ = [was and bool(score.value) for was, score in zip(open_, column, strict=True)]
        return columns

    def _value(self, values: Mapping[str, float]) -> float:
        return math.prod(self._terms[name].weight * value for name, value in values.items())


class Cascade(_Combined):
    """Compute cheap rewards first; the next one only scores rollouts that are still undecided.

    The value is that of the part that decided. The last part always decides.
    """

    def __init__(
        self, *, parts: Annotated[dict[str, StepChoice], Field(min_length=1, description="the rewards, by name")]
    ) -> None:
        self.components = _built(parts)
        self._limits = {
            name: (getattr(chosen.slot, "below", None), getattr(chosen.slot, "above", None))
            for name, chosen in parts.items()
        }
        for name in list(parts)[:-1]:
            if self._limits[name] == (None, None):
                raise UserError(f'the part "{name}" has neither below nor above: it would never decide')

    async def _columns(self, group: RolloutGroup) -> dict[str, ScoreColumn]:
        columns: dict[str, ScoreColumn] = {}
        open_ = [True] * len(group.rollouts)
        for name, component in self.components.items():
            columns[name] = column = await component.score(group, open_)
            if column.dropped is None:
                open_ = [
                    was and score.value is not None and not self._decides(name, score.value)
                    for was, score in zip(open_, column, strict=True)
                ]
        return columns

    def _decides(self, name: str, value: float) -> bool:
        below, above = self._limits[name]
        return (below is not None and value <= below) or (above is not None and value >= above)

    def _counted(self, parts: Mapping[str, Score]) -> Mapping[str, Score]:
        computed = {name: part for name, part in parts.items() if part.ok or failed(part)}
        return computed or parts

    def _value(self, values: Mapping[str, float]) -> float:
        return list(values.values())[-1]


# ---- a cheap rule and a costly judge, joined in three common ways: p is the rule's value, v the judge's --------------


class _Pair(_Combined):
    """Two components, the rule first; subclasses define where the judge is needed, and how the two are joined."""

    roles: Sequence[str] = ("rule", "judge")  # those that count

    def __init__(self, rule: Chosen, judge: Chosen) -> None:
        self.components = {"rule": Component.build("rule", rule), "judge": Component.build("judge", judge)}

    async def _columns(self, group: RolloutGroup) -> dict[str, ScoreColumn]:
        rule = await self.components["rule"].score(group, ["rule" in self.roles] * len(group.rollouts))
        wanted = ["judge" in self.roles] * len(rule)
        if len(self.roles) == 2 and rule.dropped is None:
            wanted = [score.value is not None and self._needs_judge(score.value) for score in rule]
        return {"rule": rule, "judge": await self.components["judge"].score(group, wanted)}

    def _counted(self, parts: Mapping[str, Score]) -> Mapping[str, Score]:
        return {name: parts[name] for name in self.roles}

    def _value(self, values: Mapping[str, float]) -> float:
        if len(values) == 1:
            return self._single(*next(iter(values.items())))
        return self._join(values["rule"], values["judge"])

    def _needs_judge(self, p: float) -> bool:
        raise NotImplementedError

    def _join(self, p: float, v: float) -> float:
        raise NotImplementedError

    def _single(self, name: str, value: float) -> float:
        """Return the value where the other of the two was dropped for the group, or does not count."""
        return value


class Gate(_Pair):
    """p · v: the judge counts only where the rule holds; where it does not, the judge is not called."""

    def __init__(
        self,
        *,
        rule: RuleRole,
        judge: JudgeRole,
        threshold: Annotated[
            float | None, Field(description="a rule below this counts as 0; not set: only 0 does")
        ] = None,
    ) -> None:
        super().__init__(rule, judge)
        self._threshold = threshold

    def _needs_judge(self, p: float) -> bool:
        return p != 0 and (self._threshold is None or p >= self._threshold)

    def _join(self, p: float, v: float) -> float:
        return p * v if self._needs_judge(p) else 0.0

    def _single(self, name: str, value: float) -> float:
        return value if name == "judge" or self._needs_judge(value) else 0.0


class Fallback(_Pair):
    """The judge only where the rule fails: p where it reaches the threshold, else factor · v.

    It corrects false negatives of the rule. A correct answer stays correct whatever the judge thinks: to catch correct
    answers with wrong reasoning, use `gate`.
    """

    def __init__(
        self,
        *,
        rule: RuleRole,
        judge: JudgeRole,
        factor: Annotated[float, Field(gt=0, description="factor of the judge's value")] = 1.0,
        correct_threshold: Annotated[float, Field(description="the answer is correct from this value of the rule")] = 1,
    ) -> None:
        super().__init__(rule, judge)
        self._factor, self._correct_threshold = factor, correct_threshold

    def _needs_judge(self, p: float) -> bool:
        return p < self._correct_threshold

    def _join(self, p: float, v: float) -> float:
        return self._factor * v if self._needs_judge(p) else p

    def _single(self, name: str, value: float) -> float:
        return self._factor * value if name == "judge" else value


class Mixed(_Pair):
    """share · v + (1 − share) · p."""

    def __init__(
        self,
        *,
        rule: RuleRole,
        judge: JudgeRole,
        share: Annotated[float, Field(ge=0, le=1, description="share of the judge")] = 0.5,
    ) -> None:
        super().__init__(rule, judge)
        self._share = share
        self.roles = [name for name, counts in (("rule", share < 1), ("judge", share > 0)) if counts]

    def _needs_judge(self, p: float) -> bool:
        return True

    def _join(self, p: float, v: float) -> float:
        return self._share * v + (1 - self._share) * p


class Route(Composed):
    """Choose the reward by the source of the prompt: the first whose sources match.

    Every score has a part for each route; those that were not taken are skipped.
    """

    routes = True

    def __init__(
        self,
        *,
        routes: Annotated[
            dict[str, RouteChoice], Field(min_length=1, description="the rewards, by name; the order counts")
        ],
    ) -> None:
        self.components = _built(routes)
        self._sources: dict[str, list[str]] = {
            name: list(getattr(chosen.slot, "sources", ())) or [name] for name, chosen in routes.items()
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
    component: Component, group: RolloutGroup, term: TermSettings, before: ScoreColumn, wanted: Sequence[bool]
) -> ScoreColumn:
    """Score the rollouts for which the condition of a part holds.

    An unknown condition is neither true nor false: where it failed, so does the part; where it was dropped for the
    group, so is the part.
    """
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
    path = term.when.partition(".")[2]
    if path:
        known = dict(score.named_parts())
        if path not in known:
            return Failure("invalid", f"there is no such part: it has {listing(known)}")
        score = known[path]
    if score.failure is not None:
        return False if score.failure.kind == "skipped" else score.failure
    return score.value is not None and score.value >= term.at_least


def _first(when: str) -> str:
    return when.partition(".")[0]


def _built(parts: Mapping[str, Chosen]) -> dict[str, Component]:
    """Return the parts of a composition, after checking their names."""
    for name in parts:
        if name in RESERVED:
            raise UserError(f"a part is called {name!r}, as a metric of the whole reward is: rename it")
        if "." in name or not name:
            raise UserError(f"a part is called {name!r}: a name is not empty and has no dots, which separate levels")
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
