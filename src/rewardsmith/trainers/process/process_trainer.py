"""Train implicit process reward models on the outcomes of a policy that stays as it is."""

from __future__ import annotations

from functools import partial
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.trainers.collect import Collector, generate_and_score
from rewardsmith.trainers.metrics import Clock, FirstFailures, group_metrics
from rewardsmith.trainers.process.process_rewards import ProcessRewards
from rewardsmith.trainers.stages import ProcessModelStage, ProcessValidation
from rewardsmith.trainers.trainer import Context, GroupRecord, Trainer, Update, derive, held_out, reporting
from rewardsmith.types import Prompt


class ProcessModelTrainer(Trainer):
    """Samples from a fixed policy and trains the implicit rewards of a stage on the outcomes."""

    def __init__(self, stage: ProcessModelStage, context: Context) -> None:
        self._stage = stage
        self._context = context
        self._seed = derive(context.seed, stage.same_prompts_as or stage.name)
        self._policy = context.engine(stage.model)
        self._on_device = partial(context.on_device, stage.model)
        self.reward = context.reward(stage.reward)
        self._process = ProcessRewards(self.reward, self._policy, stage.sampling, context, name=stage.name)
        self._collector = Collector(
            stage,
            self._policy,
            self.reward,
            context,
            max_length=self._process.max_length,
        )
        self._failures = FirstFailures(context.log)
        self.steps = self._collector.steps
        self.learners = self._process.learners
        first = next(path for path, part in self._process.parts.items() if part.learns)
        self.best_by = f"validation/{first}/accuracy_fresh" if stage.validation else ""

    async def begin(self) -> Update:
        """Measure the models before they learn."""
        self._process.begin(resumed=False, steps=self.steps)
        validation = self._stage.validation
        return Update(0, await self._validate(0) if validation and validation.due(0, self.steps) else {})

    async def step(self, number: int) -> Update:
        """Take one step: sample, score, select, learn."""
        clock = Clock(self._policy.device)
        rollouts = await self._collector.collect(number, clock.lap)
        self._failures.add(rollouts.sampled)
        metrics: dict[str, float] = {}
        if self._collector.enough(rollouts):
            groups, metrics = await self._process.score_and_learn(rollouts.kept, number)
            rollouts.replace_kept(groups)
            clock.lap("process")
        metrics |= group_metrics(rollouts, None)
        self._context.keep(rollouts.records(number))
        halt = None
        try:  # the weights have changed: what stops the run from here on stops it after this step
            validation = self._stage.validation
            if validation and validation.due(number, self.steps):
                metrics |= await self._validate(number)
                clock.lap("validate")
        except Exception as error:  # noqa: BLE001 whatever it is, it is raised once the step is saved
            halt = error
        return Update(number, metrics | clock.metrics(sampled=metrics["tokens/sampled"]), halt)

    async def _validate(self, number: int) -> dict[str, float]:
        validation = self._stage.validation
        assert validation is not None
        prompts, overlong = self._validation_prompts(validation)
        scored = await generate_and_score(
            self._policy,
            self.reward,
            prompts,
            self._stage.sampling,
            n=validation.rollouts_per_prompt,
            seeds=[derive(self._seed, "validation", i) for i in range(len(prompts))],
            version=number,
            pause=self._context.pause if number == 0 else lambda: None,
            on_device=self._on_device,
            report=reporting("validation", self._context.progress),
        )
        groups, metrics = await self._process.score_only(scored)
        metrics |= {"overlong_prompts": float(overlong)} if overlong else {}
        none = [None] * validation.rollouts_per_prompt
        self._context.keep([GroupRecord(number, "validation", "", group, none) for group in groups])
        return {f"validation/{name}": value for name, value in metrics.items()}

    def _validation_prompts(self, validation: ProcessValidation) -> tuple[list[Prompt], int]:
        """Return the prompts to validate with that all models can read, and how many are too long for that."""
        prompts = held_out(self._context.source(validation.data).prompts, validation.prompts, validation.data)
        limit = self._collector.limit
        short = [prompt for prompt in prompts if len(self._policy.encode(prompt)) <= limit]
        if not short:
            raise UserError(
                f"none of the {len(prompts)} validation prompts of data.{validation.data} has at most {limit} tokens:"
                " raise max_prompt_tokens, or lower sampling.max_tokens"
            )
        return short, len(prompts) - len(short)

    def state(self) -> dict[str, Any]:
        """Return the position in the data, the surplus groups, and what the implicit rewards remember."""
        return self._collector.state() | {"process": self._process.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._collector.restore(state)
        self._process.restore(state["process"])
        self._process.begin(resumed=True, steps=self.steps)
