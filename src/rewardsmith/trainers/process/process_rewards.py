"""The implicit rewards of a stage: what a trainer calls once the groups of a step are selected."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rewardsmith.algorithms.advantages import Stream
from rewardsmith.algorithms.judge_statistics import calibration_error
from rewardsmith.algorithms.tensors import Groups
from rewardsmith.algorithms.token_rewards import normalise_by_return, running_accuracy, step_finding, trust
from rewardsmith.config import Chosen
from rewardsmith.engines.protocol import Engine, Sampling
from rewardsmith.errors import UserError
from rewardsmith.records import from_json, to_json
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.rewards.step_rewards import judged_by
from rewardsmith.text.steps import split_steps, steps_of_tokens, sums_by_step, tokens_of_judged
from rewardsmith.trainers.batch import process_values, weigh_by_trust
from rewardsmith.trainers.process.implicit_parts import (
    claim_implicit_parts,
    require_same_tokens,
    sampler_is_reference,
)
from rewardsmith.trainers.process.process_model import ModelRewards, OutcomeBatch, ProcessModel, outcome_batch
from rewardsmith.trainers.reference import Reference
from rewardsmith.trainers.trainer import Context, derive
from rewardsmith.types import RolloutGroup, Score, ScoredGroup

EXACT_ROUNDING, SAMPLER_ROUNDING = 1e-3, 1.0
"""The log-ratio of a whole answer that is rounding, and must not become a reward: between two passes of one kind or in
float32, and between a sampler and a learner in bfloat16."""


class ProcessRewards:
    """Scores groups with the implicit rewards of a tree, and trains their models.

    Attributes:
        parts: the implicit rewards, by name.
        learners: the models that learn, by name.
        max_length: the longest sequence that all models read, the policy included.
        warmup: steps in which they learn alone.
    """

    def __init__(
        self,
        root: Component,
        policy: Engine,
        sampling: Sampling,
        context: Context,
        *,
        name: str,
        stale: bool = False,
        run: Callable[..., Awaitable[Any]] | None = None,
    ) -> None:
        """Open the models; `stale`: answers may be of an earlier policy, `run` does work that takes long."""
        self._policy, self._run = policy, run
        self._context = context
        self._seed = derive(context.seed, name, "process")
        self.parts: dict[str, ProcessPart] = {}
        self.learners: dict[str, Engine] = {}
        self.max_length = policy.max_length
        self._warned: set[str] = set()
        self._awake: set[str] = set()
        for path, settings in claim_implicit_parts(root).items():
            engine = self._engine(settings.model, path)
            model, reference, rounding = settings.reference_model, None, EXACT_ROUNDING
            if model is not None:
                self._engine(model, path)
            if settings.reference == "policy":
                model = policy.name
            if policy.samples_as_it_learns and sampler_is_reference(settings, sampling, ahead=stale):
                rounding = EXACT_ROUNDING if policy.dtype == torch.float32 else SAMPLER_ROUNDING
            else:  # read in the passes of the model, so that both round alike
                self._awake |= {model} if model else set()
                off = settings.reference == "adapter-off"
                reference = Reference(engine, context, name=f"{name}.{path}", model=model, adapter_off=off)
            part = ProcessPart(settings, engine, reference, rounding)
            self.parts[path] = part
            if part.learns:
                engine.learn_with(settings.learn.optimizer)
                self.learners[settings.model] = engine
        self.warmup = max((p.settings.learn.warmup for p in self.parts.values() if p.learns), default=0)

    def _engine(self, name: str, path: str) -> Engine:
        """Return a model that reads what the policy writes."""
        engine = self._context.engine(name)
        require_same_tokens(self._policy, engine, f"the implicit reward {path!r}")
        self.max_length = min(self.max_length, engine.max_length)
        self._awake.add(name)
        return engine

    def begin(self, *, resumed: bool, steps: int) -> None:
        """Make the references; the schedules run over the `steps` of the stage."""
        for part in self.parts.values():
            part.steps = steps
            if part.reference is not None:
                part.reference.begin(resumed=resumed)

    async def score_and_learn(
        self, groups: Sequence[ScoredGroup], number: int
    ) -> tuple[list[ScoredGroup], dict[str, float]]:
        """Return the groups of step `number` with the scores of the implicit parts, and metrics.

        The models learn here. Nothing between this and the end of the step may end the run before it is saved.
        """
        return await self._score(groups, number, "scoring and learning", "learned/")

    async def score_only(self, groups: Sequence[ScoredGroup]) -> tuple[list[ScoredGroup], dict[str, float]]:
        """Return groups that are not learned from with the scores of the implicit parts, and metrics by `PART/name`."""
        return await self._score(groups, None, "validation: scoring", "")

    async def _score(
        self, groups: Sequence[ScoredGroup], number: int | None, doing: str, prefix: str
    ) -> tuple[list[ScoredGroup], dict[str, float]]:
        written, groups = list(groups), list(groups)
        metrics: dict[str, float] = {}
        async with self._context.on_device(*sorted(self._awake)):
            for path, part in self.parts.items():
                self._context.progress(f"{doing} {path}", 0, 0)
                step = number if part.learns else None
                replayed = [] if step is None else part.draw(derive(self._seed, path, step))
                batch = outcome_batch(groups, replayed, self._policy.encode, part.settings.outcome, part.device)
                try:
                    if self._run is None:
                        scores, found = part.score(groups, batch, number)
                    else:
                        scores, found = await self._run(part.score, groups, batch, number)
                except UserError:
                    raise
                except ValueError as error:
                    raise UserError(
                        f"the model of the implicit reward {path!r} gives numbers that are not usable ({error}): lower"
                        f" parts.{path}.learn.optimizer.lr"
                    ) from None
                if step is not None:
                    part.replay.extend(written)
                groups = _with_part(groups, path, scores)
                metrics |= {f"{prefix}{path}/{name}": value for name, value in found.items()}
                if found.get("skipped_updates") and "grad_norm" not in found and path not in self._warned:
                    self._warned.add(path)
                    self._context.log(
                        f"{path}: no gradient of this step was finite, so its model has not learned: lower"
                        f" parts.{path}.learn.optimizer.lr"
                    )
        return groups, metrics

    def trusted(self, streams: Sequence[Stream]) -> list[Stream]:
        """Return the streams, those of implicit rewards weighted by their trust; none of weight 0."""
        return weigh_by_trust(streams, {name: part.trust for name, part in self.parts.items()})

    def as_values(self, streams: Sequence[Stream], mask_BT: Tensor) -> tuple[list[Stream], Tensor]:
        """Return the other streams, and the sum of the implicit rewards before each token as their baseline [B, T]."""
        return process_values(streams, self.parts, mask_BT)

    def state(self) -> dict[str, Any]:
        """Return the state besides the weights, as JSON values."""
        return {path: part.state() for path, part in self.parts.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        for path, part in self.parts.items():
            part.restore(state[path])


class ProcessPart:
    """An implicit reward with its model, its replay buffer and its running accuracy; see `ProcessModel`."""

    def __init__(
        self, settings: Implicit, engine: Engine, reference: Reference | None, rounding: float = EXACT_ROUNDING
    ) -> None:
        self.settings = settings
        self._rounding = rounding
        self.replay: deque[ScoredGroup] = deque(maxlen=settings.learn.replay.groups)
        self.reference = reference
        self.device = engine.device
        self.learns = settings.update != "none"
        self._model = ProcessModel(settings, engine, reference)
        self.steps = 1  # of the stage
        # On fresh rollouts, over the last steps; chance is no information.
        self._accuracy = settings.trust.start if settings.trust.start > 0.5 else None

    @property
    def trust(self) -> float:
        """The factor of the part's weight."""
        return trust(self._accuracy, by=self.settings.trust.by, floor=self.settings.trust.effective_floor)

    def draw(self, seed: int) -> list[ScoredGroup]:
        """Return some of the groups in the replay buffer, each at most once, in the order in which they came."""
        count = min(self.settings.learn.replay.per_step, len(self.replay))
        return [self.replay[i] for i in sorted(random.Random(seed).sample(range(len(self.replay)), count))]

    def score(
        self, groups: Sequence[ScoredGroup], batch: OutcomeBatch, number: int | None
    ) -> tuple[list[list[Score]], dict[str, float]]:
        """Score groups, the fresh ones of the batch, and return metrics; learn from the batch if they are of a step."""
        if number is None:
            return self._scores(groups, self._model.score_only(batch), batch)
        learn = self.settings.learn
        lr = learn.optimizer.rate(number - 1, self.steps)
        due = bool(learn.measure_every) and (number % learn.measure_every == 0 or number in (1, self.steps))
        found = self._model.score_and_learn(batch, lr=lr, measure=self.learns and due)
        won, count = batch.wins(found.fresh_B)
        self._accuracy = running_accuracy(self._accuracy, won, count, memory=self.settings.trust.memory)
        scores, metrics = self._scores(groups, found, batch)
        metrics |= {"trust": self.trust} | ({} if self._accuracy is None else {"accuracy_running": self._accuracy})
        if self.learns:
            metrics |= {"lr": lr, "skipped_updates": float(found.skipped)}
        metrics |= {} if found.loss is None else {"loss": found.loss}
        if found.grad_norms:
            metrics["grad_norm"] = sum(found.grad_norms) / len(found.grad_norms)
        return scores, metrics

    def _scores(
        self, groups: Sequence[ScoredGroup], found: ModelRewards, batch: OutcomeBatch
    ) -> tuple[list[list[Score]], dict[str, float]]:
        """Return the scores of the part, and how well they agree with the outcomes and with the truth about steps."""
        settings = self.settings
        rewards_BT, mask_BT = found.rewards_BT.cpu().numpy(), batch.mask_BT[: batch.fresh].cpu().numpy()
        steps_BT = self._steps_of(groups, mask_BT) if settings.granularity == "step" else None
        values_BT, support_BT = settings.place(rewards_BT, mask_BT, steps_BT)
        if settings.normalise == "batch":
            values_BT = normalise_by_return(values_BT, mask_BT, eps=self._rounding * settings.beta)
        sums, rows = found.rewards_BT.sum(-1).tolist(), itertools.count()
        scores: list[list[Score]] = []
        token_rewards: list[list[NDArray[np.float32]]] = []
        for scored in groups:
            scores.append([])
            token_rewards.append([])
            for rollout, row in zip(scored.group.rollouts, rows, strict=False):
                n = len(rollout.tokens)
                support = None if settings.granularity == "token" else support_BT[row, :n]
                values = values_BT[row, :n].astype(np.float32)
                scores[-1].append(Score(sums[row], token_values=values, token_support=support))
                token_rewards[-1].append(rewards_BT[row, :n])
        metrics = agreement(found.fresh_B, batch)
        if found.after_B is not None:
            won, count = batch.wins(found.after_B)
            metrics |= {"accuracy_after": won / count} if count else {}
        if settings.truth is not None:
            measured = step_metrics([scored.group for scored in groups], token_rewards, settings.truth)
            metrics |= {f"steps/{name}": value for name, value in measured.items()}
        return scores, metrics

    def _steps_of(self, groups: Sequence[ScoredGroup], mask_BT: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the number of the step that each token belongs to, [B, T]."""
        steps_BT = np.zeros(mask_BT.shape, dtype=np.int64)
        rollouts = [rollout for scored in groups for rollout in scored.group.rollouts]
        for row, rollout in enumerate(rollouts):
            assert rollout.ends is not None  # the reward has `reads_ends`
            steps = steps_of_tokens(rollout.ends, split_steps(rollout.text, self.settings.separator))
            steps_BT[row, : len(steps)] = steps
        return steps_BT

    def state(self) -> dict[str, Any]:
        """Return the state besides the weights, as JSON values."""
        return {"accuracy": self._accuracy, "replay": [to_json(scored) for scored in self.replay]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._accuracy = state["accuracy"]
        self.replay.extend(from_json(ScoredGroup, scored) for scored in state["replay"])


def _with_part(groups: Sequence[ScoredGroup], name: str, scores: Sequence[Sequence[Score]]) -> list[ScoredGroup]:
    """Return the groups with other scores in the place of a part."""
    return [
        replace(
            scored, scores=[replace(s, parts={**s.parts, name: p}) for s, p in zip(scored.scores, own, strict=True)]
        )
        for scored, own in zip(groups, scores, strict=True)
    ]


def agreement(sums_B: Tensor, batch: OutcomeBatch) -> dict[str, float]:
    """Return how well the logits of fresh rollouts agree with their outcomes.

    `accuracy_fresh` is that of pairs within a group, `best_of_n` the mean outcome of the rollout with the highest logit
    of each group, `outcome` the mean of all; `calibration_error` that of σ(logit).
    """
    votes_B, outcomes_B = batch.votes_B[: batch.fresh], batch.outcomes_B[: batch.fresh]
    won, count = batch.wins(sums_B)
    metrics = {"accuracy_fresh": won / count} if count else {}
    if not bool(votes_B.any()):
        return metrics
    groups = Groups(batch.groups_B[: batch.fresh], votes_B)
    best_B = votes_B & (sums_B.double() == groups.range(sums_B)[1])
    tops = Groups(batch.groups_B[: batch.fresh], best_B)
    each_B = torch.where(best_B, outcomes_B / tops.voters_B.clamp(min=1), 0)  # equal logits share the place
    metrics["best_of_n"] = float(each_B.sum() / torch.where(best_B, 1 / tops.voters_B.clamp(min=1), 0).sum())
    metrics["outcome"] = float(outcomes_B[votes_B].mean())
    logits_V, right_V = sums_B[votes_B], outcomes_B[votes_B] >= 0.5
    metrics["calibration_error"] = calibration_error(logits_V.sigmoid().tolist(), outcomes_B[votes_B].tolist())
    metrics |= {"logit_right": float(logits_V[right_V].mean())} if bool(right_V.any()) else {}
    metrics |= {"logit_wrong": float(logits_V[~right_V].mean())} if not bool(right_V.all()) else {}
    return metrics


def step_metrics(
    groups: Sequence[RolloutGroup], values: Sequence[Sequence[NDArray[np.floating]]], truth: Chosen
) -> dict[str, float]:
    """Return how well rewards per token agree with the truth about steps; see `rewardsmith.algorithms.step_finding`.

    A step's reward is the sum of the rewards of its tokens. Left out are rollouts of which the truth knows nothing,
    that have no character offsets, or that have a step without a token of its own. `values` are the rewards of the
    tokens before they were moved or normalised. Nothing is returned where no rollout was judged.
    """
    rewards: list[NDArray[np.float64]] = []
    truths: list[NDArray[np.bool_]] = []
    for group, each in zip(groups, values, strict=True):
        for rollout, tokens in zip(group.rollouts, each, strict=True):
            if rollout.ends is None or not len(rollout.ends):
                continue
            try:
                judged = judged_by(truth, group.prompt, rollout.text)
            except Exception:  # noqa: BLE001 it is not of this world, or a user's own truth fails: it only measures
                continue
            numbers = tokens_of_judged(rollout.ends, judged)
            if np.bincount(numbers, minlength=len(judged)).all():
                rewards.append(sums_by_step(tokens, numbers, len(judged)))
                truths.append(np.array([step.right for step in judged], dtype=bool))
    return step_finding(rewards, truths)
