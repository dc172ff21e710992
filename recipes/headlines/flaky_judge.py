"""A judge that is right, but fails now and then; its failures are failures, or count as 0 as in other trainers."""

import hashlib
from typing import Annotated, Literal

from pydantic import Field

from rewardsmith import Failure, Prompt, RolloutGroup, Score
from rewardsmith.rewards.rules import RULES


class FlakyJudge:
    """1 for a right answer and 0 for a wrong one, where the judge does not fail."""

    def __init__(
        self,
        *,
        rule: Annotated[
            Literal["word_problem", "arithmetic"], Field(description="the rule that knows what is right")
        ] = "word_problem",
        share: Annotated[float, Field(ge=0, le=0.5, description="share of the answers on which it fails")] = 0.1,
        hits: Annotated[
            Literal["any", "long"], Field(description="any answer alike, or the longer ones of a group more often")
        ] = "any",
        zero: Annotated[bool, Field(description="a failure counts as 0, which is a false verdict")] = False,
    ) -> None:
        self._rule, self._share, self._hits = RULES[rule], share, hits
        self._failed = Score(0.0) if zero else Score(failure=Failure("timeout", "the judge did not reply"))

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return a verdict on each answer, or a failure."""
        lengths = [len(rollout.text) for rollout in group.rollouts]
        scores = []
        for i, rollout in enumerate(group.rollouts):
            chance = self._share * (length_rank(lengths, i) if self._hits == "long" else 1)
            fails = draw(group.prompt, rollout.text, i) < chance
            scores.append(self._failed if fails else Score(self._rule(group.prompt, rollout.text)))
        return tuple(scores)


def length_rank(lengths: list[int], i: int) -> float:
    """Return 0 for the shortest of a group to 2 for the longest, 1 in the mean; equal lengths share a rank."""
    if len(lengths) == 1:
        return 1.0
    shorter, equal = sum(one < lengths[i] for one in lengths), lengths.count(lengths[i]) - 1
    return 2 * (shorter + equal / 2) / (len(lengths) - 1)


def draw(prompt: Prompt, text: str, i: int) -> float:
    """Return a number from 0 to 1, the same one for the same prompt, answer and place in the group."""
    digest = hashlib.blake2b(repr((prompt.id, text, i)).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
