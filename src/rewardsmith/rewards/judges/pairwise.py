"""Compare answers two at a time, each pair in both orders, and turn the verdicts into rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from rewardsmith.algorithms.bradley_terry import bradley_terry, chances
from rewardsmith.algorithms.offsets import connected, largest
from rewardsmith.errors import UserError
from rewardsmith.rewards.judges.asking import Asker, AskingSettings, AsksOne, failed_score, feedback_of, written
from rewardsmith.rewards.judges.candidates import (
    Candidates,
    Criteria,
    JudgeModel,
    Longest,
    Place,
    Way,
    candidates_of,
    require_apart,
    require_shown,
    shown_of,
    without,
)
from rewardsmith.rewards.judges.orders import all_pairs, random_rings, ring
from rewardsmith.rewards.judges.rounds import DIGITS, first_cause
from rewardsmith.rewards.judges.together import settled
from rewardsmith.rewards.judges.unused import require_unset
from rewardsmith.rewards.rules.translation import references_of
from rewardsmith.text.judge_prompts import RANKING_PLACES
from rewardsmith.text.quoting import quote
from rewardsmith.text.templates import load_template
from rewardsmith.text.verdicts import COMPARISON_PARSER, parse_comparison
from rewardsmith.types import Prompt, RolloutGroup, Score

_ASKING = AskingSettings()
_SHARES = {"A": 1.0, "B": 0.0, "tie": 0.5}


@dataclass(frozen=True)
class Compared:
    """Two texts, compared in both orders.

    Attributes:
        pair: indices of the two.
        share: of the first: 1 when it won twice, 0 when it lost twice, the mean of both verdicts between.
        contradicted: whether the two verdicts name different winners: the judge went by the position.
        feedback: what the judge wrote, first with the first of the two as A, then as B; "" for nothing.
        error: why they are not compared: a verdict that failed. The share says nothing then.
    """

    pair: tuple[int, int]
    share: float
    contradicted: bool = False
    feedback: tuple[str, ...] = ()
    error: Exception | None = None

    def share_of(self, candidate: int) -> float:
        """Return the share of one of the two."""
        return self.share if candidate == self.pair[0] else 1 - self.share

    def told(self, candidate: int) -> list[str]:
        """Return what the judge wrote, with the name by which it knew one of the two."""
        names = "AB" if candidate == self.pair[0] else "BA"
        told = zip(names, self.feedback, strict=False)
        return [f"[this answer is {name}]\n{text}" for name, text in told if text]

    def other(self, candidate: int) -> int:
        """Return the opponent."""
        return self.pair[1] if candidate == self.pair[0] else self.pair[0]


class Pairwise(AsksOne):
    """Let a model compare rollouts two at a time, each pair twice with A and B swapped.

    Verdicts that contradict each other are a tie. A pair of which one verdict could not be read is left out.

    Attributes:
        deadline: seconds for one verdict.
        parts: `contradicted` is the share of a rollout's pairs on which the judge contradicted itself.
        whole: the scores of a group belong together: after an outage the whole group is asked again.
    """

    parts = ("contradicted",)
    whole = True

    def __init__(
        self,
        *,
        model: JudgeModel,
        template: Annotated[str, Field(min_length=1, description="pairwise, or the path of your own")] = "pairwise",
        criteria: Criteria = "",
        against: Annotated[
            Literal["group", "reference"], Field(description="whom a rollout is compared with: its siblings, or a text")
        ] = "group",
        reference: Place = "answer",
        pairs: Annotated[
            Literal["all", "ring", "random"] | None,
            Field(description="all meet; neighbours in a ring; or others that are drawn; not set: all"),
        ] = None,
        opponents: Annotated[
            int | None,
            Field(ge=2, multiple_of=2, description="met at most, under ring and random; even; not set: 4"),
        ] = None,
        least: Annotated[int, Field(ge=1, description="a rollout with fewer readable pairs has failed")] = 1,
        turn_into: Annotated[
            Literal["wins", "bradley-terry"], Field(description="mean of 1, 0.5 and 0 over the pairs; or a fit")
        ] = "wins",
        prior: Annotated[
            float | None, Field(ge=1e-6, description="bradley-terry: 1 / variance of log-strengths; not set: 0.1")
        ] = None,
        unit: Annotated[
            bool | None,
            Field(description="bradley-terry: true is the chance to beat an average one, false the log-strength"),
        ] = None,
        extract: Way = "whole",
        longest: Longest = 20_000,
        invalid_reward: Annotated[
            float | None, Field(description="of a rollout without a valid answer; not set: -0.5, half below the worst")
        ] = None,
        lone: Annotated[
            float | None, Field(description="of the only distinct valid answer; not set: that of an average one")
        ] = None,
        asking: Annotated[AskingSettings, Field(description="how the judge is asked")] = _ASKING,
    ) -> None:
        self._fit, self._by_reference = turn_into == "bradley-terry", against == "reference"
        if self._fit and self._by_reference:
            raise UserError('turn_into = "bradley-terry" needs a group: against = "reference" goes with wins')
        if self._by_reference:
            require_unset('against = "reference"', pairs=pairs, opponents=opponents, lone=lone)
        if pairs in (None, "all"):
            require_unset('pairs = "all"', opponents=opponents)
        if not self._fit:
            require_unset('turn_into = "wins"', prior=prior, unit=unit)
        self._prior, self._unit = 0.1 if prior is None else prior, unit is not False
        if not self._unit and invalid_reward is None:
            raise UserError("invalid_reward is not set: log-strengths have no worst value that it could lie below")
        self._lone = (0.5 if self._unit else 0.0) if lone is None else lone
        self._invalid = -0.5 if invalid_reward is None else invalid_reward
        require_apart(self._invalid, self._lone, worst=0.0 if self._unit else math.inf)
        self._pairs, self._opponents, self._least = pairs or "all", opponents or 4, least
        self._way, self._longest = extract, longest
        self._reference, self._criteria = reference, criteria
        self._template = load_template(template, known=(*RANKING_PLACES, "first", "second"), needed=["first", "second"])
        require_shown(self._template, criteria=criteria, reference=None if self._by_reference else reference)
        self._asker = Asker(model, asking)
        self.deadline = asking.deadline

    def facts(self) -> dict[str, Any]:
        """Return what the verdicts depend on beside model and settings, for the record of a run."""
        return {**self._template.facts(), "parser": COMPARISON_PARSER}

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt lacks the reference, or something else that the template shows."""
        shown_of(prompt, self._template, reference=self._reference, criteria=self._criteria)
        if self._by_reference:
            references_of(prompt, self._reference)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; who has no opponent with another text is not shown to anyone."""
        found = candidates_of(group, self._way, self._longest)
        references = references_of(group.prompt, self._reference) if self._by_reference else []
        texts = [*found.texts, *(reference.strip() for reference in references)]
        pairs = self._drawn_pairs(group.prompt.id, found.texts, len(texts))
        known = [Compared(pair, 0.5) for pair in pairs if texts[pair[0]] == texts[pair[1]]]
        asked = [pair for pair in pairs if texts[pair[0]] != texts[pair[1]]]
        lost: list[Compared] = []
        if asked:
            shown = shown_of(group.prompt, self._template, reference=self._reference, criteria=self._criteria)
            quoted = [quote(text) for text in texts]  # each is shown many times
            answers = await settled(lambda pair: self._compare(shown, quoted, pair), asked)
            met = [
                Compared(pair, 0.5, error=answer) if isinstance(answer, Exception) else answer
                for pair, answer in zip(asked, answers, strict=True)
            ]
            known += [one for one in met if one.error is None]
            lost = [one for one in met if one.error is not None]
        by_candidate = self._scores(found, known, lost)
        invalid = Score(self._invalid, parts=without(self.parts, "there is no valid answer to compare"))
        return tuple(invalid if i is None else by_candidate[i] for i in found.of)

    def _drawn_pairs(self, key: str, texts: Sequence[str], count: int) -> list[tuple[int, int]]:
        if self._by_reference:
            return [(i, opponent) for i in range(len(texts)) for opponent in range(len(texts), count)]
        if self._pairs == "all":
            return all_pairs(range(len(texts)))
        if self._pairs == "ring":
            return ring(range(len(texts)), self._opponents)  # their order is drawn
        return random_rings(key, texts, self._opponents)

    async def _compare(self, shown: Mapping[str, str], quoted: Sequence[str], pair: tuple[int, int]) -> Compared:
        async def ask(order: tuple[int, int]) -> tuple[float, str]:
            values = {**shown, "first": quoted[order[0]], "second": quoted[order[1]]}
            verdict = await self._asker.verdict(self._template.render(values), parse_comparison)
            return _SHARES[verdict.value], verdict.feedback

        ahead, behind = both = await settled(ask, [pair, (pair[1], pair[0])])
        if isinstance(ahead, Exception) or isinstance(behind, Exception):
            told = tuple(written(one) if isinstance(one, Exception) else one[1] for one in both)
            return Compared(pair, 0.5, feedback=told, error=next(one for one in both if isinstance(one, Exception)))
        share = (ahead[0] + 1 - behind[0]) / 2
        return Compared(pair, share, ahead[0] == behind[0] != 0.5, (ahead[1], behind[1]))

    def _scores(self, found: Candidates, known: Sequence[Compared], lost: Sequence[Compared]) -> list[Score]:
        """Return the score of each distinct answer."""
        count = len(found.texts)
        if not self._by_reference and count < 2:
            alone = without(self.parts, "there is no other answer to compare it with")
            return [Score(self._lone, parts=alone)] * count
        own = [[one for one in known if i in one.pair] for i in range(count)]
        errors = [(one.pair, one.error) for one in lost if one.error is not None]
        kept = [True] * count if self._by_reference else self._connected(count, known)
        values = self._strengths(count, known) if self._fit else [_wins(found, i, own[i]) for i in range(count)]
        scores = []
        for i in range(count):
            if kept[i] and len(own[i]) >= min(self._least, len(own[i]) + sum(i in pair for pair, _ in errors)):
                contradicted = sum(one.contradicted for one in own[i]) / len(own[i])
                told = feedback_of([text for one in own[i] for text in one.told(i)])
                parts = {"contradicted": Score(contradicted)}
                scores.append(Score(round(values[i], DIGITS), parts=parts, feedback=told))
            else:
                about = [one for one in (*lost, *own[i]) if i in one.pair]
                told = feedback_of([text for one in about for text in one.told(i)])
                scores.append(replace(failed_score(first_cause(i, errors), self.parts), feedback=told))
        return scores

    @staticmethod
    def _connected(count: int, known: Sequence[Compared]) -> list[bool]:
        seen = np.zeros((len(known), count), dtype=bool)
        for row, one in zip(seen, known, strict=True):
            row[list(one.pair)] = True
        return [bool(one) for one in largest(connected(seen))]

    def _strengths(self, count: int, known: Sequence[Compared]) -> list[float]:
        wins = np.zeros((count, count))
        for one in known:
            first, second = one.pair
            wins[first, second] += one.share
            wins[second, first] += 1 - one.share
        strengths = bradley_terry(wins, prior=self._prior)
        return list(map(float, chances(strengths) if self._unit else strengths))


def _wins(found: Candidates, candidate: int, own: Sequence[Compared]) -> float:
    """Return the mean share over opponents, one for each rollout that has the opponent's text; copies are ties.

    With all pairs it is the chance to be preferred to another rollout of the group that is picked at random.
    """
    met = [(one.share_of(candidate), max(1, found.copies(one.other(candidate)))) for one in own]
    copies = found.copies(candidate) - 1 if all(one.other(candidate) < len(found.texts) for one in own) else 0
    total = copies + sum(count for _, count in met)
    return (copies / 2 + sum(share * count for share, count in met)) / total if total else 0.5


__all__ = ["Compared", "Pairwise"]
