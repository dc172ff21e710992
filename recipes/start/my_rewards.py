"""Rewards of your own: a rule is a function of one answer, a reward is a class that scores a whole group."""

import re
from typing import Annotated

from pydantic import Field

from rewardsmith import Failure, Prompt, RolloutGroup, Score


def names_answer(
    prompt: Prompt, text: str, *, wrong: Annotated[float, Field(description="value of a wrong answer")] = 0.0
) -> float:
    """1 when the answer names the right one of a and b, and not the other; else `wrong`."""
    named = set(re.findall(r"\b[ab]\b", text[:200]))
    return 1.0 if named == {prompt.answer} else wrong


class Brevity:
    """1 for the shortest answer of a group, less for longer ones."""

    def __init__(self, *, floor: Annotated[float, Field(ge=0, le=1, description="smallest value")] = 0.0) -> None:
        self.floor = floor

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return a score for each answer; an answer that cannot be scored has a failure, not a number."""
        shortest = min((len(rollout.text) for rollout in group.rollouts if rollout.text), default=0)
        return tuple(self._score(rollout.text, shortest) for rollout in group.rollouts)

    def _score(self, text: str, shortest: int) -> Score:
        if not text:
            return Score(failure=Failure("invalid", "an empty answer"))
        return Score(max(self.floor, shortest / len(text)))
