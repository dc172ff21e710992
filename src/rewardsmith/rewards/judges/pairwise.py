"""Compare answers two at a time, each pair in both orders, and turn the verdicts into rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from rewardsmith.algorithms.strengths import bradley_terry, chances, connected, largest
from rewardsmith.errors import UserError
from rewardsmith.llm import joined_replies, settle
from rewardsmith.rewards.judges.candidates import (
    Candidates,
    CandidateWay,
    Criteria,
    GroupJudge,
    MaxCandidateChars,
    ReferencePlace,
    require_apart,
    ring,
    skipped,
)
from rewardsmith.rewards.judges.judge import (
    DEFAULT_REQUEST,
    ChatModelName,
    Question,
    Request,
    failed_score,
    require_unset,
)
from rewardsmith.rewards.judges.ranking import DIGITS, first_cause
from rewardsmith.rewards.rules.truth import references_of
from rewardsmith.text.judge_prompts import RANKING_PLACES
from rewardsmith.text.quoting import quote
from rewardsmith.text.templates import load_template
from rewardsmith.text.verdicts import COMPARISON_PARSER, parse_comparison
from rewardsmith.types import Prompt, RolloutGroup, Score

_SHARES = {"A": 1.0, "B": 0.0, "tie": 0.5}


@dataclass(frozen=True)
class ComparedPair:
    """Two texts, compared in both orders.

    Attributes:
        pair: indices of the two.
        share: of the first: 1 when it won twice, 0 when it lost twice, the mean of both verdicts between.
        contradicted: whether the two verdicts name different winners: the judge went by the position.
        feedback: what the judge wrote, first with the first of the two as A, then as B.
        error: why there is no share: a verdict that failed.
    """

    pair: tuple[int, int]
    share: float = 0.5
    contradicted: bool = False
    feedback: tuple[str, ...] = ()
    error: Exception | None = None

    def share_of(self, candidate: int) -> float:
        """Return the share of one of the two."""
        return self.share if candidate == self.pair[0] else 1 - self.share

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
        template: Annotated[str, Field(min_length=1, description="pairwise, or the path of your own")] = "pairwise",
        criteria: Criteria = "",
        against: Annotated[Literal["group", "reference"], Field(description="the opponents of a rollout")] = "group",
        reference: ReferencePlace = "answer",
        opponents: Annotated[
            int | None, Field(ge=2, multiple_of=2, description="per rollout, in a ring that is drawn; not set: all")
        ] = None,
        min_pairs: Annotated[int, Field(ge=1, description="a rollout with fewer parsable pairs has failed")] = 1,
        aggregate: Annotated[
            Literal["wins", "bradley-terry"], Field(description="mean of 1, 0.5 and 0 over the pairs; or a fit")
        ] = "wins",
        prior: Annotated[
            float | None, Field(ge=1e-6, description="bradley-terry: 1 / variance of log-strengths; not set: 0.1")
        ] = None,
        extract: CandidateWay = "whole",
        max_chars: MaxCandidateChars = 20_000,
        invalid_reward: Annotated[
            float | None, Field(description="of a rollout without a valid answer; not set: -0.5, half below the worst")
        ] = None,
        single_answer_reward: Annotated[
            float | None, Field(description="of the only distinct valid answer; not set: that of an average one")
        ] = None,
        request: Request = DEFAULT_REQUEST,
    ) -> None:
        self._fit, self._by_reference = aggregate == "bradley-terry", against == "reference"
        if self._fit and self._by_reference:
            raise UserError('aggregate = "bradley-terry" needs a group: against = "reference" goes with wins')
        if self._by_reference:
            unused = {"opponents": opponents, "single_answer_reward": single_answer_reward}
            require_unset('against = "reference"', **unused)
        if not self._fit:
            require_unset('aggregate = "wins"', prior=prior)
        self._prior, self._opponents, self._min_pairs = 0.1 if prior is None else prior, opponents, min_pairs
        self._single = 0.5 if single_answer_reward is None else single_answer_reward
        self._invalid = -0.5 if invalid_reward is None else invalid_reward
        require_apart(self._invalid, self._single)
        loaded = load_template(template, known=(*RANKING_PLACES, "first", "second"), needed=["first", "second"])
        super().__init__(
            model, request, loaded, criteria, reference, extract, max_chars, reference_used=self._by_reference
        )

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt lacks the reference, or something else that the template shows."""
        super().require(prompt)
        if self._by_reference:
            references_of(prompt, self._reference)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; who has no opponent with another text needs no call."""
        found = self.candidates(group)
        references = references_of(group.prompt, self._reference) if self._by_reference else []
        texts = [*found.texts, *(reference.strip() for reference in references)]
        members = range(len(found.texts))  # their order is drawn
        pairs = ring(members, self._opponents or len(members))
        if self._by_reference:
            pairs = list(product(members, range(len(members), len(texts))))
        different = [pair for pair in pairs if texts[pair[0]] != texts[pair[1]]]
        compared = [ComparedPair(pair) for pair in pairs if texts[pair[0]] == texts[pair[1]]]
        if different:
            known = self.known(group.prompt)
            quoted = [quote(text) for text in texts]  # each is shown many times
            compared += await asyncio.gather(*(self._compare(known, quoted, pair) for pair in different))
        scores = self._scores(found, compared)
        invalid = Score(self._invalid, parts=skipped(self.parts, "there is no valid answer to compare"))
        return tuple(invalid if i is None else scores[i] for i in found.of)

    async def _compare(self, known: Mapping[str, str], quoted: Sequence[str], pair: tuple[int, int]) -> ComparedPair:
        orders = [pair, (pair[1], pair[0])]
        prompts = [self._template.render({**known, "first": quoted[i], "second": quoted[j]}) for i, j in orders]
        replies = await settle(self.request(Question(messages)) for messages in prompts)
        feedback = tuple(getattr(one, "replies" if isinstance(one, Exception) else "feedback", "") for one in replies)
        for error in replies:
            if isinstance(error, Exception):
                return ComparedPair(pair, feedback=feedback, error=error)
        ahead, behind = (reply.value for reply in replies if not isinstance(reply, Exception))
        return ComparedPair(pair, (ahead + 1 - behind) / 2, ahead == behind != 0.5, feedback)

    def parse(self, reply: str, about: None) -> float:
        """Return the share of the first answer: 1, 0.5 or 0."""
        return _SHARES[parse_comparison(reply)]

    def _scores(self, found: Candidates, compared: Sequence[ComparedPair]) -> list[Score]:
        """Return the score of each distinct answer."""
        count = len(found.texts)
        if not self._by_reference and count < 2:
            alone = skipped(self.parts, "there is no other answer to compare it with")
            return [Score(self._single, parts=alone)] * count
        valid = [one for one in compared if one.error is None]
        errors = [(one.pair, one.error) for one in compared if one.error is not None]
        kept = [True] * count if self._by_reference else _connected(count, valid)
        strengths = self._strengths(count, valid) if self._fit else []
        scores = []
        for i in range(count):
            about = sorted((one for one in compared if i in one.pair), key=lambda one: one.error is None)
            own = [one for one in about if one.error is None]
            if not kept[i] or len(own) < min(self._min_pairs, len(about)):
                failed = failed_score(first_cause(i, errors), self.parts)
                scores.append(replace(failed, feedback=_feedback(about, i)))
                continue
            value = strengths[i] if self._fit else _wins(found, i, own)
            parts = {"contradicted": Score(sum(one.contradicted for one in own) / len(own))}
            scores.append(Score(round(value, DIGITS), parts=parts, feedback=_feedback(own, i)))
        return scores

    def _strengths(self, count: int, compared: Sequence[ComparedPair]) -> list[float]:
        wins = np.zeros((count, count))
        for one in compared:
            first, second = one.pair
            wins[first, second] += one.share
            wins[second, first] += 1 - one.share
        return list(map(float, chances(bradley_terry(wins, prior=self._prior))))


def _connected(count: int, compared: Sequence[ComparedPair]) -> list[bool]:
    met = np.zeros((len(compared), count), dtype=bool)
    for row, one in zip(met, compared, strict=True):
        row[list(one.pair)] = True
    return list(map(bool, largest(connected(met))))


def _feedback(compared: Sequence[ComparedPair], candidate: int) -> str:
    """Return what the judge wrote about a candidate, with the name that the candidate had."""
    notes = []
    for one in compared:
        names = "AB" if candidate == one.pair[0] else "BA"
        notes += [f"[this answer is {name}]\n{text}" for name, text in zip(names, one.feedback, strict=False) if text]
    return joined_replies(notes)


def _wins(found: Candidates, candidate: int, own: Sequence[ComparedPair]) -> float:
    """Return the mean share over opponents, one for each rollout that has the opponent's text; copies are ties.

    With all pairs it is the chance to be preferred to another rollout of the group that is picked at random.
    """
    met = [(one.share_of(candidate), max(1, found.of.count(one.other(candidate)))) for one in own]
    copies = found.of.count(candidate) - 1 if all(one.other(candidate) < len(found.texts) for one in own) else 0
    total = copies + sum(count for _, count in met)
    return (copies / 2 + sum(share * count for share, count in met)) / total if total else 0.5
