r"""An implicit process reward: a language model that learned from outcomes alone, read as a reward for every token.

$$r_t = \beta\,\bigl[\log\pi_\phi(y_t \mid y_{<t}) - \log\pi_{ref}(y_t \mid y_{<t})\bigr]$$

Cui et al. 2025 (PRIME), arXiv 2502.01456. In a stage that trains, the trainer scores the groups of a step together and
trains the model (`rewardsmith.trainers.process`). Everywhere else the model is fixed, and is called here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rewardsmith.algorithms.token_rewards import Mask, Rewards, gather_steps, smooth
from rewardsmith.config import Refers, Settings
from rewardsmith.errors import UserError
from rewardsmith.learning import OptimizerSettings, Warmup
from rewardsmith.llm import LogprobModel, ModelCallError, Models, TokenLogprobs, UnconnectedModel, unwrapped
from rewardsmith.rewards.base import CannotScore, failure_of
from rewardsmith.rewards.step_rewards import StepTruthChoice
from rewardsmith.text.steps import split_steps, steps_of_tokens, sums_by_step
from rewardsmith.types import Rollout, RolloutGroup, Score

MAX_STEPS_SHOWN = 64
"""Steps whose rewards the feedback lists."""


class ProcessOptimizer(OptimizerSettings):
    """AdamW and its schedule, which runs over the steps of the stage."""

    lr: float = Field(default=1e-6, gt=0, description="peak learning rate")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="AdamW: decay of the square")
    clip_norm: float = Field(default=10.0, gt=0, description="max gradient norm; larger gradients are scaled down")
    warmup: Warmup = Field(default=0, description="linear warm-up: steps of the stage, or below 1 a share of them")


class ReplaySettings(Settings):
    """Groups of earlier steps that the model goes on learning from."""

    groups: int = Field(default=0, ge=0, description="size of the replay buffer, in groups; 0: none")
    per_step: int = Field(
        default=0, ge=0, description="groups drawn from it for each step, in addition to the fresh ones"
    )

    @model_validator(mode="after")
    def _go_together(self) -> ReplaySettings:
        if bool(self.groups) != bool(self.per_step) or self.per_step > self.groups:
            raise ValueError(f"groups = {self.groups}, per_step = {self.per_step}: a step draws at most all groups")
        return self


class LearnSettings(Settings):
    """How the model learns from the outcomes of a step's rollouts."""

    loss: Literal["cross-entropy", "pairwise", "best-of-n-outcome", "best-of-n-reward"] = Field(
        default="cross-entropy",
        description="with the outcome, fractions allowed; or each rollout against those of its group on the other side"
        " of it, all alike or weighted by its chance to be the best of n",
    )
    offset: Literal["none", "group-mean"] = Field(
        default="none",
        description="cross-entropy: group-mean adds the logit of the group's mean outcome, so that the base rate need"
        " not be learned",
    )
    mini_batch: int | None = Field(
        default=None,
        ge=1,
        description="rollouts of an optimizer step, filled up to whole groups; not set: all of the step in one",
    )
    micro_batch: int | None = Field(
        default=None, ge=1, description="rollouts that go through the model at a time; not set: as many as fit a pass"
    )
    epochs: int = Field(default=1, ge=1, description="passes over the rollouts of a step")
    optimizer: ProcessOptimizer = Field(default=ProcessOptimizer(), description="AdamW and its schedule")
    replay: ReplaySettings = Field(default=ReplaySettings(), description="learn from earlier groups too")
    warmup: int = Field(default=0, ge=0, description="steps in which this model learns and the policy does not")
    measure_every: int = Field(
        default=10,
        ge=0,
        description="steps between two extra forward passes that measure the accuracy after an update, where the"
        " update itself needs none; 0 never",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> LearnSettings:
        if self.offset != "none" and self.loss != "cross-entropy":
            raise ValueError(f'offset is about the cross-entropy: the loss "{self.loss}" compares within the group')
        return self


class TrustSettings(Settings):
    """How much the process reward counts, by how well the model orders rollouts that it has not learned from."""

    by: Literal["nothing", "scale", "gate"] = Field(
        default="scale",
        description="the weight as it is; times how far the accuracy is above the floor; or 0 up to the floor",
    )
    floor: float | None = Field(
        default=None,
        ge=0.5,
        lt=1,
        description="pairwise accuracy up to which the reward does not count; not set: 0.5, chance, for scale, and 0.6"
        " for gate, which chance alone would open every other step",
    )
    start: float = Field(
        default=0.5, ge=0.5, lt=1, description="running accuracy before the first step: that of a model trained before"
    )
    memory: float = Field(
        default=0.8, ge=0, lt=1, description="how much of the running accuracy is kept from step to step"
    )

    @property
    def effective_floor(self) -> float:
        """The floor, or its default."""
        return self.floor if self.floor is not None else 0.6 if self.by == "gate" else 0.5


@dataclass(kw_only=True, eq=False)
class Implicit:
    """A reward for every token from a model that learns from outcomes alone (PRIME).

    Where `online` is set, a trainer scores and trains, and `score` is not called.
    """

    reads_ends: ClassVar[bool] = True  # the report colours the text of each token

    model: Annotated[
        str, Refers("models", offer="learn"), Field(description="which of the recipe's models is the reward model π_φ")
    ]
    outcome: Annotated[
        str, Field(description="the part of the reward to learn from, with values in 0 to 1; empty: the only other")
    ] = ""
    beta: Annotated[float, Field(gt=0, description="β, the scale of the log-ratio")] = 0.05
    granularity: Annotated[
        Literal["token", "step", "whole"],
        Field(description="a reward for each token, for each step on its last token, or one for the answer"),
    ] = "token"
    separator: Annotated[str, Field(min_length=1, description="what ends a step of an answer")] = "\n"
    normalise: Annotated[
        Literal["none", "batch"],
        Field(description="batch: divide by the largest absolute return of all rollouts of the step"),
    ] = "batch"
    smooth: Annotated[
        float, Field(ge=0, le=1, description="λ: how much of the next token's reward each token gets as well")
    ] = 0.0
    reference: Annotated[
        Literal["start", "policy", "adapter-off"],
        Field(
            description="π_ref: the model as it is when the stage begins, the policy that wrote the answer, or the"
            " model without its adapter"
        ),
    ] = "start"
    reference_model: Annotated[
        Annotated[str | None, Refers("models", offer="learn")],
        Field(description="π_ref: a model of the recipe that never learns, instead of `reference`"),
    ] = None
    exact_reference: Annotated[
        bool,
        Field(
            description='reference = "policy": compute its log-probabilities again, also where those of the sampler'
            " are the same up to rounding"
        ),
    ] = False
    update: Annotated[
        Literal["none", "before", "after", "reverse"],
        Field(
            description="learn not at all; before scoring, with another pass; while scoring, in one pass; or while"
            " scoring, after a pass for the statistics of groups"
        ),
    ] = "after"
    learn: Annotated[LearnSettings, Field(description="how it learns")] = LearnSettings()  # noqa: RUF009 frozen
    trust: Annotated[TrustSettings, Field(description="how much it counts")] = TrustSettings()  # noqa: RUF009
    truth: Annotated[StepTruthChoice | None, Field(description="step truth to measure it by: arithmetic")] = None
    value: Annotated[
        Literal["sum", "mean", "lowest-step"],
        Field(
            description="what an answer is worth outside of training: the sum of its rewards, their mean, or the sum of"
            " its lowest step"
        ),
    ] = "sum"

    def __post_init__(self) -> None:
        if self.reference_model is not None and self.reference != "start":
            raise UserError(f'reference = "{self.reference}" and reference_model both name π_ref: leave one out')
        if self.exact_reference and self.reference != "policy":
            raise UserError(
                'exact_reference = true goes with reference = "policy": other references always have a pass'
            )
        if self.reference_model == self.model:
            raise UserError(f'reference_model is "{self.model}" itself: every reward would be 0')
        if self.update == "after" and self.learn.loss != "cross-entropy":
            raise UserError(
                f'the loss "{self.learn.loss}" needs the statistics of groups before the update: set update = "reverse"'
            )
        self.online = False
        self._models: Models = UnconnectedModel

    def place(self, rewards_BT: Rewards, mask_BT: Mask, steps_BT: NDArray[np.int64] | None) -> tuple[Rewards, Mask]:
        """Return smoothed rewards on the tokens that carry them by `granularity`, and which tokens these are."""
        rewards_BT = smooth(rewards_BT, mask_BT, lam=self.smooth)
        if self.granularity == "token":
            return rewards_BT, mask_BT
        return gather_steps(rewards_BT, mask_BT, steps_BT if self.granularity == "step" else None)

    # ---- outside of training ---------------------------------------------------------------------------------------

    def connect(self, models: Models) -> None:
        """Take the function that finds models by name."""
        self._models = models

    async def check(self) -> None:
        """Load the models; raise a `UserError` where there is no reference outside of training."""
        if not self.online:
            self._require_reference()
            for name in (self.model, self.reference_model):
                if name is not None:
                    await self._models(name).check()

    def facts(self) -> dict[str, Any]:
        """Return what its rewards depend on, for the record of a run."""
        learned = {"loss": self.learn.loss, "offset": self.learn.offset} if self.update != "none" else {}
        reference = self.reference_model or self.reference
        return {"model": self.model, "beta": self.beta, "reference": reference, "update": self.update} | learned

    def _require_reference(self) -> None:
        if self.reference_model is not None or self.reference == "adapter-off":
            return
        what = {"policy": "the policy while it is trained", "start": "the model when the stage began"}[self.reference]
        raise UserError(
            f'the reference of an implicit reward is "{self.reference}", {what}: to score outside of training, set'
            ' reference = "start" and reference_model to a model that stands for it, or score with a run that has it'
            " (its references/STAGE.PART)"
        )

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the value of each rollout, with a reward for each token; the scale is that of β.

        An answer that a model cannot read costs the others nothing.
        """
        self._require_reference()
        try:
            return await self._scores(group)
        except ModelCallError as error:
            if len(group.rollouts) == 1:
                return (Score(failure=failure_of(error)),)
        singles = [replace(group, rollouts=[rollout]) for rollout in group.rollouts]
        return tuple([score for single in singles for score in await self.score(single)])

    async def _scores(self, group: RolloutGroup) -> tuple[Score, ...]:
        ours = await self._logprobs(self.model, group)
        reference = self.reference_model or self.model
        theirs = await self._logprobs(reference, group, adapter=self.reference_model is not None)
        scores = []
        for rollout, mine, other in zip(group.rollouts, ours, theirs, strict=True):
            try:
                scores.append(self._score(rollout, mine, other))
            except CannotScore as error:
                scores.append(Score(failure=failure_of(error)))
        return tuple(scores)

    async def _logprobs(self, name: str, group: RolloutGroup, *, adapter: bool = True) -> Sequence[TokenLogprobs]:
        model: LogprobModel = self._models(name)
        if not hasattr(unwrapped(model), "read"):
            raise UserError(f"models.{name} gives no log-probabilities: use a model of this process")
        return await model.read(group, adapter=adapter)

    def _score(self, rollout: Rollout, ours: TokenLogprobs, theirs: TokenLogprobs) -> Score:
        if not np.array_equal(ours.ends, theirs.ends):
            raise CannotScore("invalid", "the model and its reference do not read the answer as the same tokens")
        rewards = self.beta * (ours.logprobs.astype(np.float64) - theirs.logprobs.astype(np.float64))
        if not np.isfinite(rewards).all():
            raise CannotScore("invalid", "a log-probability is not finite")
        steps = split_steps(rollout.text, self.separator)
        numbers = steps_of_tokens(ours.ends, steps)
        by_step = sums_by_step(rewards, numbers, len(steps))
        value = float(rewards.sum())
        if self.value == "mean" and len(rewards):
            value = float(rewards.mean())
        elif self.value == "lowest-step" and len(rewards):  # of the steps that have tokens
            value = float(by_step[np.unique(numbers)].min())
        feedback = ""
        if len(by_step) > 1:
            listed = " ".join(f"{one:+.3f}" for one in by_step[:MAX_STEPS_SHOWN])
            feedback = f"steps: {listed}; lowest: step {int(by_step.argmin()) + 1}"
        if not len(rollout.tokens):
            return Score(value, feedback=feedback)
        (values,), (support,) = self.place(rewards[None], np.ones((1, len(rewards)), dtype=np.bool_), numbers[None])
        support = None if self.granularity == "token" else support
        return Score(value, token_values=values.astype(np.float32), token_support=support, feedback=feedback)
