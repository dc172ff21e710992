"""Evaluation of a policy on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rewardsmith.rewards.component import Component
from rewardsmith.rewards.tree import check
from rewardsmith.trainers.evaluating.policies import evaluation_of
from rewardsmith.trainers.evaluating.soundness import judged, require_free
from rewardsmith.trainers.evaluating.tables import Evaluation as Measured
from rewardsmith.trainers.held_out import held_out
from rewardsmith.trainers.protocol import Context, GroupRecord, Update, derive
from rewardsmith.trainers.stages import EvaluateStage
from rewardsmith.trainers.validation import right_of, validate
from rewardsmith.types import ScoredGroup


class Evaluation:
    """Samples answers once and scores them.

    Args:
        stage: the settings.
        context: models, data and files of the run.
    """

    def __init__(self, stage: EvaluateStage, context: Context) -> None:
        self._stage = stage
        self._context = context
        self._engine = context.engine(stage.model)
        self.steps = 1
        self.learners: dict[str, Any] = {}
        self.best_by = ""
        self.reward = Component.root(stage.reward, context.log, context.model)
        self._sound = Component.root(stage.sound, context.log, context.model) if stage.sound else None
        if self._sound is not None:
            require_free(self.reward)

    async def begin(self) -> Update:
        """There is nothing before the only step."""
        return Update(0)

    async def step(self, number: int) -> Update:
        """Sample, score, and measure."""
        # Of the data and not of the stage: evaluations that are compared must ask the same.
        stage, seed = self._stage, derive(self._context.seed, "evaluate", self._stage.data)
        if self._sound is not None:
            await check(self._sound)
        metrics, scored = await validate(
            self._engine,
            self.reward,
            held_out(self._context.source(stage.data).prompts, stage.prompts, stage.data),
            stage.sampling,
            n=stage.rollouts_per_prompt,
            seed=seed,
            version=0,
            right_from=stage.right_from,
            sound=self._sound,
            sound_from=stage.sound_from,
            pause=self._context.pause,
            turn=partial(self._context.turn, stage.model),
            report=self._context.progress,
        )
        none = [None] * stage.rollouts_per_prompt
        self._context.keep([GroupRecord(number, "validation", "", group, none) for group in scored])
        self._context.keep_evaluation(self._evaluation(metrics, scored, seed))
        return Update(number, {f"validation/{name}": value for name, value in metrics.items()})

    def _evaluation(self, metrics: dict[str, float], scored: Sequence[ScoredGroup], seed: int) -> Measured:
        stage = self._stage
        if stage.sound is None and right_of(self.reward, stage.right_from) is None:
            means = [name for name in metrics if name.startswith(("mean@", "best@"))]
            return Measured(stage.name, "policy", metrics, [*means, "failed"])
        sound_from = stage.sound_from if stage.sound else None
        found = evaluation_of(stage.name, [judged(group, stage.right_from, sound_from) for group in scored], seed=seed)
        return replace(found, metrics={**found.metrics, **metrics})

    def state(self) -> dict[str, Any]:
        """There is no state."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """There is no state."""
