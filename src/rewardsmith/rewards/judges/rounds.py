"""Many calls of a ranking judge, joined into one verdict on a group.

    ask(order) -> Seen            one call: some candidates in some order
    Seen, Seen, … -> Outcome      a share in [0, 1] for each candidate, or why it has none

A call that failed is no vote. Who has no share because of it has the failure instead; the others keep theirs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rewardsmith.algorithms.offsets import connected, largest, without_offsets
from rewardsmith.algorithms.ranks import average_ranks
from rewardsmith.errors import UserError
from rewardsmith.rewards.judges.orders import balanced, heats, windows
from rewardsmith.rewards.judges.together import settled

DIGITS = 9
"""Shares are rounded to so many digits: equal candidates must not differ by a rounding error."""


@dataclass(frozen=True)
class Seen:
    """One answer of the judge.

    Attributes:
        order: the candidates as they were shown.
        shares: of each, 0 for the worst possible and 1 for the best.
        feedback: what the judge wrote.
    """

    order: tuple[int, ...]
    shares: Mapping[int, float]
    feedback: str = ""


@dataclass
class Outcome:
    """What is known of a group.

    Attributes:
        shares: of the candidates whose place is known.
        failures: of all others, the cause.
        seen: the answers that could be read.
        unread: the others, without shares.
    """

    shares: dict[int, float] = field(default_factory=dict)
    failures: dict[int, Exception] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    unread: list[Seen] = field(default_factory=list)


Ask = Callable[[tuple[int, ...]], Awaitable[Seen]]


@dataclass(frozen=True)
class Design:
    """How a group is judged.

    Attributes:
        most: candidates in one call.
        orders: in which the same candidates are shown.
        least: orders of them that must be readable.
        overlap: candidates that neighbouring subgroups share.
        tournament: larger groups are judged in heats, not in overlapping subgroups.
        ordinal: whether the judge gives no more than an order.
    """

    most: int = 8
    orders: int = 1
    least: int = 1
    overlap: int = 2
    tournament: bool = False
    ordinal: bool = False

    def __post_init__(self) -> None:
        if self.least > self.orders:
            raise UserError(f"least_orders is {self.least}, more than orders = {self.orders}")
        if self.overlap >= self.most:
            raise UserError(f"overlap is {self.overlap}: it must be less than most = {self.most}")

    async def judge(self, ask: Ask, members: Sequence[int]) -> Outcome:
        """Make all calls that a group needs, and join what they say."""
        if self.tournament and len(members) > self.most:
            return await by_tournament(ask, members, self)
        return await by_subgroups(ask, members, self)


async def several(ask: Ask, members: Sequence[int], design: Design) -> list[Seen]:
    """Ask about the same candidates in several orders, as many as there are for so few.

    Raises:
        Exception: what the first call raised that failed, when too few answers are left.
    """
    answers = await settled(ask, balanced(members, design.orders))
    seen = [answer for answer in answers if isinstance(answer, Seen)]
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    if errors and len(seen) < min(design.least, len(answers)):
        raise errors[0]
    return seen


async def by_subgroups(ask: Ask, members: Sequence[int], design: Design) -> Outcome:
    """Judge overlapping subgroups at once, and join their scores through the candidates that they share.

    Every answer is a panel with a level of its own; see `without_offsets`. Joined shares that leave [0, 1] are moved
    back together, and shrunk if they must be; those that say no more than an order (`ordinal`) are made into one order
    of all. Where failures have left candidates unconnected, the largest connected set keeps its shares.
    """
    subgroups = windows(members, design.most, design.overlap)
    answers = await settled(lambda subgroup: several(ask, subgroup, design), subgroups)
    seen = [one for answer in answers if not isinstance(answer, Exception) for one in answer]
    place = {candidate: i for i, candidate in enumerate(members)}
    scores = np.full((len(seen), len(members)), np.nan)
    for row, one in zip(scores, seen, strict=True):
        row[[place[candidate] for candidate in one.order]] = [one.shares[candidate] for candidate in one.order]
    kept = largest(connected(~np.isnan(scores)))
    found = [candidate for candidate in members if kept[place[candidate]]]
    used = scores[:, kept][~np.isnan(scores[:, kept]).all(axis=1)]
    shares = without_offsets(used).round(DIGITS) if found else np.empty(0)
    if len(subgroups) > 1:
        shares = _placed(shares) if design.ordinal else _fitted(shares)
    errors = [(who, a) for who, a in zip(subgroups, answers, strict=True) if isinstance(a, Exception)]
    return Outcome(
        shares=dict(zip(found, shares.tolist(), strict=True)),
        failures={lost: first_cause(lost, errors) for lost in members if not kept[place[lost]]},
        seen=seen,
    )


async def by_tournament(ask: Ask, members: Sequence[int], design: Design) -> Outcome:
    """Judge the candidates in heats, from which the better half advances, until one heat holds all that are left.

    The share of a candidate is (rounds that it survived + its mean share in its last heat) / rounds. Who advances among
    equals is drawn by lot. The members of a heat that failed have failed; the others go on. One that failures have left
    without an opponent has survived the rounds before; if nobody has ever seen it, it has failed with them.
    """
    outcome, alive, rounds = Outcome(), list(members), 0
    last: dict[int, float] = {}
    while len(alive) > 1:
        groups = [heat for heat in heats(alive, design.most) if len(heat) > 1]
        byes = set(alive) - {candidate for heat in groups for candidate in heat}
        is_final = len(alive) <= design.most
        answers = await settled(lambda heat: several(ask, heat, design), groups)
        alive = [candidate for candidate in alive if candidate in byes]
        for heat, answer in zip(groups, answers, strict=True):
            if isinstance(answer, Exception):
                outcome.failures |= dict.fromkeys(heat, answer)
                continue
            outcome.seen += answer
            means = {i: round(sum(one.shares[i] for one in answer) / len(answer), DIGITS) for i in heat}
            last |= {i: rounds + means[i] for i in heat}
            best = sorted(heat, key=means.__getitem__, reverse=True)[: (len(heat) + 1) // 2]  # heats are drawn: so lots
            alive += [] if is_final else best
        rounds += 1
    for i in alive:  # nobody is left to meet it
        if i in last:
            last[i] = max(last[i], rounds - 1)
        else:
            outcome.failures[i] = next(iter(outcome.failures.values()))
    outcome.shares = {i: at / rounds for i, at in last.items() if i not in outcome.failures}
    return outcome


def first_cause(candidate: int, errors: Sequence[tuple[Sequence[int], Exception]]) -> Exception:
    """Return why a candidate has no share: the first call about it that failed, or else the first of all.

    A candidate of which every call was answered has none when calls about others failed, and left it unconnected.
    """
    own = [error for members, error in errors if candidate in members]
    return (own or [error for _, error in errors])[0]


def _fitted(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return shares within [0, 1]: clipping each alone would make different candidates equal."""
    if not len(shares):
        return shares
    low, high = float(shares.min()), float(shares.max())
    if high - low > 1:
        return (shares - low) / (high - low)
    return (shares - min(low, 0.0) - max(high - 1.0, 0.0)).clip(0.0, 1.0).round(DIGITS)  # clip: rounding errors


def _placed(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of the others that each is ahead of, a tie counting one half."""
    return (average_ranks(shares) - 1) / max(1, len(shares) - 1)
