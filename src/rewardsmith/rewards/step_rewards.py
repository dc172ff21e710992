"""A reward for each step, from a world that knows which steps are right: the upper bound of process rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rewardsmith.config import Choice, Chosen
from rewardsmith.data import arithmetic, word_problems
from rewardsmith.rewards.base import CannotScore, failure_of
from rewardsmith.text.steps import JudgedStep, tokens_of_judged
from rewardsmith.types import Prompt, Rollout, RolloutGroup, Score

StepTruth = Callable[..., Sequence[JudgedStep]]
"""Called with a prompt and the text of an answer; `ValueError` for a prompt of which it knows nothing."""

STEP_TRUTHS: dict[str, StepTruth] = {"arithmetic": arithmetic.step_truth, "word-problems": word_problems.step_truth}

StepTruthChoice = Annotated[Chosen, Choice("step truth", "rewardsmith.rewards.step_rewards:STEP_TRUTHS", inputs=2)]
"""A function that knows which steps of an answer are right."""

MAX_STEPS_QUOTED, MAX_CHARACTERS_QUOTED = 8, 60
"""Wrong steps that the feedback quotes, and characters of each."""


@dataclass(kw_only=True, eq=False)
class Steps:
    """Reward each step of an answer on its last token: one number for right steps, another for wrong ones.

    The truth is a program that looks at untrusted text in this process: it must be quick for any text.
    """

    reads_ends: ClassVar[bool] = True

    truth: StepTruthChoice
    right: Annotated[float, Field(description="reward of a right step")] = 1.0
    wrong: Annotated[float, Field(description="reward of a wrong step, and of an answer without any")] = 0.0

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if nothing is known about the steps of answers to this prompt."""
        judged_by(self.truth, prompt, "")

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return the mean over the steps of each rollout, with the reward of each step on its last token.

        What goes wrong with one answer is a failure of that rollout alone.
        """
        scores = []
        for rollout in group.rollouts:
            try:
                scores.append(self._scored(rollout, judged_by(self.truth, group.prompt, rollout.text)))
            except Exception as error:  # noqa: BLE001 the truth may be a user's own code
                scores.append(Score(failure=failure_of(error)))
            await asyncio.sleep(0)
        return tuple(scores)

    def _scored(self, rollout: Rollout, judged: Sequence[JudgedStep]) -> Score:
        rewards = np.array([self.right if step.right else self.wrong for step in judged] or [self.wrong])
        value, feedback, count = float(rewards.mean()), _feedback(judged, rollout.text), len(rollout.tokens)
        if not count:
            return Score(value, feedback=feedback)
        if rollout.ends is None:
            raise CannotScore(
                "invalid",
                "the rollout has no character offsets of its tokens, so that the steps cannot be found among them:"
                " generate with ends=True, or leave out the tokens",
            )
        at = _last_tokens(rollout.ends, judged)
        values = np.bincount(at, weights=rewards, minlength=count).astype(np.float32)
        return Score(value, token_values=values, token_support=np.bincount(at, minlength=count) > 0, feedback=feedback)


def judged_by(truth: Chosen, prompt: Prompt, text: str) -> list[JudgedStep]:
    """Return the steps of an answer and what is true of them."""
    try:
        judged = list(truth.target(prompt, text, **truth.arguments()))
    except ValueError as error:
        raise CannotScore("invalid", f"the step truth {truth.name} knows nothing of it: {error}") from error
    places = [0, *(place for step in judged for place in (step.start, step.end)), len(text)]
    if any(before > after for before, after in pairwise(places)):
        raise CannotScore("invalid", f"the steps of the step truth {truth.name} do not lie in order")
    return judged


def _last_tokens(ends: NDArray[np.int32], judged: Sequence[JudgedStep]) -> NDArray[np.int64]:
    """Return the token on which each step's reward lies, [number of steps]; the last one where there are no steps.

    A step that ends inside a token may have no token of its own; then that token has the rewards of both steps.
    """
    numbers, every = tokens_of_judged(ends, judged), np.arange(max(1, len(judged)))
    last = np.searchsorted(numbers, every, side="right") - 1
    around = np.searchsorted(ends, [step.end for step in judged] or [ends[-1]], side="left")
    return np.where((last >= 0) & (numbers[last] == every), last, np.minimum(around, len(ends) - 1))


def _feedback(judged: Sequence[JudgedStep], text: str) -> str:
    """Return the wrong steps, for a person to read."""
    wrong = [(number, text[step.start : step.end]) for number, step in enumerate(judged, 1) if not step.right]
    if not wrong:
        return "" if judged else "there are no steps"
    quoted = [f"step {number} ({step[:MAX_CHARACTERS_QUOTED] or 'missing'})" for number, step in wrong]
    more = ", …" if len(wrong) > MAX_STEPS_QUOTED else ""
    return f"wrong of {len(judged)}: {', '.join(quoted[:MAX_STEPS_QUOTED])}{more}"
