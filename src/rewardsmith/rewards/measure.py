"""Statistics of a reward over many groups: values, failures by cause, groups without contrast, of each component.

measures = Measures()
for scored in groups:
    measures.add(scored)                # constant memory, however many groups there are
measures.result()["judge"].failed       # {"timeout": 0.02}
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rewardsmith.types import NOT_COMPUTED, Score, ScoredGroup


@dataclass(frozen=True)
class Measured:
    """One component over many groups."""

    name: str  # dotted, as in `Score.named_parts`; "" is the whole reward
    rollouts: int  # for how many it was computed: all but those skipped
    scored: int  # how many of them have a value
    mean: float | None  # of the values; None when there are none
    spread: float | None  # population standard deviation of the values
    low: float | None  # the smallest value
    high: float | None  # the largest value
    failed: Mapping[str, float]  # share of `rollouts` by kind of failure, the most frequent first
    skipped: float  # share of all rollouts for which it was not computed, because it could not change the result
    dropped: float  # share of all rollouts for which it was left out, because it failed for another one of the group
    flat: float | None  # share of the groups with at least two values in which all are equal; None without such
    labels: Mapping[str, float]  # share of all scores by label, the most frequent first


def measure(scored: Iterable[ScoredGroup]) -> dict[str, Measured]:
    """Return the statistics of each component by name, the whole reward ("") first."""
    measures = Measures()
    for group in scored:
        measures.add(group)
    return measures.result()


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return `p50`, `p90`, `p99` and `max` of the times, interpolated; nothing when there are none."""
    if not len(seconds):
        return {}
    values = np.quantile(np.asarray(seconds, dtype=np.float64), [0.5, 0.9, 0.99, 1.0])
    return dict(zip(("p50", "p90", "p99", "max"), values.tolist(), strict=True))


class Measures:
    """The same, one group at a time. The order of the groups, and how they were split, do not matter."""

    def __init__(self) -> None:
        self._parts: dict[str, _PartStatistics] = {}

    def add(self, scored: ScoredGroup) -> None:
        """Count a group."""
        columns: dict[str, list[Score]] = {"": list(scored.scores)}
        for score in scored.scores:
            for name, part in score.named_parts():
                columns.setdefault(name, []).append(part)
        for name, scores in columns.items():
            self._parts.setdefault(name, _PartStatistics()).add(scores)

    def result(self) -> dict[str, Measured]:
        """Return what has been counted so far, by component."""
        return {name: part.result(name) for name, part in self._parts.items()}


class _PartStatistics:
    """Counts of one component, with the mean and the squared distances from it (Welford 1962, Chan et al. 1983)."""

    def __init__(self) -> None:
        self.scored = self.groups = self.flat = 0
        self.mean = self.squares = 0.0
        self.low, self.high = math.inf, -math.inf
        self.failures: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()

    def add(self, scores: Sequence[Score]) -> None:
        values = [score.value for score in scores if score.value is not None]
        self.failures.update(score.failure.kind for score in scores if score.failure is not None)
        self.labels.update(score.label for score in scores if score.label)
        if len(values) > 1:
            self.groups += 1
            self.flat += min(values) == max(values)
        if values:
            mean = math.fsum(values) / len(values)
            total, difference = self.scored + len(values), mean - self.mean
            self.squares += math.fsum((value - mean) ** 2 for value in values)
            self.squares += difference * difference * (self.scored * len(values) / total)
            # The form that is exact for equal means and safe for large ones.
            self.mean = self.mean + difference * (len(values) / total) if self.scored else mean
            self.scored = total
            self.low, self.high = min(self.low, *values), max(self.high, *values)

    def result(self, name: str) -> Measured:
        every = self.scored + self.failures.total()
        skipped, dropped = self.failures["skipped"], self.failures["dropped"]
        computed = every - skipped
        # By count, then by name: the order of the groups must not show.
        own = sorted((-n, kind) for kind, n in self.failures.items() if n and kind not in NOT_COMPUTED)
        labels = sorted((-n, label) for label, n in self.labels.items())
        return Measured(
            name=name,
            rollouts=computed,
            scored=self.scored,
            mean=self.mean if self.scored else None,
            spread=math.sqrt(self.squares / self.scored) if self.scored else None,
            low=self.low if self.scored else None,
            high=self.high if self.scored else None,
            failed={kind: -n / computed for n, kind in own},
            skipped=skipped / every if every else 0.0,
            dropped=dropped / every if every else 0.0,
            flat=self.flat / self.groups if self.groups else None,
            labels={label: -n / every for n, label in labels},
        )
