r"""An implicit process reward: a language model that learned from outcomes alone, read as a reward for every token.

$$r_t = \beta\,\bigl[\log\pi_\phi(y_t \mid y_{<t}) - \log\pi_{ref}(y_t \mid y_{<t})\bigr]$$

Cui et al. 2025 (PRIME), arXiv 2502.01456. In a stage that trains, the trainer scores the groups of a step together and
lets the model learn (`rewardsmith.trainers.process`). Everywhere else the model is what it is, and is asked here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rewardsmith.config import Refers
from rewardsmith.errors import UserError
from rewardsmith.llm import LogprobModel, ModelCallError, Models, TokenLogprobs, UnconnectedModel, unwrapped
from rewardsmith.rewards.base import failure_of
from rewardsmith.rewards.implicit_settings import LearnSettings, TrustSettings
from rewardsmith.rewards.steps import StepTruthChoice
from rewardsmith.text.steps import split_steps, steps_of_tokens, sums_by_step
from rewardsmith.types import Failure, Rollout, RolloutGroup, Score

MAX_TOLD = 64
"""Steps whose rewards the feedback lists."""

ProcessModelName = Annotated[
    str, Refers("models", offer="learn"), Field(description="which of the recipe's models is the reward model π_φ")
]
ReferenceName = Annotated[str | None, Refers("models", offer="learn")]


class Implicit:
    """A reward for every token from a model that learns from outcomes alone (PRIME).

    Attributes:
        online: whether a trainer scores and trains; then `score` is not called.
        reads_ends: it needs to know where tokens end in the text; the report colours the text of each token.
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
        truth: Annotated[
            StepTruthChoice | None, Field(description="what knows which steps are right, to measure it by: arithmetic")
        ] = None,
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

    # ---- outside of training ---------------------------------------------------------------------------------------

    def connect(self, models: Models) -> None:
        """Take the function that finds models by name."""
        self._models = models

    async def check(self) -> None:
        """Raise a `UserError` if rewards cannot be told outside of training: without a reference there are none."""
        if not self.online:
            self._require_reference()
            for name in (self.model, self.reference_model):
                if name is not None:
                    await self._models(name).check()  # it is loaded now, and not when the first group waits for it

    def facts(self) -> dict[str, Any]:
        """Return what its rewards depend on, for the record of a run."""
        learned = {"loss": self.learning.loss, "offset": self.learning.offset} if self.update != "none" else {}
        reference = self.reference_model or self.reference
        return {"model": self.model, "beta": self.beta, "reference": reference, "update": self.update} | learned

    def _require_reference(self) -> None:
        if self.reference_model is not None or self.reference == "adapter-off":
            return
        if self.reference == "policy":
            raise UserError(
                'the reference of an implicit reward is "policy", the model that writes while it is trained: to score'
                ' other answers, set reference = "start", and reference_model to a model that stands for it'
            )
        raise UserError(
            'the reference of an implicit reward is "start", the model as it was when the stage began: set'
            " reference_model to that model, or score with a run that has kept it (its references/STAGE.PART)"
        )

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return what each rollout is worth (`value`), with a reward for each token.

        The scale is that of β: there is no step whose largest return could be 1.
        """
        self._require_reference()
        model = self._models(self.model)
        read = await _read(model, group)
        if self.reference_model is None:
            reference = await _read(model, group, adapter=False)
        else:
            reference = await _read(self._models(self.reference_model), group)
        return tuple(map(self._scored, group.rollouts, read, reference))

    def _scored(
        self, rollout: Rollout, ours: TokenLogprobs | ModelCallError, theirs: TokenLogprobs | ModelCallError
    ) -> Score:
        if isinstance(ours, ModelCallError):
            return Score(failure=failure_of(ours))
        if isinstance(theirs, ModelCallError):
            return Score(failure=failure_of(theirs))
        if not np.array_equal(ours.ends, theirs.ends):
            return _invalid("the model and its reference do not read the answer as the same tokens")
        rewards = self.beta * (ours.logprobs.astype(np.float64) - theirs.logprobs.astype(np.float64))
        if not np.isfinite(rewards).all():
            return _invalid("a log-probability is not finite")
        text, has_tokens = rollout.text, len(rollout.tokens) > 0
        steps = split_steps(text, self.separator)
        numbers = steps_of_tokens(ours.ends, steps)
        by_step = sums_by_step(rewards, numbers, len(steps))
        values, support = placed(smoothed(rewards, self.smooth), numbers, self.granularity)
        return Score(
            worth(rewards, numbers, self.value),
            token_values=values if has_tokens else None,
            token_support=support if has_tokens and self.granularity != "token" else None,
            feedback=_told(by_step),
        )


def worth(rewards: NDArray[np.float64], numbers: NDArray[np.int64], how: str) -> float:
    """Return one number for an answer; 0 for one without tokens.

    Args:
        rewards: [T], of its tokens.
        numbers: [T], the step that each belongs to.
        how: "sum", "mean" over tokens, or "lowest-step": the smallest sum of a step that has tokens.
    """
    if not len(rewards):
        return 0.0
    if how == "lowest-step":
        return float(sums_by_step(rewards, numbers, int(numbers.max()) + 1)[np.unique(numbers)].min())
    return float(rewards.mean() if how == "mean" else rewards.sum())


def smoothed(rewards: NDArray[np.float64], lam: float) -> NDArray[np.float64]:
    """Return r_t = Σ_k λ^k r_{t+k}, [T]; see `rewardsmith.algorithms.implicit.smooth`."""
    if not lam:
        return rewards
    result, carried = np.empty_like(rewards), 0.0
    for t in range(len(rewards) - 1, -1, -1):
        carried = rewards[t] + lam * carried
        result[t] = carried
    return result


def placed(
    rewards: NDArray[np.float64], numbers: NDArray[np.int64], granularity: str
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return rewards on the tokens that carry them, and which these are: all, the last of each step, or the last."""
    support = np.ones(len(rewards), dtype=np.bool_)
    if granularity == "token" or not len(rewards):
        return rewards.astype(np.float32), support
    owners = numbers if granularity == "step" else np.zeros_like(numbers)
    support[:-1] = owners[1:] != owners[:-1]
    # What the tokens of a step add up to is the difference of two sums from the start.
    sums = np.diff(np.cumsum(rewards)[support], prepend=0.0)
    values = np.zeros(len(rewards), dtype=np.float32)
    values[support] = sums
    return values, support


