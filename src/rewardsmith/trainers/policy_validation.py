"""Validation of a policy while it learns: its answers to held-out prompts, scored and checked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rewardsmith.engines.protocol import Engine
from rewardsmith.rewards.component import Component
from rewardsmith.trainers.evaluate.evaluate_policy import require_free, validate
from rewardsmith.trainers.settings import ValidationSettings
from rewardsmith.trainers.stages import PolicyStage
from rewardsmith.trainers.trainer import Context, GroupRecord, held_out, reporting


class PolicyValidation:
    """Measures a policy on held-out prompts, now and then."""

    def __init__(
        self, stage: PolicyStage, settings: ValidationSettings, context: Context, policy: Engine, reward: Component
    ) -> None:
        """Use the reward of the stage unless the validation has one of its own."""
        self._stage, self._settings, self._context, self._policy = stage, settings, context, policy
        self._reward = context.reward(settings.reward) if settings.reward else reward
        self._reasoning_check = None
        if settings.reasoning_check:
            self._reasoning_check = context.reward(settings.reasoning_check)
            require_free(self._reward)
        self.best_by = f"validation/mean@{settings.rollouts_per_prompt}"

    def due(self, number: int, steps: int) -> bool:
        """Whether to validate after step `number` of `steps`."""
        return self._settings.due(number, steps)

    async def run(self, number: int, seed: int, pause_outage: Callable[..., None]) -> dict[str, float]:
        """Return the metrics of the policy after step `number`; its answers are kept in the run.

        Once a step has changed the weights a validation is not interrupted, unless it waits for a service that is gone
        (`pause_outage`).
        """

        def pause() -> None:
            if number == 0:
                context.pause()
            pause_outage(self._reward, *filter(None, [self._reasoning_check]))

        stage, settings, context = self._stage, self._settings, self._context
        metrics, scored = await validate(
            self._policy,
            self._reward,
            held_out(context.source(settings.data).prompts, settings.prompts, settings.data),
            settings.sampling or stage.sampling,
            n=settings.rollouts_per_prompt,
            seed=seed,
            version=number,
            correct_threshold=stage.correct_threshold,
            reasoning_check=self._reasoning_check,
            reasoning_threshold=settings.reasoning_threshold,
            pause=pause,
            on_device=partial(context.on_device, stage.model),
            report=reporting("validation", context.progress),
        )
        none = [None] * settings.rollouts_per_prompt
        context.keep([GroupRecord(number, "validation", "", group, none) for group in scored])
        return {f"validation/{name}": value for name, value in metrics.items()}
