r"""An implicit process reward: a language model that learned from outcomes alone, read as a reward for every token.

$$r_t = \beta\,\bigl[\log\pi_\phi(y_t \mid y_{<t}) - \log\pi_{ref}(y_t \mid y_{<t})\bigr]$$

Cui et al. 2025 (PRIME), arXiv 2502.01456. In a stage that trains, the trainer scores the groups of a step together and
trains the model (`rewardsmith.trainers.process`). Everywhere else the model is fixed, and is called here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rewardsmith.algorithms.token_rewards import Mask, Rewards, gather_steps, smooth
from rewardsmith.config import Refers, Settings
from rewardsmith.errors import UserError
from rewardsmith.learning import OptimizerSettings
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
    warmup: int = Field(default=0, ge=0, description="steps of linear warm-up")


class ReplaySettings(Settings):
    """Groups of earlier steps that the model goes on learning from."""

    groups: int = Field(default=0, ge=0, description="size of the replay buffer, in groups; 0: none")
    per_step: int = Field(
        default=0, ge=0, description="groups drawn from it for each step, in addition to the fresh ones"
    )

    @model_validator(mode="after")
    def _go_together(self) -> ReplaySettings:
        if bool(self.groups) != bool(self.per_step):
            raise ValueError(
                "groups and per_step go together: the size of the replay buffer, and how many groups a step draws"
            )
        if self.per_step > self.groups:
            raise ValueError(f"per_step is {self.per_step}, more than groups = {self.groups}")
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


ProcessModelName = Annotated[
    str, Refers("models", offer="learn"), Field(description="which of the recipe's models is the reward model π_φ")
]
ReferenceName = Annotated[str | None, Refers("models", offer="learn")]


class Implicit:
    """A reward for every token from a model that learns from outcomes alone (PRIME).

    Attributes:
        online: whether a trainer scores and trains; then `score` is not called.
        reads_ends: it needs the character offsets of tokens; the report colours the text of each token.
    """

    reads_ends: ClassVar[bool] = True

    def __init__(
        self,
        *,
        model: ProcessModelName,
        outcome: Annotated[
            str, Field(description="the part of the reward to learn from, with values in 0 to 1; empty: the only other")
        ] = "",
        beta: Annotated[float, Field(gt=0, description="β, the scale of the log-ratio")] = 0.05,
        granularity: Annotated[
            Literal["token", "step", "whole"],
            Field(description="a reward for each token, for each step on its last token, or one for the answer"),
        ] = "token",
        separator: Annotated[str, Field(min_length=1, description="what ends a step of an answer")] = "\n",
        normalise: Annotated[
            Literal["none", "batch"],
            Field(description="batch: divide by the largest absolute return of all rollouts of the step"),
        ] = "batch",
        smooth: Annotated[
            float, Field(ge=0, le=1, description="λ: how much of the next token's reward each token gets as well")
        ] = 0.0,
        reference: Annotated[
            Literal["start", "policy", "adapter-off"],
            Field(
                description="π_ref: the model as it is when the stage begins, the policy that wrote the answer, or the"
                " model without its adapter"
            ),
        ] = "start",
        reference_model: Annotated[
            ReferenceName, Field(description="π_ref: a model of the recipe that never learns, instead of `reference`")
        ] = None,
        update: Annotated[
            Literal["none", "before", "after", "reverse"],
            Field(
                description="learn not at all; before scoring, with another pass; while scoring, in one pass; or while"
                " scoring, after a pass for the statistics of groups"
            ),
        ] = "after",
        learn: Annotated[LearnSettings, Field(description="how it learns")] = LearnSettings(),  # noqa: B008 frozen
        trust: Annotated[TrustSettings, Field(description="how much it counts")] = TrustSettings(),  # noqa: B008
        truth: Annotated[StepTruthChoice | None, Field(description="step truth to measure it by: arithmetic")] = None,
        value: Annotated[
            Literal["sum", "mean", "lowest-step"],
            Field(
                description="what an answer is worth outside of training: the sum of its rewards, their mean, or the"
                " sum of its lowest step"
            ),
        ] = "sum",
    ) -> None:
        if reference_model is not None and reference != "start":
            raise UserError(f'reference = "{reference}" and reference_model both say what π_ref is: leave one out')
        if reference_model == model:
            raise UserError(f'reference_model is "{model}" itself: every reward would be 0')
        if update == "after" and learn.loss != "cross-entropy":
            raise UserError(
                f'the loss "{learn.loss}" needs the statistics of groups before the update: set update = "reverse"'
            )
        self.model, self.outcome, self.beta = model, outcome, beta
        self.granularity, self.separator = granularity, separator
        self.normalise, self.smooth = normalise, smooth
        self.reference, self.reference_model = reference, reference_model
        self.update, self.learning, self.trust, self.truth = update, learn, trust, truth
        self.value = value
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
        learned = {"loss": self.learning.loss, "offset": self.learning.offset} if self.update != "none" else {}
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
        """Return what each rollout is worth (`value`), with a reward for each token.

        The scale is that of β: there is no step whose largest return could be 1.
        """
        self._require_reference()
        model = self._models(self.model)
        ours = await _logprobs(model, group)
        if self.reference_model is None:
            theirs = await _logprobs(model, group, adapter=False)
        else:
            theirs = await _logprobs(self._models(self.reference_model), group)
        scores = []
        for rollout, *logprobs in zip(group.rollouts, ours, theirs, strict=True):
            try:
                scores.append(self._score(rollout, *logprobs))
            except (ModelCallError, CannotScore) as error:
                scores.append(Score(failure=failure_of(error)))
        return tuple(scores)

    def _score(
        self, rollout: Rollout, ours: TokenLogprobs | ModelCallError, theirs: TokenLogprobs | ModelCallError
    ) -> Score:
        for logprobs in (ours, theirs):
            if isinstance(logprobs, ModelCallError):
                raise logprobs
        assert isinstance(ours, TokenLogprobs)
        assert isinstance(theirs, TokenLogprobs)
        if not np.array_equal(ours.ends, theirs.ends):
            raise CannotScore("invalid", "the model and its reference do not read the answer as the same tokens")
        rewards = self.beta * (ours.logprobs.astype(np.float64) - theirs.logprobs.astype(np.float64))
        if not np.isfinite(rewards).all():
            raise CannotScore("invalid", "a log-probability is not finite")
        steps = split_steps(rollout.text, self.separator)
        numbers = steps_of_tokens(ours.ends, steps)
        value = worth(rewards, numbers, self.value)
        feedback = _shown(sums_by_step(rewards, numbers, len(steps)))
        if not len(rollout.tokens):
            return Score(value, feedback=feedback)
        (values,), (support,) = self.place(rewards[None], np.ones((1, len(rewards)), dtype=np.bool_), numbers[None])
        support = None if self.granularity == "token" else support
        return Score(value, token_values=values.astype(np.float32), token_support=support, feedback=feedback)


def worth(rewards: NDArray[np.float64], numbers: NDArray[np.int64], how: str) -> float:
    """Return one number for an answer: the sum, the mean over tokens, or the lowest sum of a step that has tokens."""
    if not len(rewards):
        return 0.0
    if how == "lowest-step":
        return float(sums_by_step(rewards, numbers, int(numbers.max()) + 1)[np.unique(numbers)].min())
    return float(rewards.mean() if how == "mean" else rewards.sum())


async def _logprobs(model: Any, group: RolloutGroup, *, adapter: bool = True) -> list[TokenLogprobs | ModelCallError]:
    """Return the log-probabilities of each rollout; one that the model cannot read costs the others nothing."""
    if not hasattr(unwrapped(model), "read"):
        raise UserError(
            f"models.{model.name} gives no log-probabilities: an implicit reward needs models of this process"
        )
    reader: LogprobModel = model
    try:
        return list(await reader.read(group, adapter=adapter))
    except ModelCallError as error:
        if len(group.rollouts) == 1:
            return [error]
    singles = [replace(group, rollouts=[rollout]) for rollout in group.rollouts]
    return [one for single in singles for one in await _logprobs(model, single, adapter=adapter)]


def _shown(by_step: NDArray[np.float64]) -> str:
    """Return the rewards of the steps for a person to read, and which is the lowest."""
    if len(by_step) < 2:
        return ""
    shown = " ".join(f"{value:+.3f}" for value in by_step[:MAX_STEPS_SHOWN])
    more = f" and {len(by_step) - MAX_STEPS_SHOWN} more" if len(by_step) > MAX_STEPS_SHOWN else ""
    return f"steps: {shown}{more}; lowest: step {int(by_step.argmin()) + 1}"
