"""Pairs of a group of answers with scores. The order of the answers plays no part.

group = group_of(["good", "bad", "good"], [8, 2, 6])       # one text is one candidate: "good" has 7
pairs_in(group)                                             # [ScoredPair(chosen=0, rejected=1, margin=5.0)]
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Any, Literal, NamedTuple

from rewardsmith.data.prepare.prepare_job import digest_of
from rewardsmith.types import Preference, Ranking

Which = Literal["all", "adjacent", "best-worst"]

DIGITS = 9
"""Decimal places of scores and margins: what differs less is a rounding error, and a tie."""


class ScoredPair(NamedTuple):
    """Two candidates by their places in the group; a margin of 0 is a tie."""

    chosen: int
    rejected: int
    margin: float


@dataclass(frozen=True)
class Group:
    """The distinct answers of a ranking: each text once, the mean of its scores, and its places in the ranking."""

    candidates: tuple[str, ...]
    scores: tuple[float, ...]
    places: tuple[tuple[int, ...], ...]

    def only(self, picked: Sequence[int]) -> Group:
        """Return the group of some of the candidates."""
        return Group(
            tuple(self.candidates[i] for i in picked),
            tuple(self.scores[i] for i in picked),
            tuple(self.places[i] for i in picked),
        )


def group_of(candidates: Sequence[str], scores: Sequence[float]) -> Group:
    """Return the distinct answers of a ranking; two copies of one text are one answer, whoever wrote them."""
    places: dict[str, list[int]] = {}
    for i, text in enumerate(candidates):
        places.setdefault(text, []).append(i)
    # Each score is divided before the sum, which could overflow.
    means = (math.fsum(float(scores[i]) / len(same) for i in same) for same in places.values())
    return Group(tuple(places), tuple(round(mean, DIGITS) + 0.0 for mean in means), tuple(map(tuple, places.values())))


def pairs_in(
    group: Group,
    which: Which = "all",
    *,
    sample: int | None = None,
    min_margin: float = 0.0,
    keep_ties: bool = False,
    key: str = "",
) -> list[ScoredPair]:
    """Return pairs of a group, each once; `key` seeds the draw of at most `sample` of them.

    Candidates with one score make a level; levels are ordered by score. `adjacent` pairs are of one level and the next,
    `best-worst` ones of the first and the last. `keep_ties` takes pairs within a level too, of `best-worst` only where
    all candidates are tied.
    """
    digests = [digest_of(text) for text in group.candidates]
    found: list[ScoredPair] = []
    for i, j in _places(group.scores, which):
        margin = round(abs(group.scores[i] - group.scores[j]), DIGITS)
        # In a tie neither the order of the candidates nor their alphabet may decide which is first.
        better = group.scores[i] > group.scores[j] if margin else digests[i] < digests[j]
        if margin >= min_margin if margin else keep_ties:
            found.append(ScoredPair(i, j, margin) if better else ScoredPair(j, i, margin))
    found.sort(key=lambda pair: (digests[pair.chosen], digests[pair.rejected]))
    if sample is None or sample >= len(found):
        return found
    return [found[i] for i in sorted(random.Random(key).sample(range(len(found)), sample))]


def _places(scores: Sequence[float], which: Which) -> Iterable[tuple[int, int]]:
    if which == "all":
        return combinations(range(len(scores)), 2)
    by_score: dict[float, list[int]] = {}
    for i, score in enumerate(scores):
        by_score.setdefault(score, []).append(i)
    levels = [by_score[score] for score in sorted(by_score, reverse=True)]
    if which == "adjacent":
        between = [pair for upper, lower in pairwise(levels) for pair in product(upper, lower)]
        return [*between, *(pair for level in levels for pair in combinations(level, 2))]
    return product(levels[0], levels[-1]) if len(levels) > 1 else combinations(levels[0], 2)


def draw_key(ranking: Ranking, seed: int) -> str:
    """Return what seeds the draws from a group: the same for every order of its candidates and of the rows."""
    return digest_of(seed, ranking.prompt.messages, sorted(ranking.candidates))


def pairs_of(ranking: Ranking, which: Which = "all", *, seed: int = 0, **options: Any) -> tuple[Preference, ...]:
    """Return the pairs that a ranking implies, by default all that are not ties; `options` are those of `pairs_in`."""
    group = group_of(ranking.candidates, ranking.scores.tolist())
    return tuple(
        Preference(ranking.prompt, group.candidates[i], group.candidates[j], margin, tied=margin == 0)
        for i, j, margin in pairs_in(group, which, key=draw_key(ranking, seed), **options)
    )
