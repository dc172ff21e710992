"""Rank a whole group in one call: what is hard to grade alone is easy to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rewardsmith.config import Settings
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.asking import Asker, AskingSettings, AsksOne, failed_score, feedback_of, written
from rewardsmith.rewards.judges.candidates import (
    Candidates,
    Criteria,
    JudgeModel,
    Longest,
    Place,
    Way,
    are_shown_as_given,
    candidates_of,
    require_apart,
    require_shown,
    shown_of,
    without,
)
from rewardsmith.rewards.judges.orders import arranged
from rewardsmith.rewards.judges.rounds import Design, Outcome, Seen
from rewardsmith.rewards.judges.shown import are_stored
from rewardsmith.rewards.judges.unused import require_unset
from rewardsmith.text.judge_prompts import RankingFormat, load_ranking_template, ranking_prompt
from rewardsmith.text.quoting import quote
from rewardsmith.text.rankings import (
    MAX_CANDIDATES,
    PARSER,
    Output,
    RankingVerdict,
    Strictness,
    letters_of,
    parse_ranking,
    rank_shares,
)
from rewardsmith.types import Prompt, Rollout, RolloutGroup, Score


class OverlongSettings(Settings):
    """0 up to limit − buffer tokens, then −factor · (tokens − (limit − buffer)) / buffer, and −factor from limit on."""

    limit: int = Field(ge=1, description="tokens of a rollout from which the whole factor is subtracted")
    buffer: int = Field(ge=1, description="tokens before that over which the penalty grows")
    factor: float = Field(ge=0, description="largest penalty, in units of the reward")

    @model_validator(mode="after")
    def _fits(self) -> OverlongSettings:
        if self.buffer > self.limit:
            raise ValueError(
                f"buffer is {self.buffer}, more than limit = {self.limit}: every rollout would be overlong"
            )
        return self

    def penalty(self, rollout: Rollout) -> float:
        """Return what is added to the reward of a rollout, at most 0.

        Raises:
            CannotScore: the tokens of the rollout are not known.
        """
        length = len(rollout.tokens)
        if rollout.text and not length:
            raise CannotScore(
                "invalid", "the rollout has no tokens, so that overlong cannot be counted: score it without overlong"
            )
        return 0.0 - self.factor * min(1.0, max(0.0, (length - (self.limit - self.buffer)) / self.buffer))


class RankingAsking(AskingSettings):
    """How a ranking judge is asked: it compares at length."""

    max_tokens: int = Field(default=8192, ge=1, description="longest answer; one that is cut off is not read")
    deadline: float = Field(default=300.0, gt=0, description="seconds for one verdict, all tries together")


@dataclass(frozen=True)
class Scale:
    """From what the judge says to the reward; a share is 0 for the worst possible and 1 for the best.

    Attributes:
        lowest: score of the worst candidate possible.
        highest: score of the best.
        decimals: whether scores between integers are allowed.
        worst: reward of the worst candidate possible.
        best: reward of the best.
        invalid: reward of a rollout without a valid answer.
        lone: reward of the only distinct valid answer.
    """

    lowest: float
    highest: float
    decimals: bool
    worst: float
    best: float
    invalid: float
    lone: float

    def __post_init__(self) -> None:
        if not self.lowest < self.highest:
            raise UserError(f"lowest is {self.lowest:g} and highest {self.highest:g}: the range of scores is empty")
        if not self.decimals and (self.lowest != int(self.lowest) or self.highest != int(self.highest)):
            raise UserError(f"{self.lowest:g} and {self.highest:g} must be integers, unless decimals = true")
        require_apart(self.invalid, self.lone, self.worst)

    def share(self, score: float) -> float:
        """Return a score as a share."""
        return (score - self.lowest) / (self.highest - self.lowest)

    def score(self, share: float) -> float:
        """Return a share as a score."""
        return self.lowest + (self.highest - self.lowest) * share

    def reward(self, share: float) -> float:
        """Return the reward of a share."""
        return self.worst + (self.best - self.worst) * share


_ASKING = RankingAsking()


class Ranking(AsksOne):
    """Let a model rank all rollouts of a group against each other (GRRM's group quality metric).

    Identical answers are shown once and share their score. What could not be judged is a failure, never a number.

    Attributes:
        deadline: seconds for one verdict.
        parts: `judge` is the score between `lowest` and `highest`; `overlong` is the penalty, where there is one.
        whole: the scores of a group belong together: after an outage the whole group is asked again.
    """

    whole = True

    def __init__(
        self,
        *,
        model: JudgeModel,
        template: Annotated[
            str, Field(min_length=1, description="ranking, ranking_translation, or the path of your own")
        ] = "ranking",
        criteria: Criteria = "",
        reference: Place = "answer",
        output: Annotated[Output, Field(description="what the judge writes: a ranking, scores, or both")] = "both",
        lowest: Annotated[float, Field(description="score of the worst candidate possible")] = 0.0,
        highest: Annotated[float, Field(description="score of the best candidate possible")] = 10.0,
        decimals: Annotated[bool, Field(description="whether 7.5 is a score")] = False,
        reading: Annotated[Strictness, Field(description="how much of the form is overlooked")] = "lenient",
        orders: Annotated[
            int, Field(ge=1, description="candidate orders, averaged against position bias; best even")
        ] = 1,
        least_orders: Annotated[int, Field(ge=1, description="fewer readable orders than this are a failure")] = 1,
        most: Annotated[
            int, Field(ge=2, le=MAX_CANDIDATES, description="candidates in one call; GRRM was trained with 2 to 4")
        ] = 8,
        larger: Annotated[
            Literal["subgroups", "tournament"], Field(description="how groups are judged that are larger")
        ] = "subgroups",
        overlap: Annotated[
            int | None,
            Field(ge=1, description="candidates that neighbouring subgroups share; not set: a quarter of most"),
        ] = None,
        extract: Way = "whole",
        longest: Longest = 20_000,
        normalise: Annotated[Literal["unit", "none"], Field(description="unit: scores become 0 to 1")] = "unit",
        scale: Annotated[float, Field(gt=0, description="factor of the score, after that")] = 1.0,
        invalid_reward: Annotated[
            float | None,
            Field(description="without a valid answer; never scaled; not set: half a range below the worst"),
        ] = None,
        lone: Annotated[
            float | None, Field(description="of the only distinct valid answer; never scaled; not set: the middle")
        ] = None,
        overlong: Annotated[OverlongSettings | None, Field(description="a penalty for length")] = None,
        asking: Annotated[RankingAsking, Field(description="how the judge is asked")] = _ASKING,
    ) -> None:
        worst, best = (scale * end for end in ((0.0, 1.0) if normalise == "unit" else (lowest, highest)))
        invalid = worst - (best - worst) / 2 if invalid_reward is None else invalid_reward
        middle = (worst + best) / 2 if lone is None else lone
        self._scale = Scale(lowest, highest, decimals, worst, best, invalid, middle)
        if larger == "tournament":
            require_unset('larger = "tournament"', overlap=overlap)
        shared = max(1, most // 4) if overlap is None else overlap
        self._design = Design(most, orders, least_orders, shared, larger == "tournament", output == "ranking")
        self._output, self._reading = output, reading
        self._way, self._longest, self._overlong = extract, longest, overlong
        self._reference, self._criteria = reference, criteria
        self._template = load_ranking_template(template)
        self._verdicts = RankingFormat(output, lowest, highest, decimals)
        require_shown(self._template, criteria=criteria, reference=reference)
        self._asker = Asker(model, asking)
        self.deadline = asking.deadline
        self.parts = ("judge",) if overlong is None else ("judge", "overlong")

    def facts(self) -> dict[str, Any]:
        """Return what the verdicts depend on beside model and settings, for the record of a run."""
        return {**self._template.facts(), "parser": PARSER}

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt lacks something that the template shows."""
        shown_of(prompt, self._template, reference=self._reference, criteria=self._criteria)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; a group with fewer than two distinct valid answers is not shown to anyone."""
        found = candidates_of(group, self._way, self._longest)
        outcome = await self._judged(group, found) if len(found.texts) > 1 else None
        return tuple(self._score(rollout, i, outcome) for rollout, i in zip(group.rollouts, found.of, strict=True))

    async def _judged(self, group: RolloutGroup, found: Candidates) -> Outcome:
        shown = shown_of(group.prompt, self._template, reference=self._reference, criteria=self._criteria)
        quoted = [quote(text) for text in found.texts]  # each is shown in every order
        unread: list[Seen] = []

        async def ask(order: tuple[int, ...]) -> Seen:
            try:
                return await self._ask(shown, quoted, order)
            except Exception as error:
                unread.append(Seen(order, {}, written(error)))
                raise

        count = len(found.texts)
        members = arranged(count) if are_shown_as_given() else range(count)  # else their order is drawn
        outcome = await self._design.judge(ask, members)
        return replace(outcome, unread=sorted(unread, key=lambda one: one.order))

    async def _ask(self, shown: Mapping[str, str], quoted: Sequence[str], order: tuple[int, ...]) -> Seen:
        letters, scale = letters_of(len(order)), self._scale
        bounds = {"lowest": scale.lowest, "highest": scale.highest}

        def read(text: str) -> RankingVerdict:
            return parse_ranking(
                text, letters, self._output, **bounds, decimals=scale.decimals, strictness=self._reading
            )

        prompt = ranking_prompt(self._template, shown, [quoted[i] for i in order], self._verdicts, quoted=True)
        verdict = await self._asker.verdict(prompt, read)
        shares = {letter: scale.share(score) for letter, score in verdict.value.scores.items()}
        shares = shares or rank_shares(verdict.value.levels)
        return Seen(order, {i: shares[letter] for i, letter in zip(order, letters, strict=True)}, verdict.feedback)

    def _score(self, rollout: Rollout, candidate: int | None, outcome: Outcome | None) -> Score:
        if candidate is None:
            return Score(self._scale.invalid, parts=without(self.parts, "there is no valid answer to judge"))
        penalty, parts = 0.0, {}
        if self._overlong is not None and are_stored() and not len(rollout.tokens):
            parts = without(["overlong"], "a stored answer has no tokens that could be counted")
        elif self._overlong is not None:
            try:
                penalty = self._overlong.penalty(rollout)
            except CannotScore as error:
                return failed_score(error, self.parts)
            parts = {"overlong": Score(penalty)}
        if outcome is None:
            alone = without(["judge"], "there is no other answer to compare it with")
            return Score(self._scale.lone + penalty, parts=alone | parts)
        if candidate in outcome.failures:
            failed = failed_score(outcome.failures[candidate], self.parts)
            told = _told([*outcome.unread, *outcome.seen], candidate)
            return replace(failed, feedback=told or failed.feedback)
        share = outcome.shares[candidate]
        told = _told(outcome.seen, candidate)
        parts = {"judge": Score(self._scale.score(share)), **parts}
        return Score(self._scale.reward(share) + penalty, parts=parts, feedback=told)


def _told(seen: Sequence[Seen], candidate: int) -> str:
    """Return what the judge wrote about a candidate, each time with the letter that it knew this candidate by."""
    told = []
    for one in seen:
        if candidate in one.order and one.feedback:
            letter = letters_of(len(one.order))[one.order.index(candidate)]
            told.append(f"[this answer is candidate {letter} of {len(one.order)}]\n{one.feedback}")
    return feedback_of(told)


__all__ = ["OverlongSettings", "Ranking", "RankingAsking"]
