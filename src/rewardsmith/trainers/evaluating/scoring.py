"""Score many groups with a reward for an evaluation: failures are counted and never stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from dataclasses import astuple, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rewardsmith.config import Chosen
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, Models, Usage
from rewardsmith.rewards.base import score
from rewardsmith.rewards.component import Component, Instead
from rewardsmith.rewards.judges.judge import stored_answers
from rewardsmith.rewards.measure import Measures
from rewardsmith.rewards.tree import check, components_of, walk
from rewardsmith.types import NOT_ASKED, Prompt, Rollout, RolloutGroup, ScoredGroup

Item = TypeVar("Item")
Result = TypeVar("Result")

GLANCE = 0.2
"""Seconds between two looks at whether the user wants to stop."""

APART = 1 << 16
"""Between the seeds, and the tries, of two verdicts on the same question; no judge asks that often."""


async def each(
    items: Iterable[Item],
    work: Callable[[Item], Awaitable[Result]],
    *,
    at_once: int,
    pause: Callable[[], None] = lambda: None,
    tick: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Return what `work` makes of each item, in their order.

    Args:
        items: what is worked on.
        work: is called for each.
        at_once: how many are under way at the same time.
        pause: called often; what it raises ends the work.
        tick: called after each item.
    """
    free = asyncio.Semaphore(at_once)

    async def one(item: Item) -> Result:
        async with free:
            result = await work(item)
        tick()
        return result

    try:
        async with asyncio.TaskGroup() as tasks:
            found = [tasks.create_task(one(item)) for item in items]
            open_ = set(found)
            while open_:  # the user may want to stop while a judge is slow
                _, open_ = await asyncio.wait(open_, timeout=GLANCE, return_when=asyncio.FIRST_EXCEPTION)
                pause()
    except BaseExceptionGroup as several:  # a task group wraps even a single cause
        raise several.exceptions[0] from None
    return [task.result() for task in found]


