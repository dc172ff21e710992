"""Reinforcement learning of a policy against a reward: PPO, GRPO, RLOO, REINFORCE++, ReMax, GSPO, DAPO and their kin.

They are one loop. What differs is chosen by the recipe: the estimator of the advantage, the loss, the reduction, and
which groups are selected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rewardsmith.algorithms.advantages import Stream, estimate_advantages, values_from
from rewardsmith.algorithms.policy_losses import importance_weights, kl_reward
from rewardsmith.engines.protocol import Engine
from rewardsmith.errors import UserError
from rewardsmith.learning import OptimizerSettings
from rewardsmith.rewards.base import parts_of
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.tree import latencies, learn, learns, walk
from rewardsmith.trainers.batch import Batch, Estimate, collate, kl_stream, overlong_penalties, overlong_stream
from rewardsmith.trainers.collect import Collector, StepRollouts, generate_and_score
from rewardsmith.trainers.evaluate.evaluate_policy import correct_threshold_of
from rewardsmith.trainers.metrics import (
    Clock,
    FirstFailures,
    NothingToLearn,
    batch_metrics,
    group_metrics,
    latency_metrics,
    learned_metrics,
    overlong_metrics,
    stream_metrics,
    warn_of_rate,
    why_nothing,
)
from rewardsmith.trainers.objective import CriticObjective, PolicyObjective, advantage_estimator, explained_variance
from rewardsmith.trainers.policy_validation import PolicyValidation
from rewardsmith.trainers.process.process_rewards import ProcessRewards
from rewardsmith.trainers.reference import Reference
from rewardsmith.trainers.reward_watch import RewardWatch
from rewardsmith.trainers.rollouts_ahead import RolloutsAhead
from rewardsmith.trainers.stages import PolicyStage
from rewardsmith.trainers.trainer import Context, Trainer, Update, counting, derive, reporting


class PolicyTrainer(Trainer):
    """Trains a policy."""

    def __init__(self, stage: PolicyStage, context: Context) -> None:
        self._stage = stage
        self._context = context
        self._seed = derive(context.seed, stage.same_prompts_as or stage.name)
        self._policy = context.engine(stage.model)
        self._critic = context.engine(stage.critic.model) if stage.critic else None
        self._reference: Reference | None = None
        if stage.kl.coefficient:
            self._reference = Reference(self._policy, context, name=stage.name, model=stage.kl.reference)
        self.reward = context.reward(stage.reward)
        self._process = ProcessRewards(
            self.reward, self._policy, stage.sampling, context, name=stage.name, stale=stage.ahead > 0, run=self._run
        )
        self._on_device = partial(context.on_device, stage.model)
        learning = [stage.model, stage.critic and stage.critic.model, stage.kl.reference]
        self._learning_on_device = partial(context.on_device, *(name for name in learning if name))
        self._combine: dict[str, Any] = dict(stage.advantage.slot or ())
        self._estimator = advantage_estimator(stage.advantage)
        self._values_from = values_from(stage.advantage.target)
        self._correct_threshold = correct_threshold_of(self.reward, stage.correct_threshold)
        self._collector = Collector(
            stage,
            self._policy,
            self.reward,
            context,
            by_parts=self._combine["combine"] == "after",
            max_length=self._process.max_length,
            ahead=stage.ahead,
        )
        self.steps = self._collector.steps
        self._rollouts = RolloutsAhead(stage, self._collector, self._policy, context) if stage.ahead else None
        self._failures = FirstFailures(context.log)
        self._nothing = NothingToLearn(context.log, stage.name, self.steps)
        warn_of_rate(context.log, stage, self._policy.settings.init)
        self._warmup = max(self._process.warmup, stage.critic.warmup if stage.critic else 0)
        self.learners: dict[str, Engine] = {stage.model: self._policy}
        self._policy.learn_with(stage.optimizer)
        if stage.critic is not None and self._critic is not None:
            self.learners[stage.critic.model] = self._critic
            self._critic.learn_with(stage.critic.optimizer)
        self.learners |= self._process.learners
        self._validation: PolicyValidation | None = None
        if stage.validation is not None:
            self._validation = PolicyValidation(stage, stage.validation, context, self._policy, self.reward)
        self.best_by = self._validation.best_by if self._validation else ""
        self._watch = RewardWatch(stage, context, self.reward, self._policy) if stage.audit else None

    async def begin(self) -> Update:
        """Audit the reward, and measure the policy before it learns."""
        if self._watch is not None:
            await self._watch.gate()
        self._make_references(resumed=False)
        return Update(0, await self._validate(0))

    async def begin_again(self) -> None:
        """Audit the reward if it is another one than at the checkpoint."""
        if self._watch is not None:
            await self._watch.gate_again()

    def _make_references(self, *, resumed: bool) -> None:
        if self._reference is not None:
            self._reference.begin(resumed=resumed)
        self._process.begin(resumed=resumed, steps=self.steps)

    async def step(self, number: int) -> Update:
        """Take one step."""
        clock, metrics = Clock(self._policy.device), dict[str, float]()
        # 1. Generate groups of answers, score them, and keep those that pass the selection.
        if self._rollouts is None:
            rollouts = await self._collector.collect(number, clock.lap)
        else:
            rollouts, seconds = await self._rollouts.take(number, clock.lap)
            clock.add("write", seconds)
        self._failures.add(rollouts.sampled)
        # 2. Score the greedy answers, for estimators whose baseline they are.
        baselines_G = await self._greedy_rewards(rollouts, clock)
        # 3. Score with the implicit process rewards, whose models learn from the outcomes.
        enough = self._collector.enough(rollouts)
        if enough and self._process.parts:
            scored, metrics = await self._process.score_and_learn(rollouts.kept, number)
            rollouts.replace_kept(scored)
            clock.lap("process")
        parts = parts_of(self.reward)
        metrics |= group_metrics(rollouts, self._correct_threshold, parts)
        # 4. Collate, estimate the advantages, update critic and policy.
        columns: dict[str, Any] = {}
        problem = f"fewer than {self._stage.select.min_groups} groups passed the selection ({rollouts.fates})"
        if enough:
            combine = self._combine["combine"]
            batch = collate(rollouts.kept, self._policy.encode, parts, combine, self._policy.device)
            async with self._learning_on_device():
                estimate, learned = await self._run(self._learn, batch, baselines_G, number)
            metrics |= learned
            clock.lap("learn")
            idle = not learned["groups/kept"] and number > self._warmup
            problem = why_nothing(rollouts.kept, self._stage, self._correct_threshold) if idle else ""
            columns = estimate.columns(batch.mask_BT)
        self._nothing.add(number, problem)
        # 5. Write the rollouts.
        self._context.keep(rollouts.records(number, columns))
        # 6. Update rewards that learn, and validate. The weights have changed: errors from here on end the run after
        #    this step is saved.
        halt: Exception | None = None
        try:
            if self._rollouts is not None:
                await self._rollouts.finish_writing(self._pause_outage)
                may_lower = self._watch is not None and self._watch.may_lower(number)
                if learns(self.reward) or may_lower:  # later rollouts are scored by the reward as it is
                    await self._rollouts.finish_scoring()
                clock.lap("wait")
            halt = await self._look(number, rollouts, metrics, clock)
            metrics |= await learn(self.reward, rollouts.sampled)
            clock.lap("update_reward")
            validated = await self._validate(number)
            if validated:
                metrics |= validated
                clock.lap("validate")
        except Exception as error:  # noqa: BLE001 whatever it is, it is raised once the step is saved
            halt = error
        metrics |= clock.metrics(sampled=metrics["tokens/sampled"]) | latency_metrics(latencies(self.reward))
        if self._rollouts is not None:
            metrics |= clock.idle(wrote=self._rollouts.seconds_written())
        return Update(number, metrics, halt)

    async def _run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do work that takes long; where rollouts are collected meanwhile, in a thread of its own."""
        return work(*arguments) if self._rollouts is None else await asyncio.to_thread(work, *arguments)

    def _learn(self, batch: Batch, baselines_G: Tensor | None, number: int) -> tuple[Estimate, dict[str, float]]:
        """Return the advantages of a batch, and the metrics of the updates that they lead to."""
        stage, critic, mask_BT = self._stage, self._critic, batch.mask_BT
        # 4.1 Log-probabilities of the old policy and of the reference, and values.
        self._context.progress("log-probabilities", 0, 0)
        old_BT = self._old_logprobs(batch, number)
        reference_BT = None
        if self._reference is not None:
            reference_BT = self._reference.logprobs(batch.rows, temperature=stage.sampling.temperature)
        values_BT = None if baselines_G is None else baselines_G[batch.groups_B, None].expand(mask_BT.shape)
        if critic is not None:
            values_BT = critic.values(batch.rows).to(mask_BT.device)
        # 4.2 Rewards to advantages.
        penalty_B = overlong_penalties(mask_BT, stage.overlong, stage.sampling.max_tokens)
        streams, kl_penalty_BT = self._streams(batch, penalty_B, old_BT, reference_BT)
        if self._process.parts:
            streams = self._process.trusted(streams)
        if self._values_from == "process":
            streams, values_BT = self._process.as_values(streams, mask_BT)
        estimate = partial(estimate_advantages, streams, mask_BT, batch.groups_B, values_BT, estimator=self._estimator)
        try:
            advantages_BT = estimate(**self._combine)
        except UserError:
            raise
        except ValueError as error:
            raise UserError(
                f"{stage.name}: the rewards do not go with the advantage {stage.advantage.name}: {error}"
            ) from None
        found = Estimate(advantages_BT, None if critic is None else values_BT, kl_penalty_BT)
        metrics = batch_metrics(batch, advantages_BT, old_BT, reference_BT) | stream_metrics(batch.streams, mask_BT)
        metrics |= {} if penalty_B is None else overlong_metrics(penalty_B, mask_BT)
        if stage.ahead or stage.select.staleness:
            metrics["policy/staleness"] = float((number - 1 - batch.versions_B).double().mean())
        # 4.3 Update the critic.
        if critic is not None and stage.critic is not None and values_BT is not None:
            returns_BT = estimate(**self._combine | {"whiten": False}) + values_BT
            value = CriticObjective(stage, mask_BT, values_BT, returns_BT)
            learned = self._optimize(critic, value, batch, stage.critic.optimizer, number)
            learned["explained_variance"] = explained_variance(values_BT[mask_BT], returns_BT[mask_BT])
            metrics |= {f"critic/{name}": number_ for name, number_ in learned.items()}
        if number <= self._warmup:  # the other models learn alone
            return found, metrics | learned_metrics(batch, mask_BT & (advantages_BT != 0), mask_BT)
        # 4.4 Update the policy.
        cut_BT = batch.truncated_B[:, None] & (stage.select.truncated == "mask")
        importance_BT = None
        if stage.correction is not None and old_BT is not None:
            importance_BT = importance_weights(old_BT, batch.sampler_BT, mask_BT, **dict(stage.correction))
        kl_BT = reference_BT if stage.kl.in_loss[0] else None
        objective = PolicyObjective(stage, mask_BT & ~cut_BT, advantages_BT, old_BT, kl_BT, importance_BT)
        metrics |= learned_metrics(batch, objective.advantaged_BT, objective.learned_BT)
        learned = self._optimize(self._policy, objective, batch, stage.optimizer, number, self._warmup)
        return found, metrics | {f"policy/{name}": number_ for name, number_ in learned.items()}

    def _optimize(
        self,
        engine: Engine,
        objective: PolicyObjective | CriticObjective,
        batch: Batch,
        optimizer: OptimizerSettings,
        number: int,
        idle: int = 0,
    ) -> dict[str, float]:
        """Pass over the batch in mini-batches of whole groups, in a new order each epoch.

        For the first `idle` steps this model does not learn, and its schedule does not run.
        """
        stage, groups_B, live_B = self._stage, batch.groups_B.cpu(), objective.live_B.cpu()
        norms, skipped, lr = [], 0, 0.0
        phase = "learning" if engine is self._policy else "critic learning"
        count = counting(self._context.progress, phase, stage.ppo_epochs * int(live_B.sum()))
        per_step = stage.ppo_epochs * stage.mini_batches
        done, total = (number - 1 - idle) * per_step, (self.steps - idle) * per_step
        for epoch in range(stage.ppo_epochs):
            order = torch.Generator().manual_seed(derive(self._seed, "order", number, epoch))
            groups = torch.randperm(int(groups_B.max()) + 1, generator=order)
            for chosen in groups.tensor_split(stage.mini_batches):
                lr = optimizer.rate(done, total)
                done += 1
                rows_b = torch.isin(groups_B, chosen).nonzero().squeeze(-1)
                live_k = live_B[rows_b].nonzero().squeeze(-1)
                if not len(live_k):
                    continue
                step = engine.update(
                    [batch.rows[i] for i in rows_b[live_k].tolist()],
                    objective.part(rows_b.to(batch.mask_BT.device), live_k.to(batch.mask_BT.device)),
                    lr=lr,
                    temperature=stage.sampling.temperature,
                    meter=objective.meter,
                    count=count,
                )
                skipped += step.skipped
                norms += [] if step.skipped else [step.grad_norm]
        metrics = objective.meter.means() | {"lr": lr, "skipped_updates": float(skipped)}
        if "loss" in metrics:
            metrics["loss"] /= len(norms) + skipped  # the meter has the sum over optimizer steps
        return metrics | ({"grad_norm": sum(norms) / len(norms)} if norms else {})

    # ---- what the advantage is made of -----------------------------------------------------------------------------

    def _old_logprobs(self, batch: Batch, number: int) -> Tensor | None:
        """Return the log-probabilities of the policy that the ratio starts from, [B, T]; None for this pass's own.

        In float32 and without top-p or top-k the sampler's numbers are the learner's. Otherwise the learner computes
        its own, unless there is one optimizer step only, where the ratio is 1 by definition. A group from an earlier
        step keeps what it was sampled with.
        """
        stage = self._stage
        stale_B = batch.versions_B < number - 1
        once = stage.ppo_epochs * stage.mini_batches == 1 and not bool(stale_B.any())
        exact = self._policy.dtype == torch.float32 and not stage.sampling.cuts
        needed = stage.correction is not None or stage.kl.in_reward[0] > 0
        if once and not needed:
            return None
        if stage.old_logprobs == "sampler" or (stage.old_logprobs == "auto" and exact and stage.correction is None):
            return batch.sampler_BT
        learner_BT = self._policy.logprobs(batch.rows, temperature=stage.sampling.temperature)
        if stage.correction is not None:
            return learner_BT
        return torch.where(stale_B[:, None], batch.sampler_BT, learner_BT)

    def _streams(
        self, batch: Batch, penalty_B: Tensor | None, old_BT: Tensor | None, reference_BT: Tensor | None
    ) -> tuple[list[Stream], Tensor | None]:
        """Return the rewards and the penalties: overlong answers, distance from the reference; and the latter alone."""
        streams, (coefficient, estimator) = list(batch.streams), self._stage.kl.in_reward
        penalty_BT = None
        if penalty_B is not None:
            streams.append(overlong_stream(penalty_B, batch.mask_BT, streams[0].discount))
        if reference_BT is not None and coefficient:
            assert old_BT is not None
            penalty_BT = kl_reward(old_BT, reference_BT, batch.mask_BT, estimator=estimator)
            streams.append(kl_stream(penalty_BT, coefficient, streams[0].discount))
        return streams, penalty_BT

    async def _greedy_rewards(self, rollouts: StepRollouts, clock: Clock) -> Tensor | None:
        """Return the reward of the greedy answer to each prompt, [G], for estimators whose baseline it is.

        A group whose greedy answer could not be scored has no baseline: it is not learned from.
        """
        if self._values_from != "greedy":
            return None
        prompts = [scored.group.prompt for scored in rollouts.kept]
        answers = await generate_and_score(
            self._policy,
            self.reward,
            prompts,
            self._stage.sampling.model_copy(update={"temperature": 0.0, "top_p": 1.0, "top_k": 0}),
            n=1,
            seeds=[0] * len(prompts),
            pause=self._context.pause,
            on_device=self._on_device,
            report=reporting("greedy baseline", self._context.progress),
        )
        rewards = [answer.scores[0].value for answer in answers]
        rollouts.reject("no_baseline", [reward is None for reward in rewards])
        clock.lap("baseline")
        return torch.tensor([reward for reward in rewards if reward is not None], device=self._policy.device)

    # ---- validation, watch and state -------------------------------------------------------------------------------

    async def _validate(self, number: int) -> dict[str, float]:
        """Measure the policy on held-out prompts, if it is time to."""
        if self._validation is None or not self._validation.due(number, self.steps):
            return {}
        return await self._validation.run(number, self._seed, self._pause_outage)

    async def _look(
        self, number: int, rollouts: StepRollouts, metrics: dict[str, float], clock: Clock
    ) -> Exception | None:
        """Compare reward and reference on fresh answers, if it is time to; return why the run must stop, if it must."""
        if self._watch is None or not self._watch.due(number):
            return None
        looked, halt = await self._watch.look(number, rollouts.sampled, self._pause_outage)
        metrics |= looked
        clock.lap("watch")
        return halt

    def _pause_outage(self, *rewards: Component) -> None:
        """Let the user stop while a reward waits for a service that is gone."""
        if any(component.waiting for whole in rewards or [self.reward] for _, component in walk(whole)):
            self._context.pause()

    def state(self) -> dict[str, Any]:
        """Return the position in the data, the surplus groups, the patience that is left, and counts of the steps."""
        return (self._rollouts or self._collector).state() | {
            "process": self._process.state(),
            "nothing": self._nothing.count,
            "watch": self._watch and self._watch.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        (self._rollouts or self._collector).restore(state)
        self._process.restore(state["process"])
        self._nothing.count = int(state["nothing"])
        if self._watch is not None and state.get("watch"):
            self._watch.restore(state["watch"])
        self._make_references(resumed=True)

    async def close(self) -> None:
        """Cancel what is written and scored for later steps."""
        if self._rollouts is not None:
            await self._rollouts.close()
