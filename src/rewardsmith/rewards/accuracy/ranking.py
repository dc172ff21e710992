"""Train a judge that ranks: how well its ranking and its scores agree with the true ones."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from rewardsmith.algorithms.agreement import margin_agreement
from rewardsmith.algorithms.ranks import TiePolicy, pairwise_agreement
from rewardsmith.errors import UserError
from rewardsmith.rewards.accuracy.reading import Credit, answered, label_of, require_falling
from rewardsmith.rewards.accuracy.truths import Scored, scores_of
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.judges.unused import require_unset
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.rankings import (
    PARSER,
    Output,
    RankingVerdict,
    Strictness,
    levels_of,
    parse_ranking,
    rank_shares,
    write_levels,
)
from rewardsmith.types import Failure, Prompt, Rollout, RolloutGroup, Score

MARGINS = (1.0, 0.6, 0.2)
"""What a margin that is off by 0, 1 and 2 points earns, by default."""


class RankingAccuracy:
    """Score a judge by the pairs of candidates that it orders rightly, and by how right their distances are.

    The truth is the prompt's answer: a score for each letter, or a ranking. The value is scale · (order · share of the
    pairs with the right relation + margin · mean credit for the pairs' distances). A verdict that cannot be read is
    worth nothing; why it could not is the label of the score.

    Attributes:
        parts: `readable`, 1 or 0; `order`, the share of the pairs; `margin`, the mean credit, where scores are written.
            Both are 0 where the verdict cannot be read.
    """

    def __init__(
        self,
        *,
        output: Annotated[Output, Field(description="what the judge writes: a ranking, scores, or both")] = "both",
        reading: Annotated[Strictness, Field(description="how much of the form is overlooked")] = "strict",
        lowest: Annotated[float | None, Field(description="score of the worst candidate possible; not set: 0")] = None,
        highest: Annotated[float | None, Field(description="score of the best candidate possible; not set: 10")] = None,
        outside: Annotated[
            Literal["refuse", "accept"], Field(description="what becomes of scores outside of lowest to highest")
        ] = "refuse",
        decimals: Annotated[bool, Field(description="whether 7.5 is a score")] = False,
        ties: Annotated[
            TiePolicy,
            Field(description="a tie agrees with a tie only; with anything else by half; or true ties do not count"),
        ] = "strict",
        order: Annotated[float, Field(ge=0, allow_inf_nan=False, description="weight of the order of the pairs")] = 1.0,
        margin: Annotated[
            float | None,
            Field(ge=0, allow_inf_nan=False, description="weight of their distances; not set: 1, if there are scores"),
        ] = None,
        margins: Annotated[
            list[Credit] | None,
            Field(
                min_length=1,
                max_length=1_000,
                description="credit for a distance that is off by 0, 1, 2 … points; not set: 1, 0.6, 0.2",
            ),
        ] = None,
        scale: Annotated[float, Field(gt=0, allow_inf_nan=False, description="factor of the two together")] = 1.0,
        least_analysis: Annotated[
            int, Field(ge=0, description="characters that must be written before the verdict, for each candidate")
        ] = 0,
        format_reward: Annotated[
            float,
            Field(ge=0, allow_inf_nan=False, description="added for a readable verdict; parts of one earn a share"),
        ] = 0.0,
        invalid_reward: Annotated[
            float, Field(le=0, allow_inf_nan=False, description="of a verdict that cannot be read")
        ] = 0.0,
    ) -> None:
        if output == "ranking":
            unused = {"lowest": lowest, "highest": highest, "margin": margin, "margins": margins}
            require_unset('output = "ranking"', **unused, decimals=decimals or None)
        if outside == "accept":
            require_unset('outside = "accept"', lowest=lowest, highest=highest)
        if margins is not None:
            require_falling("margins", margins)
        self._bounds = (0.0 if lowest is None else lowest, 10.0 if highest is None else highest)
        if not self._bounds[0] < self._bounds[1]:
            raise UserError(f"lowest is {self._bounds[0]:g} and highest {self._bounds[1]:g}: the range is empty")
        if outside == "accept" or output == "ranking":
            self._bounds = (-math.inf, math.inf)
        self._output, self._reading, self._decimals, self._ties = output, reading, decimals, ties
        self._order = order
        self._margin = 0.0 if output == "ranking" else 1.0 if margin is None else margin
        if not order and not self._margin:
            raise UserError("order and margin weigh nothing: one of them must be above 0")
        self._margins, self._scale, self._least = tuple(margins or MARGINS), scale, least_analysis
        self._format, self._invalid = format_reward, invalid_reward
        self.parts = ("readable", "order") if output == "ranking" else ("readable", "order", "margin")

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt has no truth, or one that no answer could ever agree with."""
        truth = scores_of(prompt)
        if self._ties == "ignore" and truth.tied:
            raise CannotScore(
                "invalid",
                f'the prompt {prompt.id!r} has true scores that are all equal: with ties = "ignore" no pair counts',
            )
        if self._output == "ranking":
            return
        if not truth.marked and self._margin:
            raise CannotScore(
                "invalid",
                f"the prompt {prompt.id!r} has a ranking and no true scores, so that distances cannot be compared:"
                ' set margin = 0, or output = "ranking"',
            )
        if truth.marked:
            self._require_writable(prompt, truth)

    def _require_writable(self, prompt: Prompt, truth: Scored) -> None:
        """Raise `CannotScore` if the reader would refuse the true scores themselves."""
        lowest, highest = self._bounds
        for letter, score in truth.scores.items():
            if not lowest <= score <= highest:
                odd = f"outside of {lowest:g} to {highest:g}: set lowest and highest"
            elif not self._decimals and score != int(score):
                odd = "which is no integer: set decimals = true, or round it"
            else:
                continue
            raise CannotScore("invalid", f"the prompt {prompt.id!r} has the true score {score:g} for {letter}, {odd}")

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; what the judge wrote is never a failure, only a prompt without truth is."""
        self.require(group.prompt)
        truth = scores_of(group.prompt)
        return tuple(self._score(rollout, truth) for rollout in group.rollouts)

    def facts(self) -> dict[str, Any]:
        """Return what the verdicts depend on beside the settings, for the record of a run."""
        return {"parser": PARSER}

    def _score(self, rollout: Rollout, truth: Scored) -> Score:
        text = ""
        try:
            text = answered(rollout)
            ranked = self._read(text, truth.letters, self._output, self._reading)
            self._require_analysis(ranked)
        except Unparsable as why:
            value = self._invalid + (self._format * self._form(text, truth.letters) if self._format else 0.0)
            parts = dict.fromkeys(self.parts, Score(0.0))
            return Score(value, parts=parts, feedback=f"not read: {why}", label=label_of(why))
        scores = ranked.scores or rank_shares(ranked.levels)
        guess, true = [scores[letter] for letter in truth.letters], list(truth.scores.values())
        order = pairwise_agreement(true, guess, ties=self._ties)
        parts = {"readable": Score(1.0), "order": Score(order)}
        value = self._order * order
        if self._output != "ranking" and truth.marked:
            margin = margin_agreement(true, guess, self._margins, ties=self._ties)
            parts["margin"] = Score(margin)
            value += self._margin * margin
        elif self._output != "ranking":
            parts["margin"] = Score(failure=Failure("skipped", "a true ranking has no distances"))
        told = f"read {write_levels(ranked.levels)}, true {write_levels(levels_of(truth.scores))}"
        return Score(self._format + self._scale * value, parts=parts, feedback=told)

    def _read(self, text: str, letters: str, output: Output, reading: Strictness) -> RankingVerdict:
        lowest, highest = self._bounds
        return parse_ranking(
            text, letters, output, lowest=lowest, highest=highest, decimals=self._decimals, strictness=reading
        )

    def _require_analysis(self, ranked: RankingVerdict) -> None:
        needed = self._least * sum(map(len, ranked.levels))
        written = sum(map(len, ranked.analysis.split())) if needed else 0
        if written < needed:
            raise Unparsable("short analysis", f"{written} characters that are not blank, of at least {needed}")

    def _form(self, text: str, letters: str) -> float:
        """Return how much of the form a verdict has that was not read: 0, or a share below 1.

        Ranking and scores count each, if a lenient reader finds them; that they stand in the right form is the rest.
        """
        wanted: tuple[Output, ...] = ("ranking", "scores") if self._output == "both" else (self._output,)
        return sum(self._finds(text, letters, output) for output in wanted) / (len(wanted) + 1)

    def _finds(self, text: str, letters: str, output: Output) -> bool:
        try:
            self._read(text, letters, output, "lenient")
        except Unparsable:
            return False
        return True


__all__ = ["MARGINS", "RankingAccuracy"]
