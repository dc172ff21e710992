"""The implicit rewards of a stage, all together: what a trainer calls once the groups of a step are selected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rewardsmith.algorithms.advantages import Stream
from rewardsmith.algorithms.implicit import values_before
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.errors import UserError
from rewardsmith.rewards.component import Component
from rewardsmith.trainers.process.labelled import Labelled, labelled
from rewardsmith.trainers.process.part import ProcessPart, with_part
from rewardsmith.trainers.process.parts import take_over
from rewardsmith.trainers.process.vocabulary import require_same_tokens
from rewardsmith.trainers.protocol import Context, derive
from rewardsmith.trainers.reference import Reference
from rewardsmith.trainers.settings import SamplingSettings
from rewardsmith.types import ScoredGroup


class ProcessRewards:
    """Scores groups with the implicit rewards of a tree, and lets their models learn.

    Args:
        root: the whole reward; its implicit parts are taken over.
        policy: the model that writes the answers.
        sampling: how it does.
        context: of the run.
        name: of the stage.
        steps: of the stage.

    Attributes:
        parts: the implicit rewards, by name.
        learners: the models that learn, by name.
        warmup: steps in which they learn alone.
    """

    def __init__(
        self,
        root: Component,
        policy: EmbeddedEngine,
        sampling: SamplingSettings,
        context: Context,
        *,
        name: str,
        steps: int,
    ) -> None:
        self._policy = policy
        self._context = context
        self._seed = derive(context.seed, name, "process")
        # The sampler's log-probabilities are those of the policy as it is, at temperature 1, only then.
        self._exact = policy.dtype == torch.float32 and sampling.temperature == 1 and not sampling.sampling().cuts
        self.parts: dict[str, ProcessPart] = {}
        self.learners: dict[str, EmbeddedEngine] = {}
        self._readers: list[EmbeddedEngine] = []
        self._told: set[str] = set()
        self._awake: set[str] = set()
        for path, settings in take_over(root).items():
            engine = self._engine(settings.model, path)
            reference = None
            if settings.reference == "policy" and not self._exact:
                # Read as the model itself is, in the same passes, so that both round alike.
                reference = Reference(engine, context, name=f"{name}.{path}", model=policy.name)
                self._awake.add(policy.name)
            elif settings.reference != "policy":
                model, off = settings.reference_model, settings.reference == "adapter-off"
                if model is not None:
                    self._engine(model, path)
                reference = Reference(engine, context, name=f"{name}.{path}", model=model, adapter_off=off)
            part = ProcessPart(settings, engine, reference, steps=steps)
            self.parts[path] = part
            self._awake |= {settings.model, settings.reference_model or settings.model}
            if part.learns:
                engine.learn_with(settings.learning.optimizer)
                self.learners[settings.model] = engine
        self.warmup = max((p.settings.learning.warmup for p in self.parts.values() if p.learns), default=0)

    def _engine(self, name: str, path: str) -> EmbeddedEngine:
        """Return a model that reads what the policy writes."""
        engine = self._context.engine(name)
        if engine is self._policy:
            raise UserError(f"{path} names models.{name}, which is the policy itself: give it a model of its own")
        require_same_tokens(self._policy, engine, f"the implicit reward {path!r}")
        self._readers.append(engine)
        return engine

    @property
    def longest(self) -> int:
        """The longest sequence that all models read, the policy included."""
        return min(engine.max_length for engine in (self._policy, *self._readers))

    def begin(self, *, resumed: bool) -> None:
        """Make the references."""
        for part in self.parts.values():
            if part.reference is not None:
                part.reference.begin(resumed=resumed)

    def _turn(self) -> AbstractAsyncContextManager[None]:
        return self._context.turn(*sorted(self._awake))

    async def appraise(self, groups: Sequence[ScoredGroup], number: int) -> tuple[list[ScoredGroup], dict[str, float]]:
        """Return the groups of step `number` with the scores of the implicit parts, and metrics.

        The models learn here. Nothing between this and the end of the step may end the run before it is saved.
        """
        written, groups = list(groups), list(groups)
        metrics: dict[str, float] = {}
        async with self._turn():
            for path, part in self.parts.items():
                self._context.progress(f"scoring and learning {path}", 0, 0)
                replayed = part.replay.draw(derive(self._seed, path, number)) if part.learns else []
                batch, policy_BT = self._batch(part, groups, replayed)
                with _usable(path):
                    found = part.appraise(groups, batch, policy_BT, number)
                if part.learns:
                    part.replay.remember(written)
                groups = [with_part(g, path, scores) for g, scores in zip(groups, found.scores, strict=True)]
                metrics |= {f"learned/{path}/{name}": value for name, value in found.metrics.items()}
                self._tell_skipped(path, found.metrics)
        return groups, metrics

    def _tell_skipped(self, path: str, metrics: Mapping[str, float]) -> None:
        """Say it once when a model could not learn at all in a step."""
        if metrics.get("skipped_updates") and "grad_norm" not in metrics and path not in self._told:
            self._told.add(path)
            self._context.log(
                f"{path}: no gradient of this step was finite, so its model has not learned: lower"
                f" parts.{path}.learn.optimizer.lr"
            )

    async def look(self, groups: Sequence[ScoredGroup]) -> tuple[list[ScoredGroup], dict[str, float]]:
        """Return groups that are not learned from with the scores of the implicit parts, and metrics by `PART/name`."""
        groups = list(groups)
        metrics: dict[str, float] = {}
        async with self._turn():
            for path, part in self.parts.items():
                self._context.progress(f"validation: scoring {path}", 0, 0)
                batch, policy_BT = self._batch(part, groups, [])
                with _usable(path):
                    found = part.look(groups, batch, policy_BT)
                groups = [with_part(g, path, scores) for g, scores in zip(groups, found.scores, strict=True)]
                metrics |= {f"{path}/{name}": value for name, value in found.metrics.items()}
        return groups, metrics

    def _batch(
        self, part: ProcessPart, groups: Sequence[ScoredGroup], replayed: Sequence[ScoredGroup]
    ) -> tuple[Labelled, Tensor | None]:
        """Return what a part's model reads, and the policy's log-probabilities [B, T] where they are the reference.

        These are the numbers with which the answers were written, if they are exact; else the policy is read anew.
        """
        batch = labelled(groups, replayed, self._policy.encode, part.settings.outcome, part.device)
        return batch, None if part.reference is not None else batch.sampler_BT

    # ---- how the rewards enter the advantage -----------------------------------------------------------------------

    def trusted(self, streams: Sequence[Stream]) -> list[Stream]:
        """Return the streams, those of implicit rewards with the weight that they have earned; none that counts 0."""
        weighed = [replace(s, weight=s.weight * self._trust(s.name)) for s in streams]
        counting = [stream for stream in weighed if stream.weight or stream.name not in self.parts]
        return counting or weighed  # where there is no other reward, nothing is to be gained from this step

    def _trust(self, name: str) -> float:
        return self.parts[name].trust if name in self.parts else 1.0

    def as_values(self, streams: Sequence[Stream], mask_BT: Tensor) -> tuple[list[Stream], Tensor]:
        """Return the other streams, and the sum of the implicit rewards before each token as their baseline [B, T]."""
        values_BT = torch.zeros(mask_BT.shape, device=mask_BT.device)
        for stream in streams:
            if stream.name in self.parts:
                values_BT += stream.weight * values_before(stream.rewards_BT, mask_BT)
        return [stream for stream in streams if stream.name not in self.parts], values_BT

    # ---- keeping ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what going on needs beside the weights, as JSON values."""
        return {path: part.state() for path, part in self.parts.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        for path, part in self.parts.items():
            part.restore(state[path])


@contextmanager
def _usable(path: str) -> Iterator[None]:
    """Say what helps where a model gives numbers that are none."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(
            f"the model of the implicit reward {path!r} gives numbers that are not usable ({error}): lower"
            f" parts.{path}.learn.optimizer.lr"
        ) from None
