"""A model that says whether an answer is the reference answer in other words, as TinyV does."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rewardsmith.rewards.judges.asking import AS_USUAL, Asker, Asking, AsksOne, JudgeName, judged
from rewardsmith.rewards.judges.shown import (
    LONGEST,
    WAYS,
    Longest,
    Quoting,
    Show,
    Ways,
    quote_as,
    require_extracting,
    shown,
)
from rewardsmith.rewards.judges.votes import Votes, require_warm, voted
from rewardsmith.rewards.rules.truth import truths
from rewardsmith.text.judge_prompts import question_of
from rewardsmith.text.templates import load_template
from rewardsmith.text.verdicts import NO, PARSER, YES, parse_boolean
from rewardsmith.types import Prompt, RolloutGroup, Score

_YES = (*YES, "equivalent", "correct")
_NO = (*NO, "not equivalent", "incorrect", "wrong")


class Verifier(AsksOne):
    """Ask a model whether the answer means the same as the reference answer: 1 if it does, else 0.

    With several votes the value is the share of those that say yes.

    A response without an answer is worth 0, and nobody is asked. Equal answers of a group are asked about once.

    Attributes:
        deadline: seconds for one verdict.
    """

    def __init__(
        self,
        *,
        model: JudgeName,
        show: Show = "answer",
        extract: Ways = WAYS,
        longest: Longest = LONGEST,
        quoting: Quoting = "fence",
        template: Annotated[
            str, Field(min_length=1, description="a built-in prompt, or the path of your own")
        ] = "verifier",
        votes: Votes = 1,
        asking: Asking = AS_USUAL,
    ) -> None:
        require_extracting(show, extract)
        require_warm(votes, asking)
        self._votes = votes
        self._show, self._ways, self._longest, self._quoting = show, extract, longest, quoting
        self._template = load_template(
            template, known=("question", "reference", "response"), needed=("reference", "response")
        )
        self._asker = Asker(model, asking)
        self.deadline = asking.deadline

    def facts(self) -> dict[str, Any]:
        """Return what the verdicts depend on beside model and settings, for the record of a run."""
        return {**self._template.facts(), "parser": PARSER}

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt has no reference answer."""
        truths(prompt)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; a prompt without a reference answer cannot be scored."""
        # Any one of several is right, and the judge must know that they are several.
        reference = quote_as("\nor: ".join(truths(group.prompt)), self._quoting)
        question = quote_as(question_of(group.prompt), self._quoting)

        async def one(text: str) -> Score:
            if not text:
                return Score(0.0, feedback="There is no answer.")
            response = quote_as(text, self._quoting, self._longest)
            prompt = self._template.render({"question": question, "reference": reference, "response": response})
            return await voted(lambda vote: self._asker.verdict(prompt, _read, sample=vote), self._votes)

        return await judged([shown(rollout.text, self._show, self._ways) for rollout in group.rollouts], one)


def _read(text: str) -> float:
    return float(parse_boolean(text, yes=_YES, no=_NO))


__all__ = ["Verifier"]