async def _read(model: Any, group: RolloutGroup, *, adapter: bool = True) -> list[TokenLogprobs | ModelCallError]:
    """Return what a model makes of each rollout; one that it cannot read costs the others nothing."""
    if not hasattr(unwrapped(model), "read"):
        raise UserError(
            f"models.{model.name} cannot say how likely an answer is: an implicit reward needs models of this process"
        )
    reader: LogprobModel = model
    try:
        return list(await reader.read(group, adapter=adapter))
    except ModelCallError as error:
        if len(group.rollouts) == 1:
            return [error]
    alone = [replace(group, rollouts=[rollout]) for rollout in group.rollouts]
    return [one for each in alone for one in await _read(model, each, adapter=adapter)]


def _invalid(detail: str) -> Score:
    return Score(failure=Failure("invalid", detail))


def _told(by_step: NDArray[np.float64]) -> str:
    """Return the rewards of the steps for a person to read, and which is the lowest."""
    if len(by_step) < 2:
        return ""
    shown = " ".join(f"{value:+.3f}" for value in by_step[:MAX_TOLD])
    more = f" and {len(by_step) - MAX_TOLD} more" if len(by_step) > MAX_TOLD else ""
    return f"steps: {shown}{more}; lowest: step {int(by_step.argmin()) + 1}"


__all__ = ["Implicit", "placed", "smoothed", "worth"]
