"""Rewards that train judges: how near a judge's verdict is to one that is known.

The truth is the prompt's answer:

    0.8                     a share of the points, also as text (`GradeAccuracy`)
    {"A": 8, "B": 3}        a score for each letter, as a table or as JSON text (`RankingAccuracy`)
    "A > B = C"             a ranking (`RankingAccuracy`)

The judge's reply is read in the same way in which it is parsed when the judge is used. A reply that cannot be parsed is
worth `invalid_reward`, and the reason is the label of the score; only a prompt without truth is a failure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NoReturn

from pydantic import Field

from rewardsmith.algorithms.ranks import TiePolicy, closeness, credit, margin_agreement, pairwise_agreement
from rewardsmith.errors import UserError
from rewardsmith.masking import shown
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.truth import truth
from rewardsmith.text import grades, rankings
from rewardsmith.text.judge_replies import Unparsable, after_thinking
from rewardsmith.text.rankings import (
    MAX_CANDIDATES,
    NOUN,
    NOUN_PATTERN,
    Output,
    RankingVerdict,
    Strictness,
    levels_of,
    parse_ranking,
    rank_shares,
    write_levels,
)
from rewardsmith.text.rubrics import MAX_POINTS
from rewardsmith.types import Failure, Prompt, Rollout, RolloutGroup, Score

MAX_CHARS = 200_000
"""Characters of a reply that is parsed; the trainer waits meanwhile."""

MAX_SCORE = 1e9
"""No true score is larger: parsers know no such number either."""

_DECIMAL = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")

Credit = Annotated[float, Field(ge=0, le=1)]
InvalidReward = Annotated[float, Field(le=0, description="of a reply that cannot be parsed")]


@dataclass(kw_only=True, eq=False)
class GradeAccuracy:
    """Score a judge by how near its grade is to the true one: max(0, 1 − |grade − truth|)².

    Where the row says how many points can be had, in `extra_info.total` as `rewardsmith prepare graded` writes it, that
    is the total of this prompt. Of the parts, `readable` is 1 where there is a grade and 0 where there is none; `error`
    is |grade − truth|.
    """

    parts: ClassVar[tuple[str, ...]] = ("readable", "error")

    total: Annotated[
        float, Field(ge=0.01, le=MAX_POINTS, description="points, where neither the reply nor the row names them")
    ] = 10.0
    read: Annotated[
        Literal["grade", "number"], Field(description="a grade after a marker, or a number as the last line")
    ] = "grade"
    marker: Annotated[str, Field(pattern=r"\S", description="text before the grade")] = "Total Score"
    above: Annotated[
        Literal["refuse", "clamp"], Field(description="a grade above the total is refused, or it is the total")
    ] = "refuse"
    power: Annotated[float, Field(gt=0, le=100, description="exponent of 1 − error")] = 2.0
    steps: Annotated[
        list[Credit] | None,
        Field(min_length=1, max_length=1_000, description="credit for an error of 0, 1, 2 … points, instead of power"),
    ] = None
    invalid_reward: InvalidReward = 0.0

    def __post_init__(self) -> None:
        if self.steps is not None:
            _require_falling("steps", self.steps)

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt has no true grade, or an invalid total."""
        true_share(prompt)
        self._total_of(prompt)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout."""
        share, total = true_share(group.prompt), self._total_of(group.prompt)
        return tuple(self._score(rollout, share, total) for rollout in group.rollouts)

    def facts(self) -> dict[str, Any]:
        """Return what the verdicts depend on apart from the settings, for the record of a run."""
        return {"parser": grades.PARSER if self.read == "grade" else grades.NUMBER_PARSER}

    def _total_of(self, prompt: Prompt) -> float:
        extra = prompt.info.get("extra_info")
        total = extra.get("total") if isinstance(extra, Mapping) else None
        if total is None:
            return self.total
        if isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total <= MAX_POINTS:
            raise CannotScore("invalid", f"extra_info.total is {shown(total)}: it must be points above 0, or left out")
        return float(total)

    def _score(self, rollout: Rollout, true: float, total: float) -> Score:
        try:
            share = self._share(_reply(rollout), total)
        except Unparsable as why:
            nothing = Failure("skipped", "there is no grade to compare")
            parts = {"readable": Score(0.0), "error": Score(failure=nothing)}
            return Score(self.invalid_reward, parts=parts, feedback=f"not parsed: {why}", label=_label(why))
        error = abs(share - true)
        steps = self.steps
        value = closeness(error, power=self.power) if steps is None else float(credit(error * total, steps))
        parts = {"readable": Score(1.0), "error": Score(error)}
        return Score(value, parts=parts, feedback=f"parsed {share:g}, true {true:g}")

    def _share(self, text: str, total: float) -> float:
        """Return the grade as a share, in [0, 1]."""
        clamp = self.above == "clamp"
        if self.read == "grade":
            return grades.parse_grade(text, total, marker=self.marker, clamp=clamp).share
        number = grades.parse_rating(text)
        if number < 0:
            raise Unparsable("negative grade", f"{number:g}", invalid=True)
        if number > total and not clamp:
            raise Unparsable("more than all points", f"{number:g} out of {total:g}", invalid=True)
        return min(1.0, number / total)


@dataclass(kw_only=True, eq=False)
class RankingAccuracy:
    """Score a judge by the pairs of candidates that it orders rightly, and by how right their distances are.

    The value is scale · (order · share of the pairs with the right relation + margin · mean credit for the pairs'
    distances). The parts are `readable`, 1 or 0; `order`, the share of the pairs; `margin`, the mean credit, where
    scores are written. The last two are 0 where the verdict cannot be parsed.
    """

    output: Annotated[Output, Field(description="what the judge writes: a ranking, scores, or both")] = "both"
    reading: Annotated[Strictness, Field(description="how strictly the form of the reply is parsed")] = "strict"
    noun: Annotated[
        str, Field(pattern=NOUN_PATTERN, description="what the prompt calls candidates, which lenient reading knows")
    ] = NOUN
    lowest: Annotated[float, Field(description="score of the worst candidate possible")] = 0.0
    highest: Annotated[float, Field(description="score of the best candidate possible")] = 10.0
    outside: Annotated[
        Literal["refuse", "accept"], Field(description="what becomes of scores outside of lowest to highest")
    ] = "refuse"
    decimals: Annotated[bool, Field(description="whether 7.5 is a score")] = False
    ties: Annotated[
        TiePolicy,
        Field(description="a tie agrees with a tie only; with anything else by half; or true ties do not count"),
    ] = "strict"
    order: Annotated[float, Field(ge=0, description="weight of the order of the pairs")] = 1.0
    margin: Annotated[float, Field(ge=0, description="weight of their distances, if there are scores")] = 1.0
    margins: Annotated[
        tuple[Credit, ...],
        Field(min_length=1, max_length=1_000, description="credit for a distance that is off by 0, 1, 2 … points"),
    ] = (1.0, 0.6, 0.2)
    scale: Annotated[float, Field(gt=0, description="factor of the two together")] = 1.0
    min_analysis_chars: Annotated[
        int, Field(ge=0, description="characters that must be written before the verdict, for each candidate")
    ] = 0
    format_reward: Annotated[
        float, Field(ge=0, description="added for a parsable verdict; parts of one earn a share")
    ] = 0.0
    invalid_reward: InvalidReward = 0.0

    def __post_init__(self) -> None:
        _require_falling("margins", self.margins)
        if not self.lowest < self.highest:
            raise UserError(f"lowest is {self.lowest:g} and highest {self.highest:g}: the range is empty")
        if self.outside == "accept":
            self.lowest, self.highest = -math.inf, math.inf
        self._scores = self.output != "ranking"
        if not self.order and not (self._scores and self.margin):
            raise UserError("order and margin are both 0: one of them must be above 0")
        self.parts = ("readable", "order", "margin") if self._scores else ("readable", "order")

    def require(self, prompt: Prompt) -> None:
        """Raise `CannotScore` if a prompt has no truth, or one that no reply could ever agree with."""
        truth = true_scores(prompt)
        if self.ties == "ignore" and len(set(truth.scores.values())) == 1:
            _refuse(prompt, 'true scores that are all equal: with ties = "ignore" no pair counts')
        if not self._scores:
            return
        if not truth.marked:
            if self.margin:
                _refuse(prompt, 'a ranking and no true scores: set margin = 0, or output = "ranking"')
            return
        for letter, score in truth.scores.items():
            if not self.lowest <= score <= self.highest:
                odd = f"outside of {self.lowest:g} to {self.highest:g}: set lowest and highest"
                _refuse(prompt, f"the true score {score:g} for {letter}, {odd}")
            if not self.decimals and score != int(score):
                odd = "which is no integer: set decimals = true, or round it"
                _refuse(prompt, f"the true score {score:g} for {letter}, {odd}")

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout."""
        self.require(group.prompt)
        truth = true_scores(group.prompt)
        return tuple(self._score(rollout, truth) for rollout in group.rollouts)

    def facts(self) -> dict[str, Any]:
        """Return what the verdicts depend on apart from the settings, for the record of a run."""
        return {"parser": rankings.PARSER}

    def _score(self, rollout: Rollout, truth: TrueScores) -> Score:
        letters, text = "".join(truth.scores), ""
        try:
            text = _reply(rollout)
            ranked = self._parse(text, letters, self.output, self.reading)
            needed = self.min_analysis_chars * len(letters)
            written = sum(map(len, ranked.analysis.split())) if needed else 0
            if written < needed:
                raise Unparsable("short analysis", f"{written} characters that are not blank, of at least {needed}")
        except Unparsable as why:
            value = self.invalid_reward + (self.format_reward * self._form(text, letters) if self.format_reward else 0)
            parts = dict.fromkeys(self.parts, Score(0.0))
            return Score(value, parts=parts, feedback=f"not parsed: {why}", label=_label(why))
        scores = ranked.scores or rank_shares(ranked.levels)
        guess, true = [scores[letter] for letter in letters], list(truth.scores.values())
        order = pairwise_agreement(true, guess, ties=self.ties)
        parts = {"readable": Score(1.0), "order": Score(order)}
        value = self.order * order
        if self._scores and truth.marked:
            margin = margin_agreement(true, guess, self.margins, ties=self.ties)
            parts["margin"] = Score(margin)
            value += self.margin * margin
        elif self._scores:
            parts["margin"] = Score(failure=Failure("skipped", "a true ranking has no distances"))
        feedback = f"parsed {write_levels(ranked.levels)}, true {write_levels(levels_of(truth.scores))}"
        return Score(self.format_reward + self.scale * value, parts=parts, feedback=feedback)

    def _parse(self, text: str, letters: str, output: Output, reading: Strictness) -> RankingVerdict:
        bounds = {"lowest": self.lowest, "highest": self.highest} if self._scores else {}
        return parse_ranking(
            text, letters, output, **bounds, decimals=self.decimals, strictness=reading, noun=self.noun
        )

    def _form(self, text: str, letters: str) -> float:
        """Return how much of the form an unparsable verdict has: 0, or a share below 1.

        Ranking and scores count each, if a lenient parser finds them; the right form is the rest.
        """
        outputs: tuple[Output, ...] = ("ranking", "scores") if self.output == "both" else (self.output,)
        found = 0
        for output in outputs:
            with suppress(Unparsable):
                self._parse(text, letters, output, "lenient")
                found += 1
        return found / (len(outputs) + 1)


