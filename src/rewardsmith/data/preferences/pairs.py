"""Pairs of a group of answers with scores.

    group = group_of(["good", "bad", "good"], [8, 2, 6])       # one text, one candidate: "good" has 7
    pairs_in(group, Pairing("all"), key="")                     # [Pair(chosen=0, rejected=1, margin=5.0)]

Nothing here depends on the order of the candidates: a group in another order gives the same pairs.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Literal, NamedTuple, get_args

from rewardsmith.errors import UserError, nearest
from rewardsmith.types import Preference, Ranking

Which = Literal["all", "adjacent", "best-worst"]
Ties = Literal["keep", "drop"]

DIGITS = 9
"""Decimal places of scores and margins: what differs less is a rounding error, and a tie."""


class Pair(NamedTuple):
    """Two candidates by their places in the group; a margin of 0 is a tie."""

    chosen: int
    rejected: int
    margin: float


@dataclass(frozen=True)
class Pairing:
    """Which pairs of a group are taken. Candidates with one score make a level; levels are ordered by score.

    Attributes:
        which: `all` pairs; `adjacent`, of one level and the next; `best-worst`, of the first level and the last.
        sample: draw at most so many of them; None takes all.
        least_margin: a pair whose scores differ by less is left out, unless it is a tie.
        ties: whether pairs within a level are taken too; of `best-worst` these are there only where all are tied.
    """

    which: Which = "all"
    sample: int | None = None
    least_margin: float = 0.0
    ties: Ties = "drop"

    def __post_init__(self) -> None:
        if self.which not in get_args(Which):
            raise UserError(f"pairs is {self.which!r}: one of {', '.join(get_args(Which))}")
        if self.ties not in get_args(Ties):
            raise UserError(f"ties is {self.ties!r}: keep or drop")
        if self.sample is not None and self.sample < 1:
            raise UserError(f"sample is {self.sample}: draw at least 1 pair")
        if not 0 <= self.least_margin < math.inf:
            raise UserError(f"least margin is {self.least_margin}: a number of at least 0")


def read_pairing(text: str, *, least_margin: float = 0.0, ties: str = "drop") -> Pairing:
    """Return what `all`, `adjacent`, `best-worst` or `sample:8` asks for.

    Raises:
        UserError: it is none of them.
    """
    which, colon, count = text.strip().partition(":")
    if which == "sample":
        if not (count.isdecimal() and count.isascii() and 0 < len(count) < 10 and int(count)):
            raise UserError(f"pairs is {text!r}: say how many to draw of each group, such as sample:8")
        return Pairing("all", int(count), least_margin, ties)  # type: ignore[arg-type]
    if colon or which not in get_args(Which):
        known = [*get_args(Which), "sample:8"]
        raise UserError(f"pairs is {text!r}: it must be one of {', '.join(known)}.{nearest(which, known)}")
    return Pairing(which, None, least_margin, ties)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Group:
    """The distinct answers of a ranking.

    Attributes:
        candidates: each text once, in the order of the ranking.
        scores: one for each; of a text that was there several times the mean.
        origins: for each the places that it had in the ranking.
    """

    candidates: tuple[str, ...]
    scores: tuple[float, ...]
    origins: tuple[tuple[int, ...], ...]

    def only(self, places: Iterable[int]) -> Group:
        """Return the group of some of the candidates, in the order given."""
        picked = list(places)
        return Group(
            tuple(self.candidates[i] for i in picked),
            tuple(self.scores[i] for i in picked),
            tuple(self.origins[i] for i in picked),
        )


def group_of(candidates: Sequence[str], scores: Sequence[float]) -> Group:
    """Return the distinct answers of a ranking; two copies of one text are one answer, whoever wrote them."""
    places: dict[str, list[int]] = {}
    for i, text in enumerate(candidates):
        places.setdefault(text, []).append(i)
    means = tuple(round(_mean([float(scores[i]) for i in same]), DIGITS) + 0.0 for same in places.values())
    return Group(tuple(places), means, tuple(map(tuple, places.values())))


def _mean(scores: Sequence[float]) -> float:
    try:
        return math.fsum(scores) / len(scores)
    except OverflowError:  # their sum is too large, which their mean never is
        return math.fsum(score / len(scores) for score in scores)


def pairs_in(group: Group, pairing: Pairing, key: str) -> list[Pair]:
    """Return pairs of a group, each once.

    Args:
        group: the distinct answers.
        pairing: which pairs.
        key: seeds the draw of `pairing.sample`; the same for every order of the candidates.
    """
    digests = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in group.candidates]
    found: list[Pair] = []
    for i, j in _places(group.scores, pairing.which):
        margin = round(abs(group.scores[i] - group.scores[j]), DIGITS)
        better = group.scores[i] > group.scores[j]
        if margin == 0:  # nothing says which is first: neither their order nor their alphabet may
            better = digests[i] < digests[j]
        if (pairing.ties == "keep") if margin == 0 else margin >= pairing.least_margin:
            found.append(Pair(i, j, margin) if better else Pair(j, i, margin))
    found.sort(key=lambda pair: (digests[pair.chosen], digests[pair.rejected]))
    return draw(found, pairing.sample, key)


def draw(pairs: list[Pair], most: int | None, key: str) -> list[Pair]:
    """Return at most so many of the pairs, drawn by a key and in the order that they had."""
    if most is None or most >= len(pairs):
        return pairs
    return [pairs[i] for i in sorted(random.Random(key).sample(range(len(pairs)), most))]


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


def key_of(ranking: Ranking, seed: int) -> str:
    """Return what seeds the draws from a group: the same for every order of its candidates and of the rows."""
    digest = hashlib.blake2b(digest_size=16)
    for text in (*(part for m in ranking.prompt.messages for part in (m.role, m.content)), *sorted(ranking.candidates)):
        digest.update(f"{len(text)}:{text}".encode())
    return f"{seed} {digest.hexdigest()}"


def pairs_of(ranking: Ranking, pairing: Pairing | None = None, *, seed: int = 0) -> tuple[Preference, ...]:
    """Return the pairs that a ranking says, as nouns that share its prompt.

    For who has rankings and wants pairs. A trainer that reads rankings itself needs no pairs: it sees the whole group.

    Args:
        ranking: answers with scores; copies of one text count as one, with the mean of their scores.
        pairing: which pairs; None takes all that are no ties.
        seed: decides the draw, where some are drawn.
    """
    group = group_of(ranking.candidates, ranking.scores.tolist())
    return tuple(
        Preference(ranking.prompt, group.candidates[i], group.candidates[j], margin, tied=margin == 0)
        for i, j, margin in pairs_in(group, pairing or Pairing(), key_of(ranking, seed))
    )
