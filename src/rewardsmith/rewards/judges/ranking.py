"""Rank a whole group in one call: what is hard to grade alone is easy to compare.

A large group, or one that is shown in several orders, needs several calls, whose shares are joined:

    ask(order) -> Ballot                 one call: some candidates in some order
    Ballot, Ballot, … -> JoinedShares    a share in [0, 1] for each candidate, or why it has none

A call that failed is no vote. Who has no share because of it has the failure instead; the others keep theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rewardsmith.algorithms.ranks import average_ranks
from rewardsmith.algorithms.strengths import connected, largest, without_offsets
from rewardsmith.errors import UserError
from rewardsmith.llm import RequestSettings
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
    arranged,
    balanced,
    first_cause,
    heats,
    windows,
)
from rewardsmith.rewards.judges.judge import AllowOtherPrompt, ChatModelName, OwnTemplate, keeps_order
from rewardsmith.text.judge_prompts import (
    PromptIdentity,
    RankingFormat,
    load_ranking_template,
    ranking_identity,
    ranking_prompt,
)
from rewardsmith.text.quoting import quote
from rewardsmith.text.rankings import (
    MAX_CANDIDATES,
    NOUN,
    NOUN_PATTERN,
    PARSER,
    Output,
    Strictness,
    letters_of,
    parse_ranking,
    rank_shares,
)
from rewardsmith.types import Prompt, Score

DIGITS = 9
"""Shares are rounded to so many digits: equal candidates must not differ by a rounding error."""


class RankingRequest(RequestSettings):
    """How a ranking judge is called: its replies are long."""

    max_tokens: int = Field(default=8192, ge=1, description="token limit of a reply; a truncated reply is not parsed")
    deadline: float = Field(default=300.0, gt=0, description="seconds for one parsed reply, all tries together")


_REQUEST = RankingRequest()


class RankingJudge(GroupJudge):
    """Let a model rank all rollouts of a group against each other (GRRM's group quality metric).

    Attributes:
        parts: `judge` is the score between `lowest` and `highest`.
    """

    parser = PARSER
    parts = ("judge",)

    def __init__(
        self,
        *,
        model: ChatModelName,
        template: OwnTemplate = "ranking",
        noun: Annotated[
            str,
            Field(pattern=NOUN_PATTERN, description="what the prompt calls candidates: Translation A:"),
        ] = NOUN,
        criteria: Criteria = "",
        reference: ReferencePlace = "answer",
        output: Annotated[Output, Field(description="what the judge writes: a ranking, scores, or both")] = "both",
        lowest: Annotated[float, Field(description="score of the worst candidate possible")] = 0.0,
        highest: Annotated[float, Field(description="score of the best candidate possible")] = 10.0,
        decimals: Annotated[bool, Field(description="whether 7.5 is a score")] = False,
        reading: Annotated[Strictness, Field(description="how strictly the form of the reply is parsed")] = "lenient",
        orders: Annotated[int, Field(ge=1, description="orders, averaged against position bias; best even")] = 1,
        max_candidates: Annotated[int, Field(ge=2, le=MAX_CANDIDATES, description="candidates in one call")] = 8,
        large_groups: Annotated[
            Literal["subgroups", "tournament"], Field(description="how groups above max_candidates are judged")
        ] = "subgroups",
        extract: CandidateWay = "whole",
        max_chars: MaxCandidateChars = 20_000,
        scale: Annotated[float, Field(gt=0, description="reward of the best score; of the worst it is 0")] = 1.0,
        invalid_reward: InvalidReward = None,
        single_answer_reward: SingleAnswerReward = None,
        allow_other_prompt: AllowOtherPrompt = False,
        request: Annotated[RankingRequest, Field(description="how the judge is called")] = _REQUEST,
    ) -> None:
        if not lowest < highest:
            raise UserError(f"lowest is {lowest:g} and highest {highest:g}: the range of scores is empty")
        if not decimals and (lowest != int(lowest) or highest != int(highest)):
            raise UserError(f"{lowest:g} and {highest:g} must be integers, unless decimals = true")
        overlap = max(1, max_candidates // 4)
        self._design = Design(max_candidates, orders, overlap, large_groups == "tournament", output == "ranking")
        self._verdicts, self._reading = RankingFormat(output, lowest, highest, decimals, noun), reading
        super().__init__(
            model,
            request,
            load_ranking_template(template),
            criteria=criteria,
            reference=reference,
            extract=extract,
            max_chars=max_chars,
            invalid_reward=invalid_reward,
            single_answer_reward=single_answer_reward,
            scale=scale,
        )
        self.allows_other_prompt = allow_other_prompt

    def judge_prompt(self) -> PromptIdentity:
        """Return what the prompts depend on apart from the rollouts, to compare with the judge's training."""
        return ranking_identity(self._template, self._verdicts, self._criteria)

    async def compare(self, prompt: Prompt, found: Candidates) -> list[Score]:
        """Return the score of each candidate."""
        known = self.known(prompt)
        quoted = [quote(text) for text in found.texts]  # each is shown in every order

        async def ask(order: tuple[int, ...]) -> Ballot:
            messages = ranking_prompt(self._template, known, [quoted[i] for i in order], self._verdicts, quoted=True)
            return await self.ballot(messages, order, letters_of(len(order)))

        count = len(found.texts)
        members = arranged(count) if keeps_order() else range(count)  # else their order is drawn
        outcome = await self._design.judge(ask, members)
        results = [outcome.failures.get(i) or self._score(outcome.shares[i]) for i in range(count)]
        return [self.with_feedback(result, i, outcome.ballots) for i, result in enumerate(results)]

    def _score(self, share: float) -> Score:
        form = self._verdicts
        return Score(self._scale * share, parts={"judge": Score(form.lowest + (form.highest - form.lowest) * share)})

    def parse(self, reply: str, about: str) -> list[float]:
        """Return the share of each candidate, by its letter: 0 for the worst possible and 1 for the best."""
        form = self._verdicts
        ranked = parse_ranking(
            reply,
            about,
            form.output,
            lowest=form.lowest,
            highest=form.highest,
            decimals=form.decimals,
            strictness=self._reading,
            noun=form.noun,
        )
        if not ranked.scores:
            shares = rank_shares(ranked.levels)
            return [shares[letter] for letter in about]
        return [(ranked.scores[letter] - form.lowest) / (form.highest - form.lowest) for letter in about]


# ---- several calls, joined -----------------------------------------------------------------------------------------


@dataclass
class JoinedShares:
    """The result for a group: the shares of the candidates whose place is known, and the cause for all others."""

    shares: dict[int, float] = field(default_factory=dict)
    failures: dict[int, Exception] = field(default_factory=dict)
    ballots: list[Ballot] = field(default_factory=list)


Ask = Callable[[tuple[int, ...]], Awaitable[Ballot]]


@dataclass(frozen=True)
class Design:
    """Which calls a group needs; the fields are settings of `RankingJudge`.

    Attributes:
        overlap: candidates that two subgroups share.
        ordinal: whether the judge writes only an order.
    """

    max_candidates: int = 8
    orders: int = 1
    overlap: int = 2
    tournament: bool = False
    ordinal: bool = False

    async def judge(self, ask: Ask, members: Sequence[int]) -> JoinedShares:
        """Make all calls for a group, and join their shares."""
        if self.tournament and len(members) > self.max_candidates:
            return await self._by_tournament(ask, members)
        return await self._by_subgroups(ask, members)

    async def _in_orders(self, ask: Ask, members: Sequence[int]) -> tuple[list[Ballot], Exception | None]:
        """Show the same candidates in several orders; return an error as well if no reply could be parsed."""
        ballots = await asyncio.gather(*map(ask, balanced(members, self.orders)))
        return ballots, None if any(ballot.error is None for ballot in ballots) else ballots[0].error

    async def _by_subgroups(self, ask: Ask, members: Sequence[int]) -> JoinedShares:
        """Judge overlapping subgroups at once, and join their scores through the candidates that they share.

        Every reply is a panel with a level of its own; see `without_offsets`. Joined shares that leave [0, 1] are moved
        back together, and shrunk if they must be; those of an ordinal judge are made into one order of all. Where
        failures have left candidates unconnected, the largest connected set keeps its shares.
        """
        subgroups = windows(members, self.max_candidates, self.overlap)
        found = await asyncio.gather(*(self._in_orders(ask, subgroup) for subgroup in subgroups))
        parsed = [ballot for ballots, error in found if error is None for ballot in ballots if ballot.shares]
        place = {candidate: i for i, candidate in enumerate(members)}
        scores = np.full((len(parsed), len(members)), np.nan)
        for row, ballot in zip(scores, parsed, strict=True):
            row[[place[candidate] for candidate in ballot.order]] = [ballot.shares[i] for i in ballot.order]
        kept = largest(connected(~np.isnan(scores)))
        ranked = [candidate for candidate in members if kept[place[candidate]]]
        used = scores[:, kept][~np.isnan(scores[:, kept]).all(axis=1)]
        shares = without_offsets(used).round(DIGITS) if ranked else np.empty(0)
        if len(subgroups) > 1 and ranked:
            shares = (average_ranks(shares) - 1) / max(1, len(shares) - 1) if self.ordinal else _fitted(shares)
        errors = [(who, error) for who, (_, error) in zip(subgroups, found, strict=True) if error is not None]
        return JoinedShares(
            shares=dict(zip(ranked, shares.tolist(), strict=True)),
            failures={lost: first_cause(lost, errors) for lost in members if not kept[place[lost]]},
            ballots=[ballot for ballots, _ in found for ballot in ballots],
        )

    async def _by_tournament(self, ask: Ask, members: Sequence[int]) -> JoinedShares:
        """Judge the candidates in heats, from which the better half advances, until one heat holds all that are left.

        The share of a candidate is (rounds that it survived + its mean share in its last heat) / rounds. Who advances
        among equals is drawn by lot. The members of a heat that failed have failed; the others go on. One that failures
        have left without an opponent has survived the rounds before; if it was never judged, it has failed with them.
        """
        outcome, alive, rounds = JoinedShares(), list(members), 0
        last: dict[int, float] = {}
        while len(alive) > 1:
            groups = [heat for heat in heats(alive, self.max_candidates) if len(heat) > 1]
            playing = {candidate for heat in groups for candidate in heat}
            is_final = len(alive) <= self.max_candidates
            found = await asyncio.gather(*(self._in_orders(ask, heat) for heat in groups))
            alive = [candidate for candidate in alive if candidate not in playing]
            for heat, (ballots, error) in zip(groups, found, strict=True):
                outcome.ballots += ballots
                if error is not None:
                    outcome.failures |= dict.fromkeys(heat, error)
                    continue
                parsed = [ballot.shares for ballot in ballots if ballot.shares]
                means = {i: round(sum(shares[i] for shares in parsed) / len(parsed), DIGITS) for i in heat}
                last |= {i: rounds + means[i] for i in heat}
                best = sorted(heat, key=means.__getitem__, reverse=True)[: (len(heat) + 1) // 2]  # heats are drawn
                alive += [] if is_final else best
            rounds += 1
        for i in alive:  # nobody is left to meet it
            if i in last:
                last[i] = max(last[i], rounds - 1)
            else:
                outcome.failures[i] = next(iter(outcome.failures.values()))
        outcome.shares = {i: at / rounds for i, at in last.items() if i not in outcome.failures}
        return outcome


def _fitted(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return shares within [0, 1]: clipping each alone would make different candidates equal."""
    low, high = float(shares.min()), float(shares.max())
    if high - low > 1:
        return (shares - low) / (high - low)
    return (shares - min(low, 0.0) - max(high - 1.0, 0.0)).clip(0.0, 1.0).round(DIGITS)  # clip: rounding errors
