"""A reward that is ready to score, for Python programs: notebooks, other trainers, servers.

    reward = LoadedReward(find_reward("recipe.toml:policy"))
    reward.score_groups(groups)                     # blocks
    await reward.score_group(group)                 # from any event loop

All scoring runs on one event loop in a background thread, because connections to judges belong to a loop. So a reward
can be used from a notebook, whose own loop is running, and from several threads.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rewardsmith.llm import Usage
from rewardsmith.rewards.base import Part, parts_of, score
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.tree import check, close, needs_whole_groups, walk
from rewardsmith.runs.background_loop import LOOP
from rewardsmith.runs.lookup import NamedReward
from rewardsmith.runs.model_registry import ModelRegistry
from rewardsmith.trainers.evaluate.scorer import run_in_order
from rewardsmith.types import RolloutGroup, ScoredGroup

CONCURRENCY = 64
"""Groups that are scored at a time."""

CLOSE_TIMEOUT = 10.0
"""Seconds for closing connections and stopping servers when the program ends."""

_logger = logging.getLogger("rewardsmith")


_OPEN: weakref.WeakSet[LoadedReward] = weakref.WeakSet()


class LoadedReward:
    """A reward with its models. It is checked when it first scores; `close` it, or use it in a `with` block.

    `models` are Python objects in place of the models that the reward names (`rewardsmith.llm` has the protocols).
    """

    def __init__(self, found: NamedReward, models: Mapping[str, Any] | None = None) -> None:
        self.found, self.models = found, dict(models or {})
        self._folder: Path | None = None
        self._registry = ModelRegistry(
            found.models, seed=found.seed, folder=self._log_folder, log=_logger.info, cache=found.cache,
            given=self.models,
        )  # fmt: skip
        self.component = Component.root(found.reward, _logger.warning, self._registry)
        self._checked: asyncio.Future[None] | None = None
        self.stop_on_failures = False
        _OPEN.add(self)

    @property
    def stop_on_failures(self) -> bool:
        """Whether too many failures raise `Halt` (failure.share of the reward); else they are only in the scores."""
        return not self.component.unlimited

    @stop_on_failures.setter
    def stop_on_failures(self, stop: bool) -> None:
        for _, component in walk(self.component):
            component.unlimited = not stop

    @property
    def streams(self) -> Mapping[str, Part]:
        """The parts of a sum, with their weights; empty for another reward."""
        return parts_of(self.component)

    @property
    def part_names(self) -> tuple[str, ...]:
        """The dotted names of the parts that its scores have, as far as they are known before it scores."""
        inner = [(path, component.declared) for path, component in walk(self.component)]
        names = [name for path, own in inner for name in (path, *(f"{path}.{one}".lstrip(".") for one in own)) if name]
        return tuple(dict.fromkeys(names))

    @property
    def needs_whole_groups(self) -> bool:
        """Whether the score of an answer depends on the other answers to its prompt."""
        return needs_whole_groups(self.component)

    def usage(self) -> dict[str, Usage]:
        """Return the calls, tokens and costs of its models so far."""
        return self._registry.totals()

    def check(self) -> None:
        """Raise a `UserError` if the reward cannot work, such as a judge that does not respond."""
        LOOP.run(check(self.component))

    def score_groups(self, groups: Iterable[RolloutGroup], *, concurrency: int = CONCURRENCY) -> list[ScoredGroup]:
        """Return the scored groups, in order; it blocks."""
        return LOOP.run(self._score_groups(groups, concurrency))

    async def score_groups_async(
        self, groups: Iterable[RolloutGroup], *, concurrency: int = CONCURRENCY
    ) -> list[ScoredGroup]:
        """Return the scored groups, in order."""
        return await LOOP.wait(self._score_groups(groups, concurrency))

    async def score_group(self, group: RolloutGroup) -> ScoredGroup:
        """Return a scored group. What cannot be scored is a `Failure`; only a `UserError` such as `Halt` is raised."""
        return await LOOP.wait(self._score(group))

    async def _score_groups(self, groups: Iterable[RolloutGroup], concurrency: int) -> list[ScoredGroup]:
        found: list[ScoredGroup] = []
        await run_in_order(groups, self._score, lambda _, scored: found.append(scored), concurrency=concurrency)
        return found

    async def _score(self, group: RolloutGroup) -> ScoredGroup:
        checked = self._checked
        if checked is None or (checked.done() and (checked.cancelled() or checked.exception() is not None)):
            checked = self._checked = asyncio.ensure_future(check(self.component))
        await asyncio.shield(checked)
        return await score(self.component, group)

    def _log_folder(self) -> Path:
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="rewardsmith-"))
        return self._folder

    def close(self) -> None:
        """Close connections, and stop the servers that were started for it."""
        LOOP.run(self._close())

    async def _close(self) -> None:
        _OPEN.discard(self)
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await close(self.component)
            await self._registry.close()

    def __enter__(self) -> LoadedReward:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> LoadedReward:
        return self

    async def __aexit__(self, *_: object) -> None:
        await LOOP.wait(self._close())

    def __repr__(self) -> str:
        return f"LoadedReward({self.found.reward.name!r}, parts={list(self.part_names)})"


@atexit.register
def _close_all() -> None:
    for reward in list(_OPEN):
        with suppress(Exception):
            reward.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_OPEN.clear)  # a child leaves the rewards of its parent alone
