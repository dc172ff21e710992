"""`rewardsmith evaluate`, from its options to what it prints."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rich.console import Console

from rewardsmith.errors import UserError
from rewardsmith.llm import Usage
from rewardsmith.runs.evaluating.data import read_items
from rewardsmith.runs.evaluating.printing import show
from rewardsmith.runs.model_registry import ModelRegistry
from rewardsmith.runs.progress import Progress
from rewardsmith.runs.rescoring.choice import Found, find_reward
from rewardsmith.runs.rescoring.models import Logs, models_of
from rewardsmith.runs.rescoring.showing import PromptPrinter
from rewardsmith.runs.stopping import Interrupted, stoppable
from rewardsmith.trainers.evaluating.kinds import evaluate_reward, passes
from rewardsmith.trainers.evaluating.pairs import Ties
from rewardsmith.trainers.evaluating.scoring import Scorer
from rewardsmith.trainers.evaluating.stage import READS, Kind
from rewardsmith.trainers.evaluating.tables import Evaluation
from rewardsmith.trainers.protocol import Update

Result = TypeVar("Result")

UNITS: dict[Kind, str] = {"rankings": "groups", "grades": "answers", "pairs": "pairs"}
"""What is counted while a reward is measured."""


@dataclass(frozen=True)
class How:
    """How a reward is measured.

    Attributes:
        items: how many at most; None takes all of a file.
        orders: candidate orders; 1 does not ask.
        repeats: verdicts on each item; 1 asks once.
        threshold: grades: a right answer that scores below it is called unsound.
        levels: grades: bands of scores around 0, 1/levels, …, 1.
        ties: pairs: what equal scores count.
        seed: of orders and intervals.
        at_once: how many groups are scored at the same time.
    """

    items: int | None = None
    orders: int = 1
    repeats: int = 1
    threshold: float = 0.5
    levels: int = 10
    ties: Ties = "wrong"
    seed: int = 0
    at_once: int = 32


@dataclass
class Ticks:
    """Counts groups for a progress bar.

    Attributes:
        progress: what the user sees.
        done: groups so far.
    """

    progress: Progress
    done: int = 0
    begun: float = field(default_factory=time.perf_counter)

    def __call__(self) -> None:
        """One more group is done."""
        self.done += 1
        rate = self.done / max(1e-9, time.perf_counter() - self.begun)
        self.progress.step(Update(self.done, {"groups/s": rate}))


def require_finite(option: str, value: float) -> None:
    """Raise a `UserError` for a limit with which no number can be compared."""
    if not math.isfinite(value):
        raise UserError(f"{option} is {value}: it must be a finite number")


def evaluate_stored(
    kind: Kind,
    data: str,
    reward: str,
    overrides: Sequence[str] = (),
    *,
    how: How | None = None,
    settings: Sequence[str] = (),
    json: bool = False,
    show_prompts: int = 0,
    fail_above: float = 1.0,
) -> bool:
    """Measure a reward on data whose truth is known, and print how it did; return whether enough could be scored.

    Args:
        kind: what the data has.
        data: a file, a folder, or `RECIPE.toml:NAME`.
        reward: as `RECIPE[:path]`; see `find_reward`.
        overrides: changes of that file.
        how: how it is measured.
        settings: of the data source, as `key=value`.
        json: print JSON instead of tables.
        show_prompts: how many questions to models to print, with the answers.
        fail_above: share of items without a score that is too much; without any score it never is enough.

    Raises:
        UserError: for whatever a user can mend.
        Interrupted: after Ctrl-C.
    """
    how = how or How()
    require_finite("--threshold", how.threshold)
    progress = Progress(Console(stderr=True))
    found = find_reward(reward, overrides)
    items = read_items(data, READS[kind], settings, items=how.items, say=progress.log)
    measured, used = with_models(
        found, progress, show_prompts, lambda models: _measured(kind, data, items, found, models, how, progress)
    )
    facts = {"data": data, "reward": reward, "overrides": list(overrides), "settings": list(settings), **vars(how)}
    show(measured, used, facts | {"items": len(items)}, as_json=json)
    failed = measured.metrics.get("failed", 0.0)
    return failed < 1 and failed <= fail_above


async def _measured(
    kind: Kind, data: str, items: Sequence[Any], found: Found, models: Any, how: How, progress: Progress
) -> Evaluation:
    scorer = Scorer(found.reward, models, say=progress.log, at_once=how.at_once, tick=Ticks(progress))
    await scorer.check()
    with progress.stage("evaluate", passes(kind, items, how.orders, how.repeats), 0, unit=UNITS[kind]):
        return await evaluate_reward(
            data,
            kind,
            items,
            scorer,
            orders=how.orders,
            repeats=how.repeats,
            threshold=how.threshold,
            levels=how.levels,
            ties=how.ties,
            seed=how.seed,
        )


def with_models(
    found: Found,
    progress: Progress,
    show_prompts: int,
    work: Callable[[Callable[[str], Any]], Coroutine[Any, Any, Result]],
) -> tuple[Result, dict[str, Usage]]:
    """Run what needs the models of a reward, close them, and return its result and what was asked of them.

    Args:
        found: the reward, and the models of its file.
        progress: what the user sees.
        show_prompts: how many questions to print.
        work: gets the function from the name of a model to the model.

    Raises:
        Interrupted: after Ctrl-C.
    """
    logs, watch = Logs(), PromptPrinter(show_prompts, progress.log) if show_prompts else None
    models = models_of(found, progress.log, logs)

    async def closing() -> tuple[Result, dict[str, Usage]]:
        try:
            result = await work(models if watch is None else lambda name: watch(models(name)))
            return result, models.totals()
        finally:
            await models.close()

    try:
        with stoppable():
            done = asyncio.run(closing())
    except KeyboardInterrupt:
        raise Interrupted(f"stopped. {_kept(found, models)}") from None
    logs.remove()
    return done


def _kept(found: Found, models: ModelRegistry) -> str:
    asks = bool(models.totals() or found.asked)
    kept = "What models have said is in the cache: the same command asks for the rest only"
    return kept if asks and found.cache != "" else "Nothing was kept"


__all__ = ["How", "Interrupted", "Ticks", "evaluate_stored", "require_finite", "with_models"]
