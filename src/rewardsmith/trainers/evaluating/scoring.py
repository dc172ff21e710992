"""Score many groups with a reward for an evaluation: failures are counted and never stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardsmith.asking import Answer, Models, Question
from rewardsmith.components import Chosen
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.judges.candidates import shown_as_given
from rewardsmith.rewards.measure import Measures
from rewardsmith.rewards.protocol import score
from rewardsmith.rewards.tree import check, walk
from rewardsmith.types import NOT_ASKED, Prompt, Rollout, RolloutGroup, ScoredGroup

GLANCE = 0.2
"""Seconds between two looks at whether the user wants to stop."""

APART = 1 << 16
"""Between the seeds, and the tries, of two verdicts on the same question; no judge asks that often."""


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
        measures: what each component said, over all groups that were asked about once.
        details: what the first failure of each component and kind said.
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
        self.reward = self._made(models)
        self.measures = Measures()
        self.details: dict[str, str] = {}

    def _made(self, models: Models | None) -> Component:
        reward = Component.root(self._chosen, self._say, models)
        for _, component in walk(reward):
            component.unlimited = True
        return reward

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
        free = asyncio.Semaphore(self._at_once)

        async def one(group: RolloutGroup) -> NDArray[np.float64]:
            async with free:
                scored = await score(reward, group)
            if noted:
                self._note(scored)
            self._tick()
            return np.array([np.nan if s.value is None else s.value for s in scored.scores])

        try:
            async with asyncio.TaskGroup() as tasks:
                with shown_as_given() if as_given else nullcontext():  # a task keeps what it began with
                    found = [tasks.create_task(one(group)) for group in groups]
                open_ = set(found)
                while open_:
                    _, open_ = await asyncio.wait(open_, timeout=GLANCE, return_when=asyncio.FIRST_EXCEPTION)
                    self._pause()
        except BaseExceptionGroup as several:  # a task group wraps even a single cause
            raise several.exceptions[0] from None
        return [task.result() for task in found]

    def _note(self, scored: ScoredGroup) -> None:
        self.measures.add(scored)
        for whole in scored.scores:
            for name, part in (("reward", whole), *whole.named_parts()):
                if part.failure is not None and part.failure.kind not in NOT_ASKED and not part.parts:
                    self.details.setdefault(f"{name} {part.failure.kind}", part.failure.detail)

    def counts(self) -> dict[str, float]:
        """Return the share of failures by component and kind, and of labels, as metrics."""
        metrics: dict[str, float] = {}
        for name, part in self.measures.result().items():
            metrics |= {f"failures/{name or 'reward'}/{kind}": share for kind, share in part.failed.items()}
            metrics |= {f"labels/{name or 'reward'}/{label}": share for label, share in part.labels.items()}
        return metrics


class Again:
    """A model that is asked anew: past the cache, and with a seed of its own; all else passes through.

    Args:
        model: any of `rewardsmith.asking`.
        number: which verdict this is; 0 would be the first.
    """

    def __init__(self, model: Any, number: int) -> None:
        self._model = getattr(model, "uncached", model)
        self._shift = number * APART

    def __getattr__(self, name: str) -> Any:
        """Return what the model has."""
        return getattr(self._model, name)

    async def ask(self, question: Question) -> Answer:
        """Return another answer than the first, where the model draws its answers."""
        # Seeds are below 2^31 where a server takes one.
        seed = (question.seed + self._shift) % 2**31
        answer: Answer = await self._model.ask(replace(question, seed=seed, attempt=question.attempt + self._shift))
        return answer


def group_of(prompt: Prompt, texts: Sequence[str]) -> RolloutGroup:
    """Return answers to a prompt as a group, as if a policy had written them."""
    return RolloutGroup(prompt, [Rollout(text) for text in texts])