# ---- replies -------------------------------------------------------------------------------------------------------


def _reply(rollout: Rollout) -> str:
    """Return what a judge wrote without its reasoning; `Unparsable` if it was truncated or is too long."""
    if rollout.stop_reason == "length":
        raise Unparsable("truncated", f"by the token limit, after {len(rollout.tokens)} tokens")
    text = after_thinking(rollout.text)
    if len(text) > MAX_CHARS:
        raise Unparsable("too long", f"{len(text):,} characters, above {MAX_CHARS:,}")
    return text


def _label(error: Unparsable) -> str:
    """Return the reason of a rejection as a label that metrics count: `score-out-of-range`."""
    words = error.reason.lower().replace("<", " less than ")
    return re.sub("[^a-z0-9]+", "-", words).strip("-")[:40]


def _require_falling(setting: str, steps: Sequence[float]) -> None:
    """Raise a `UserError` if a larger error would earn more than a smaller one, or none anything."""
    if list(steps) != sorted(steps, reverse=True) or not steps[0]:
        raise UserError(
            f"{setting} = {shown(list(steps))}: the first must be above 0, and none above the one before it"
        )


# ---- truths --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrueScores:
    """The truth about a group."""

    scores: Mapping[str, float]  # of each letter in alphabetical order, higher is better; there are at least two
    marked: bool  # whether these are a teacher's scores, whose distances mean something; a ranking has only an order