class Notes:
    """What went wrong, over many groups.

    Args:
        prefix: of the names of components, such as `sound.`, where there are several rewards.

    Attributes:
        details: what the first failure of each component and kind said, by `component kind`.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._measures = Measures()
        self.details: dict[str, str] = {}

    def add(self, scored: ScoredGroup) -> None:
        """Count a group."""
        self._measures.add(scored)
        for whole in scored.scores:
            for name, part in (("", whole), *whole.named_parts()):
                if part.failure is not None and part.failure.kind not in NOT_ASKED and not part.parts:
                    self.details.setdefault(f"{self._called(name)} {part.failure.kind}", part.failure.detail)

    def counts(self) -> dict[str, float]:
        """Return the share of failures by component and kind, and of labels, as metrics."""
        metrics: dict[str, float] = {}
        for name, part in self._measures.result().items():
            metrics |= {f"failures/{self._called(name)}/{kind}": share for kind, share in part.failed.items()}
            metrics |= {f"labels/{self._called(name)}/{label}": share for label, share in part.labels.items()}
        return metrics

    def _called(self, name: str) -> str:
        return f"{self._prefix}{name}".strip(".") or "reward"


class Scorer:
    """A reward that is measured.

    Args:
        chosen: the reward.
        models: from the name of a model to the model, for rewards that ask one.
        say: tells the user something.
        at_once: how many groups are with the reward at the same time.
        pause: called often; what it raises ends the work.
        tick: called after each group.

    Attributes:
        reward: as it is used.
        notes: what went wrong, over all groups that were asked about once.
    """

    def __init__(
        self,
        chosen: Chosen,
        models: Models | None = None,
        *,
        say: Callable[[str], None] = lambda text: None,
        at_once: int = 32,
        pause: Callable[[], None] = lambda: None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._chosen, self._models, self._say = chosen, models, say
        self._at_once, self._pause, self._tick = at_once, pause, tick
        self._judges: dict[str, Any] = {}
        self._before: dict[str, Usage] | None = None
        self.reward = self._made(models)
        self.notes = Notes()

    def _made(self, models: Models | None) -> Component:
        reward = Component.root(self._chosen, self._say)
        for _, component in walk(reward):
            component.unlimited = True
        if models is not None:
            self._connect(reward, models)
        return reward

    def _connect(self, component: Component, models: Models, *, needed: bool = True) -> None:
        """Hand over the models, and note those that are needed: not those of a reward that only replaces failures."""

        def find(name: str) -> Any:
            model = models(name)
            if needed:
                self._judges.setdefault(name, model)
            return model

        take = getattr(component.reward, "connect", None)
        if take is not None:
            take(find)
        for name, inner in components_of(component.reward).items():
            fallback = isinstance(component.reward, Instead) and name == "instead"
            self._connect(inner, models, needed=needed and not fallback)

    def _usages(self) -> dict[str, Usage]:
        return {name: copy(model.usage) for name, model in self._judges.items() if hasattr(model, "usage")}

    def require_called(self) -> None:
        """Raise a `UserError` if no model was called, nor its verdicts found in the cache, for any group so far."""
        before = self._before or {}
        unused = [
            name for name, usage in self._usages().items() if not any(astuple(usage.since(before.get(name, Usage()))))
        ]
        if not unused:
            return
        names = ", ".join(f"models.{name}" for name in unused)
        if len(unused) < len(self._judges):
            self._say(f"{names}: not called for any item, so that nothing was measured of it")
            return
        raise UserError(
            f"{names}: not called for any item. All values are constants of the reward's settings, or of rules before"
            " the judge: nothing was measured. Check that the data's columns hold the answers, or name the judge's part"
            " of the reward alone, as in recipe.toml:policy.reward.judge"
        )

    async def check(self) -> None:
        """Raise a `UserError` if the reward cannot work."""
        await check(self.reward)

    async def score(self, groups: Iterable[RolloutGroup]) -> list[NDArray[np.float64]]:
        """Return the values of each group, [n]; NaN for a rollout without one."""
        return await self._pass(self.reward, groups, noted=True)

    async def score_in_order(self, groups: Iterable[RolloutGroup]) -> list[NDArray[np.float64]]:
        """Return the same where judges of groups show the candidates in the order that these have in the group."""
        return await self._pass(self.reward, groups, as_given=True)

    async def score_again(self, groups: Iterable[RolloutGroup], number: int) -> list[NDArray[np.float64]]:
        """Return another verdict on the same groups: nothing from the cache, and other seeds; `number` from 1."""
        models = self._models
        again = self._made(None if models is None else lambda name: Again(models(name), number))
        await check(again)
        return await self._pass(again, groups)

    async def _pass(
        self, reward: Component, groups: Iterable[RolloutGroup], *, noted: bool = False, as_given: bool = False
    ) -> list[NDArray[np.float64]]:
        if self._before is None:  # a check may have called the models
            self._before = self._usages()

        async def one(group: RolloutGroup) -> NDArray[np.float64]:
            with stored_answers(keep_order=as_given):
                scored = await score(reward, group)
            if noted:
                self.notes.add(scored)
            return np.array([np.nan if s.value is None else s.value for s in scored.scores])

        return await each(groups, one, at_once=self._at_once, pause=self._pause, tick=self._tick)


class Again:
    """A model that is asked anew: past the cache, and with a seed of its own; all else passes through.

    Args:
        model: any of `rewardsmith.llm`.
        number: which verdict this is; 0 would be the first.
    """

    def __init__(self, model: Any, number: int) -> None:
        self._model = getattr(model, "uncached", model)
        self._shift = number * APART

    def __getattr__(self, name: str) -> Any:
        """Return what the model has."""
        return getattr(self._model, name)

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return another answer than the first, where the model draws its answers."""
        # Seeds are below 2^31 where a server takes one.
        seed = (question.seed + self._shift) % 2**31
        answer: ChatReply = await self._model.chat(replace(question, seed=seed, attempt=question.attempt + self._shift))
        return answer


def group_of(prompt: Prompt, texts: Sequence[str]) -> RolloutGroup:
    """Return answers to a prompt as a group, as if a policy had written them."""
    return RolloutGroup(prompt, [Rollout(text) for text in texts])
