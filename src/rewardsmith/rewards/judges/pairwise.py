"""Compare answers two at a time, each pair in both orders, and turn the verdicts into rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rewardsmith.algorithms.strengths import bradley_terry, chances, connected, largest
from rewardsmith.errors import UserError
from rewardsmith.rewards.judges.candidates import (
    Ballot,
    Candidates,
    CandidateWay,
    Criteria,
    GroupJudge,
    InvalidReward,
    MaxCandidateChars,
    ReferencePlace,
    SingleAnswerReward,
    first_cause,
    ring,
)
from rewardsmith.rewards.judges.judge import DEFAULT_REQUEST, ChatModelName, OwnTemplate, Request, require_unset
from rewardsmith.rewards.judges.ranking import DIGITS
from rewardsmith.rewards.rules.truth import references_of
from rewardsmith.text.judge_prompts import RANKING_PLACES
from rewardsmith.text.quoting import quote
from rewardsmith.text.templates import load_template
from rewardsmith.text.verdicts import COMPARISON_PARSER, parse_comparison
from rewardsmith.types import Prompt, Score

_SHARES = {"A": 1.0, "B": 0.0, "tie": 0.5}


@dataclass(frozen=True)
class ComparedPair:
    """Two candidates, compared in both orders; without a call if their texts are equal, which is a tie."""

    pair: tuple[int, int]
    ballots: Sequence[Ballot] = ()

    @property
    def error(self) -> Exception | None:
        """Why a verdict failed, if one did."""
        return next((ballot.error for ballot in self.ballots if ballot.error is not None), None)

    @property
    def contradicted(self) -> bool:
        """Whether the two verdicts name different winners: the judge went by the position."""
        shares = [ballot.shares[self.pair[0]] for ballot in self.ballots]
        return sorted(shares) == [0, 1]

    def share(self, candidate: int) -> float:
        """Return 1 if one of the two won twice, 0 if it lost twice, the mean of both verdicts between."""
        return sum(ballot.shares[candidate] for ballot in self.ballots) / 2 if self.ballots else 0.5

    def other(self, candidate: int) -> int:
        """Return the opponent."""
        return self.pair[1] if candidate == self.pair[0] else self.pair[0]


class Pairwise(GroupJudge):
    """Let a model compare rollouts two at a time, each pair twice with A and B swapped.

    Verdicts that contradict each other are a tie. A pair of which one verdict failed is left out.

    Attributes:
        parts: `contradicted` is the share of a rollout's pairs on which the judge contradicted itself.
    """

    parts = ("contradicted",)
    parser = COMPARISON_PARSER

    def __init__(
        self,
        *,
        model: ChatModelName,
        template: OwnTemplate = "pairwise",
        criteria: Criteria = "",
        against: Annotated[Literal["group", "reference"], Field(description="the opponents of a rollout")] = "group",
        reference: ReferencePlace = "answer",
        opponents: Annotated[
            int | None, Field(ge=2, multiple_of=2, description="per rollout, in a ring that is drawn; not set: all")
        ] = None,
        aggregate: Annotated[
            Literal["wins", "bradley-terry"], Field(description="mean of 1, 0.5 and 0 over the pairs; or a fit")
        ] = "wins",
        extract: CandidateWay = "whole",
        max_chars: MaxCandidateChars = 20_000,
        invalid_reward: InvalidReward = None,
        single_answer_reward: SingleAnswerReward = None,
        request: Request = DEFAULT_REQUEST,
    ) -> None:
        self._fit = aggregate == "bradley-terry"
        if against == "reference":
            unused = {"opponents": opponents, "single_answer_reward": single_answer_reward}
            require_unset('against = "reference"', **unused)
            if self._fit:
                raise UserError('aggregate = "bradley-terry" needs a group: against = "reference" goes with wins')
        self._opponents = opponents
        super().__init__(
            model,
            request,
            load_template(template, known=(*RANKING_PLACES, "first", "second"), needed=["first", "second"]),
            criteria=criteria,
            reference=reference,
            extract=extract,
            max_chars=max_chars,
            invalid_reward=invalid_reward,
            single_answer_reward=single_answer_reward,
            by_reference=against == "reference",
        )

    async def compare(self, prompt: Prompt, found: Candidates) -> list[Score]:
        """Return the score of each candidate; equal texts tie without a call."""
        references = references_of(prompt, self._reference) if self._by_reference else []
        texts = [*found.texts, *(reference.strip() for reference in references)]
        members = range(len(found.texts))  # their order is drawn
        pairs = ring(members, self._opponents or len(members))
        if self._by_reference:
            pairs = list(product(members, range(len(members), len(texts))))
        known = self.known(prompt)
        quoted = [quote(text) for text in texts]  # each is shown many times

        async def compared(pair: tuple[int, int]) -> ComparedPair:
            if texts[pair[0]] == texts[pair[1]]:
                return ComparedPair(pair)
            orders = [pair, pair[::-1]]
            shown = [self._template.render({**known, "first": quoted[i], "second": quoted[j]}) for i, j in orders]
            return ComparedPair(pair, await asyncio.gather(*map(self.ballot, shown, orders)))

        return self._scores(found, await asyncio.gather(*map(compared, pairs)))

    def parse(self, reply: str, about: None) -> tuple[float, float]:
        """Return the shares of the two answers: 1, 0.5 or 0."""
        share = _SHARES[parse_comparison(reply)]
        return share, 1 - share

    def _scores(self, found: Candidates, compared: Sequence[ComparedPair]) -> list[Score]:
        count = len(found.texts)
        valid = [one for one in compared if one.error is None]
        errors = [(one.pair, one.error) for one in compared if one.error is not None]
        kept = [True] * count if self._by_reference else _connected(count, valid)
        strengths = self._strengths(count, valid) if self._fit else []
        scores = []
        for i in range(count):
            about = [one for one in compared if i in one.pair]
            own = [one for one in about if one.error is None]
            ballots = [ballot for one in about for ballot in one.ballots]
            result: Score | Exception
            if kept[i] and own:
                value = strengths[i] if self._fit else _wins(found, i, own)
                parts = {"contradicted": Score(sum(one.contradicted for one in own) / len(own))}
                result = Score(round(value, DIGITS), parts=parts)
            else:
                result = first_cause(i, errors)
            scores.append(self.with_feedback(result, i, ballots))
        return scores

    def _strengths(self, count: int, compared: Sequence[ComparedPair]) -> list[float]:
        wins = np.zeros((count, count))
        for one in compared:
            first, second = one.pair
            wins[first, second] += one.share(first)
            wins[second, first] += one.share(second)
        return list(map(float, chances(bradley_terry(wins))))


def _connected(count: int, compared: Sequence[ComparedPair]) -> list[bool]:
    met = np.zeros((len(compared), count), dtype=bool)
    for row, one in zip(met, compared, strict=True):
        row[list(one.pair)] = True
    return list(map(bool, largest(connected(met))))


def _wins(found: Candidates, candidate: int, own: Sequence[ComparedPair]) -> float:
    """Return the mean share over opponents, one for each rollout that has the opponent's text; copies are ties.

    With all pairs it is the chance to be preferred to another rollout of the group that is picked at random.
    """
    met = [(one.share(candidate), max(1, found.of.count(one.other(candidate)))) for one in own]
    copies = found.of.count(candidate) - 1 if all(one.other(candidate) < len(found.texts) for one in own) else 0
    total = copies + sum(count for _, count in met)
    return (copies / 2 + sum(share * count for share, count in met)) / total if total else 0.5
