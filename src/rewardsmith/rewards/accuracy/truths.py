"""What a judge's verdict is compared with: a teacher's grade, or a teacher's scores of a group.

0.8                     a share of what can be had, also as text
{"A": 8, "B": 3}        a score for each letter, as a table or as JSON text
"A > B = C"             a ranking
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from rewardsmith.problems import shown
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.truth import truth
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.text.rankings import MAX_CANDIDATES, parse_ranking, rank_shares
from rewardsmith.types import Prompt

LARGEST = 1e9
"""No true score is larger: readers know no such number either."""

_DECIMAL = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")


@dataclass(frozen=True)
class Scored:
    """The truth about a group.

    Attributes:
        scores: of each letter, higher is better; there are at least two.
        marked: whether these are a teacher's scores, whose distances mean something; a ranking has an order alone.
    """

    scores: Mapping[str, float]
    marked: bool

    @property
    def letters(self) -> str:
        """What the candidates are called, in alphabetical order."""
        return "".join(self.scores)

    @property
    def tied(self) -> bool:
        """Whether no candidate is better than another."""
        return len(set(self.scores.values())) == 1


def share_of(prompt: Prompt) -> float:
    """Return the true grade of a prompt, from 0 to 1.

    Raises:
        CannotScore: `invalid`; the prompt has none.
    """
    given = truth(prompt)
    number = float(given) if len(given) <= 100 and _DECIMAL.fullmatch(given) else math.nan
    if not 0 <= number <= 1:
        _refuse(
            prompt, f"{shown(given)} as the true grade: it must be a share from 0 to 1, so divide points by the total"
        )
    return number


def scores_of(prompt: Prompt) -> Scored:
    """Return the true scores of the candidates of a prompt.

    Raises:
        CannotScore: `invalid`; the prompt has none, or fewer than two.
    """
    given = prompt.answer
    if isinstance(given, str) and not given.lstrip().startswith("{"):
        return Scored(dict(sorted(_ranked(prompt, given.strip()).items())), marked=False)
    table = _parsed(prompt, given) if isinstance(given, str) else given
    if not isinstance(table, Mapping):
        what = "no true scores" if table is None else f"{shown(table)} as its answer"
        _refuse(prompt, f'{what}: it must be a table of scores such as {{"A": 8, "B": 3}}, or a ranking')
    scores: dict[str, float] = {}
    for letter, score in sorted(table.items()):
        if score is None:  # Parquet gives every row the letters of the largest group
            continue
        if not re.fullmatch("[A-Z]", letter):
            _refuse(prompt, f"a score for {shown(letter)}: candidates are called A to Z")
        if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) <= LARGEST:
            _refuse(prompt, f"the true score {shown(score)} for {letter}: it must be a number")
        scores[letter] = float(score)
    if len(scores) < 2:
        _refuse(prompt, f"true scores of {len(scores)} candidates: 2 to {MAX_CANDIDATES} can be ranked")
    return Scored(scores, marked=True)


def _ranked(prompt: Prompt, ranking: str) -> dict[str, float]:
    letters = "".join(sorted(set(re.findall("[A-Z]", ranking[:1_000]))))
    try:
        if len(letters) < 2 or "\n" in ranking:
            raise Unparsable("no ranking line")
        return rank_shares(parse_ranking(ranking, letters, "ranking").levels)
    except Unparsable as error:
        _refuse(
            prompt, f'{shown(ranking)} as its answer ({error}): it must be scores as JSON, or a ranking "A > B = C"'
        )


def _parsed(prompt: Prompt, text: str) -> Any:
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


__all__ = ["Scored", "scores_of", "share_of"]
