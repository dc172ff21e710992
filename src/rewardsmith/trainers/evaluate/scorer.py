"""The one scoring loop, and a reward that is measured: its failures are counted and never stop an evaluation."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from dataclasses import astuple, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rewardsmith.config import Chosen
from rewardsmith.data.rows import printable
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, Models, Usage, WrappedModel
from rewardsmith.rewards.base import score
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.judges.judge import stored_answers
from rewardsmith.rewards.measure import Measures
from rewardsmith.rewards.tree import check, walk
from rewardsmith.types import NOT_COMPUTED, Prompt, Rollout, RolloutGroup, Score, ScoredGroup

Item = TypeVar("Item")
Result = TypeVar("Result")
Values = NDArray[np.float64]

READ_AHEAD = 8
"""Finished items that wait for an earlier one, as a multiple of the concurrency."""

MAX_DETAIL = 300
"""Characters of an error message that are shown."""

POLL_SECONDS = 0.2
"""Seconds between two checks for a stop request while a call is slow."""

SEED_STEP = 1 << 16
"""Distance of the seeds, and of the attempts, of two repeats; no judge retries that often."""


def nothing() -> None:
    """Do nothing."""


async def run_in_order(
    items: Iterable[Item],
    work: Callable[[Item], Awaitable[Result]],
    keep: Callable[[Item, Result], None],
    *,
    concurrency: int,
    pause: Callable[[], None] = nothing,
) -> None:
    """Work on `concurrency` items at a time, and `keep` each result in the order of the items.

    Items are read at most `READ_AHEAD` × `concurrency` ahead. The first exception of `work`, or of `pause`, which is
    called often, ends the loop and is raised as it is.
    """
    slots = asyncio.Semaphore(concurrency)
    pending: deque[tuple[Item, asyncio.Task[Result]]] = deque()

    async def one(item: Item) -> Result:
        async with slots:
            return await work(item)

    async def hand_over(limit: int) -> None:
        while pending and (len(pending) > limit or pending[0][1].done()):
            item, task = pending.popleft()
            while not task.done():
                await asyncio.wait([task], timeout=POLL_SECONDS)
                pause()
            keep(item, await task)

    try:
        async with asyncio.TaskGroup() as tasks:
            for item in items:
                pending.append((item, tasks.create_task(one(item))))
                await asyncio.sleep(0)  # let the others proceed while items are read
                await hand_over(READ_AHEAD * concurrency)
            await hand_over(0)
    except BaseExceptionGroup as several:  # a task group wraps even a single cause
        raise several.exceptions[0] from None


class FailureLog:
    """Measures of each component over many groups, and the first error message by `component kind`.

    `prefix` is that of the names of components, where there are several rewards, such as `correct`.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self.measures = Measures()
        self.details: dict[str, str] = {}

    def add(self, scored: ScoredGroup) -> None:
        """Count a group."""
        self.measures.add(scored)
        for whole in scored.scores:
            for name, part in (("", whole), *whole.named_parts()):
                if part.failure is not None and part.failure.kind not in NOT_COMPUTED and not part.parts:
                    detail = printable(part.failure.detail, MAX_DETAIL)
                    self.details.setdefault(f"{self._full_name(name)} {part.failure.kind}", detail)

    def metrics(self) -> dict[str, float]:
        """Return the share of failures, and of labels, by component and kind."""
        metrics: dict[str, float] = {}
        for name, part in self.measures.result().items():
            metrics |= {f"failures/{self._full_name(name)}/{kind}": share for kind, share in part.failed.items()}
            metrics |= {f"labels/{self._full_name(name)}/{label}": share for label, share in part.labels.items()}
        return metrics

    def lines(self) -> list[str]:
        """Return the first error message of each component and kind, for people."""
        return [f"{printable(cause, 100)}, the first: {text}" for cause, text in self.details.items()]

    def _full_name(self, name: str) -> str:
        return ".".join(part for part in (self._prefix, name) if part) or "reward"


async def score_rollouts(
    reward: Component,
    groups: Sequence[RolloutGroup],
    wanted: Sequence[Sequence[bool]] | None = None,
    *,
    concurrency: int = 256,
    pause: Callable[[], None] = nothing,
    tick: Callable[[], None] = nothing,
) -> list[Sequence[Score]]:
    """Return the scores of the rollouts that are wanted (None: all); the others are `skipped`. Failures stop nothing.

    `tick` is called after each group.
    """
    ignore_budgets(reward)
    scores: list[Sequence[Score]] = []

    def keep(_: int, found: Sequence[Score]) -> None:
        scores.append(found)
        tick()

    async def one(i: int) -> Sequence[Score]:
        return await reward.score(groups[i], None if wanted is None else wanted[i])

    await run_in_order(range(len(groups)), one, keep, concurrency=concurrency, pause=pause)
    return scores


def ignore_budgets(reward: Component) -> None:
    """Let no share of failures of a reward stop anything: they are what is measured."""
    for _, component in walk(reward):
        component.unlimited = True


