"""Old reward against new: how far they agree, and which rollouts would be pushed the other way.

    comparison = Comparison(show=10)
    for stored, scored in ...:
        comparison.add(stored.group, stored.scores, scored.scores)
    comparison.result().turned

The advantage of a rollout is its reward minus the mean of those in its group that could be scored. A failure is counted
and is never a number: a rollout that either side could not score takes part in no correlation.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rewardsmith.algorithms.ranks import kendall_tau_b, spearman
from rewardsmith.types import RolloutGroup, Score

SAME = 1e-12
"""Relative difference below which two rewards are the same: sums may be rounded in another order."""


@dataclass(frozen=True)
class Turn:
    """A rollout whose advantage changes sign.

    Attributes:
        prompt: its id.
        index: of the rollout in its group, from 0.
        old: reward.
        new: reward.
        old_advantage: reward minus the mean of its group.
        new_advantage: the same under the new reward.
        text: of the rollout, as the policy wrote it: hostile.
    """

    prompt: str
    index: int
    old: float
    new: float
    old_advantage: float
    new_advantage: float
    text: str


@dataclass(frozen=True)
class Compared:
    """Two rewards over the same rollouts.

    Attributes:
        rollouts: all of them.
        both: those that both could score; means, changes and correlations are over these.
        old_mean: None when there are none.
        new_mean: None when there are none.
        changed: how many have another reward now.
        spearman: ρ over all; None where it is not defined.
        kendall: τ_b over all; None where it is not defined.
        groups: all of them.
        ranked: groups in which both rewards tell at least two rollouts apart; the next two are means over these.
        spearman_within: mean ρ within a group; None without such groups.
        kendall_within: mean τ_b within a group; None without such groups.
        turned: how many advantages change from above 0 to below, or the other way round.
        to_zero: how many advantages become 0.
        from_zero: how many advantages were 0 and are no longer.
        turns: the turned ones with the largest change, at most as many as were asked for.
        old_failed: rollouts by the kind of failure that they had.
        new_failed: rollouts by the kind of failure that they have now.
        only_old_failed: rollouts that have a reward now, and had none.
        only_new_failed: rollouts that had a reward, and have none now.
        left_out: parts that do not count on either side: the stored values have none of them.
    """

    rollouts: int
    both: int
    old_mean: float | None
    new_mean: float | None
    changed: int
    spearman: float | None
    kendall: float | None
    groups: int
    ranked: int
    spearman_within: float | None
    kendall_within: float | None
    turned: int
    to_zero: int
    from_zero: int
    turns: Sequence[Turn]
    old_failed: Mapping[str, int]
    new_failed: Mapping[str, int]
    only_old_failed: int
    only_new_failed: int
    left_out: Sequence[str] = ()


class Comparison:
    """Collects groups; 16 bytes for each rollout, whatever its size.

    Args:
        show: how many turned rollouts to keep.

    Attributes:
        left_out: parts that count on neither side.
    """

    def __init__(self, show: int = 10) -> None:
        self.left_out: set[str] = set()
        self._show = show
        self._old, self._new = array("d"), array("d")
        self._within: list[tuple[float, float]] = []
        self._counts: Counter[str] = Counter()
        self._failures: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._turns: list[tuple[float, int, Turn]] = []

    def add(self, group: RolloutGroup, old: Sequence[Score], new: Sequence[Score]) -> None:
        """Count a group."""
        self._counts.update(groups=1, rollouts=len(group.rollouts))
        for scores, failures in zip((old, new), self._failures, strict=True):
            failures.update(score.failure.kind for score in scores if score.failure is not None)
        before, after = advantages(old), advantages(new)
        pairs: list[tuple[float, float]] = []
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            if a.value is None or b.value is None:
                self._counts["only_old_failed"] += b.value is not None
                self._counts["only_new_failed"] += a.value is not None
                continue
            pairs.append((a.value, b.value))
            self._counts["changed"] += not math.isclose(a.value, b.value, rel_tol=SAME, abs_tol=SAME)
            first, second = before[i], after[i]
            assert first is not None
            assert second is not None
            self._turn(Turn(group.prompt.id, i, a.value, b.value, first, second, group.rollouts[i].text))
        self._rank(pairs)

    def _turn(self, turn: Turn) -> None:
        old, new = turn.old_advantage, turn.new_advantage
        self._counts["to_zero"] += bool(old and not new)
        self._counts["from_zero"] += bool(new and not old)
        if (old > 0 and new < 0) or (old < 0 and new > 0):
            self._counts["turned"] += 1
            # Of equal ones the earlier stays: the later has the smaller number.
            entry = (abs(new - old), -self._counts["turned"], turn)
            if len(self._turns) < self._show:
                heapq.heappush(self._turns, entry)
            elif self._turns:
                heapq.heappushpop(self._turns, entry)

    def _rank(self, pairs: Sequence[tuple[float, float]]) -> None:
        old, new = [a for a, _ in pairs], [b for _, b in pairs]
        self._old.extend(old)
        self._new.extend(new)
        if len(set(old)) > 1 and len(set(new)) > 1:
            self._within.append((spearman(old, new), kendall_tau_b(old, new)))

    def result(self) -> Compared:
        """Return what has been counted so far."""
        counts, within = self._counts, self._within
        old, new = np.array(self._old), np.array(self._new)
        return Compared(
            rollouts=counts["rollouts"],
            both=len(self._old),
            old_mean=_mean(self._old),
            new_mean=_mean(self._new),
            changed=counts["changed"],
            spearman=_defined(spearman(old, new)),
            kendall=_defined(kendall_tau_b(old, new)),
            groups=counts["groups"],
            ranked=len(within),
            spearman_within=_mean([rho for rho, _ in within]),
            kendall_within=_mean([tau for _, tau in within]),
            turned=counts["turned"],
            to_zero=counts["to_zero"],
            from_zero=counts["from_zero"],
            turns=[turn for _, _, turn in sorted(self._turns, key=lambda entry: entry[:2], reverse=True)],
            old_failed=dict(self._failures[0].most_common()),
            new_failed=dict(self._failures[1].most_common()),
            only_old_failed=counts["only_old_failed"],
            only_new_failed=counts["only_new_failed"],
            left_out=sorted(self.left_out),
        )


def advantages(scores: Sequence[Score]) -> list[float | None]:
    """Return reward minus the mean of those that could be scored; None for those that could not.

    What is left by rounding is 0: a rollout as good as its group must not have a sign.
    """
    values = [score.value for score in scores if score.value is not None]
    if not values:
        return [None] * len(scores)
    mean = math.fsum(values) / len(values)
    rounding = SAME * max(map(abs, values))
    apart = [None if score.value is None else score.value - mean for score in scores]
    return [0.0 if value is not None and abs(value) <= rounding else value for value in apart]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if len(values) else None


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
