"""Evaluation of a reward as a stage of a run."""

from __future__ import annotations

from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.trainers.evaluating.kinds import evaluate_reward
from rewardsmith.trainers.evaluating.scoring import Scorer
from rewardsmith.trainers.evaluating.stage import EvaluateRewardStage
from rewardsmith.trainers.held_out import held_out
from rewardsmith.trainers.protocol import Context, Update, derive


class RewardEvaluation:
    """Scores groups whose truth is known, once, and measures how well the reward did.

    Args:
        stage: the settings.
        context: models, data and files of the run.
    """

    def __init__(self, stage: EvaluateRewardStage, context: Context) -> None:
        self._stage = stage
        self._context = context
        self._scored = 0
        self._scorer = Scorer(
            stage.reward,
            context.model,
            say=context.log,
            at_once=stage.at_once,
            pause=context.pause,
            tick=self._count,
        )
        self.steps = 1
        self.learners: dict[str, Any] = {}
        self.best_by = ""
        self.reward = self._scorer.reward

    def _count(self) -> None:
        self._scored += 1  # of all orders and repeats
        self._context.progress("scoring", self._scored, 0, unit="groups")

    async def begin(self) -> Update:
        """There is nothing before the only step."""
        return Update(0)

    async def step(self, number: int) -> Update:
        """Score, measure, and write the tables."""
        # Of the data and not of the stage: evaluations that are compared must see the same.
        stage, seed = self._stage, derive(self._context.seed, "evaluate", self._stage.data)
        read = getattr(self._context.source(stage.data), stage.reads, None)
        if read is None:
            raise UserError(f'data.{stage.data} has no {stage.reads}, which kind = "{stage.kind}" measures')
        items = held_out(read, stage.items, stage.data)
        found = await evaluate_reward(
            stage.name,
            stage.kind,
            items,
            self._scorer,
            orders=stage.orders,
            repeats=stage.repeats,
            threshold=stage.threshold,
            levels=stage.levels,
            ties=stage.ties,
            seed=seed,
        )
        for what, said in found.details.items():
            self._context.log(f"{what}, the first: {said[:300]}")
        self._context.keep_evaluation(found)
        if found.metrics.get("failed") == 1:
            cause = next((f". {what}, the first: {said[:300]}" for what, said in found.details.items()), "")
            raise UserError(f"stage {stage.name!r}: none of the {len(items)} items could be scored{cause}")
        return Update(number, {f"validation/{name}": value for name, value in found.metrics.items()})

    def state(self) -> dict[str, Any]:
        """There is no state."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """There is no state."""