class Scorer:
    """A reward that is measured; `failures` are over all groups, without repeats and orders.

    `pause` is called often; what it raises ends the work. `prepare` is called with the tree of the reward before it is
    used, and with that of each repeat.
    """

    def __init__(
        self,
        chosen: Chosen,
        models: Models | None = None,
        *,
        log: Callable[[str], None] = lambda text: None,
        concurrency: int = 32,
        pause: Callable[[], None] = nothing,
        prepare: Callable[[Component], None] = lambda tree: None,
    ) -> None:
        self._chosen, self._models, self._log, self._prepare = chosen, models, log, prepare
        self._concurrency, self._pause = concurrency, pause
        self._called: dict[str, Any] = {}
        self._usage_before: dict[str, Usage] | None = None
        self.reward = self._built(None if models is None else self._model)
        self.failures = FailureLog()

    def _built(self, models: Models | None) -> Component:
        reward = Component.root(self._chosen, self._log, models)
        ignore_budgets(reward)
        self._prepare(reward)
        return reward

    def _model(self, name: str) -> Any:
        assert self._models is not None
        return self._called.setdefault(name, self._models(name))

    def _usage(self) -> dict[str, Usage]:
        return {name: copy(model.usage) for name, model in self._called.items() if hasattr(model, "usage")}

    def require_called(self) -> None:
        """Raise a `UserError` if no model was called, nor its replies found in the cache, for any group so far."""
        before = self._usage_before or {}
        unused = [
            name for name, used in self._usage().items() if not any(astuple(used.since(before.get(name, Usage()))))
        ]
        if not unused:
            return
        names = ", ".join(f"models.{name}" for name in unused)
        if len(unused) < len(self._called):
            self._log(f"{names}: not called for any item, so it was not measured")
            return
        raise UserError(
            f"{names}: not called for any item. All values are constants of the reward's settings, or come from rules"
            " before the judge: nothing was measured. Check that the data's columns hold the answers, or name the"
            " judge's part of the reward alone, as in recipe.toml:policy.reward.judge"
        )

    async def check(self) -> None:
        """Raise a `UserError` if the reward cannot work."""
        await check(self.reward)

    @property
    def calls_models(self) -> bool:
        """Whether the reward calls a model."""
        return bool(self._called)

    def usage(self) -> Usage:
        """Return the usage of the reward's models so far, all together."""
        used = self._usage().values()
        return Usage(*(sum(getattr(one, f.name) for one in used) for f in fields(Usage)))

    async def score(
        self,
        groups: Iterable[RolloutGroup],
        *,
        repeat: int = 0,
        in_given_order: bool = False,
        tick: Callable[[], None] = nothing,
    ) -> list[Values]:
        """Return the values of each group, [n]; NaN for a rollout without one. See `score_groups`."""
        scored = await self.score_groups(groups, repeat=repeat, in_given_order=in_given_order, tick=tick)
        return [values_of(one.scores) for one in scored]

    async def score_groups(
        self,
        groups: Iterable[RolloutGroup],
        *,
        repeat: int = 0,
        in_given_order: bool = False,
        tick: Callable[[], None] = nothing,
    ) -> list[ScoredGroup]:
        """Return the scored groups. `tick` is called after each.

        With `repeat` above 0 it is another verdict on the same groups: past the cache, and with other seeds. With
        `in_given_order` judges of groups show the candidates in the order that these have in the group.
        """
        reward, models = self.reward, self._models
        if repeat:
            reward = self._built(None if models is None else lambda name: RepeatModel(models(name), repeat))
            await check(reward)
        if self._usage_before is None:  # a check may have called the models
            self._usage_before = self._usage()
        found: list[ScoredGroup] = []

        async def one(group: RolloutGroup) -> ScoredGroup:
            with stored_answers(keep_order=in_given_order):
                return await score(reward, group)

        def keep(_: RolloutGroup, scored: ScoredGroup) -> None:
            if not repeat and not in_given_order:
                self.failures.add(scored)
            found.append(scored)
            tick()

        await run_in_order(groups, one, keep, concurrency=self._concurrency, pause=self._pause)
        return found


def values_of(scores: Sequence[Score]) -> Values:
    """Return the values of scores, [n]; NaN where there is none."""
    return np.array([np.nan if one.value is None else one.value for one in scores])


class RepeatModel(WrappedModel):
    """A model that is called again: past the cache, and with other seeds."""

    def __init__(self, model: Any, repeat: int) -> None:
        super().__init__(getattr(model, "uncached", model))
        self._shift = repeat * SEED_STEP

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return another reply than the first, where the model samples."""
        seed = (question.seed + self._shift) % 2**31  # servers take seeds below 2^31
        return await super().chat(replace(question, seed=seed, attempt=question.attempt + self._shift))


def group_of(prompt: Prompt, texts: Sequence[str]) -> RolloutGroup:
    """Return answers to a prompt as a group, as if a policy had written them."""
    return RolloutGroup(prompt, [Rollout(text) for text in texts])