def true_share(prompt: Prompt) -> float:
    """Return the true grade of a prompt, from 0 to 1, or raise `CannotScore`."""
    given = truth(prompt)
    number = float(given) if len(given) <= 100 and _DECIMAL.fullmatch(given) else math.nan
    if not 0 <= number <= 1:
        remedy = "it must be a share from 0 to 1, so divide points by the total"
        _refuse(prompt, f"{shown(given)} as the true grade: {remedy}")
    return number


def true_scores(prompt: Prompt) -> TrueScores:
    """Return the true scores of the candidates of a prompt, or raise `CannotScore`."""
    given = prompt.answer
    if isinstance(given, str) and not given.lstrip().startswith("{"):
        return TrueScores(dict(sorted(_true_ranking(prompt, given.strip()).items())), marked=False)
    table = _true_table(prompt, given) if isinstance(given, str) else given
    if not isinstance(table, Mapping):
        what = "no true scores" if table is None else f"{shown(table)} as its answer"
        _refuse(prompt, f'{what}: it must be a table of scores such as {{"A": 8, "B": 3}}, or a ranking')
    scores: dict[str, float] = {}
    for letter, score in sorted(table.items()):
        if score is None:  # Parquet gives every row the letters of the largest group
            continue
        if not re.fullmatch("[A-Z]", letter):
            _refuse(prompt, f"a score for {shown(letter)}: candidates are called A to Z")
        if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) <= MAX_SCORE:
            _refuse(prompt, f"the true score {shown(score)} for {letter}: it must be a number")
        scores[letter] = float(score)
    if len(scores) < 2:
        _refuse(prompt, f"true scores of {len(scores)} candidates: 2 to {MAX_CANDIDATES} can be ranked")
    return TrueScores(scores, marked=True)


def _true_ranking(prompt: Prompt, ranking: str) -> dict[str, float]:
    letters = "".join(sorted(set(re.findall("[A-Z]", ranking[:1_000]))))
    try:
        if len(letters) < 2 or "\n" in ranking:
            raise Unparsable("no ranking line")
        return rank_shares(parse_ranking(ranking, letters, "ranking").levels)
    except Unparsable as error:
        remedy = 'it must be scores as JSON, or a ranking "A > B = C"'
        _refuse(prompt, f"{shown(ranking)} as its answer ({error}): {remedy}")


def _true_table(prompt: Prompt, text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a letter is there twice")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        _refuse(prompt, f"{shown(text)} as its answer, which is no JSON: {error}")


def _refuse(prompt: Prompt, what: str) -> NoReturn:
    raise CannotScore("invalid", f"the prompt {prompt.id!r} has {what}")
