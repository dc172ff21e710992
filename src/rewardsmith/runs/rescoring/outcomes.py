"""What a reward knows of the outcome: whether it puts the better rollout first, and what choosing by it brings.

    outcomes = Outcomes("answer")
    for stored, scored in ...:
        outcomes.add(stored.scores, scored.scores)
    outcomes.result().components[""].best     # mean outcome of the best of n

The outcome is another part: of the reward that scores now, or else of the scores that are stored. What has no outcome,
or no value, does not take part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rewardsmith.algorithms.best_of_n import best_of_n
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.rewards.tree import has_part, walk
from rewardsmith.types import Score

WHOLE = "reward"
"""What the whole of the stored rewards is called."""


@dataclass(frozen=True)
class Ordered:
    """How a component orders rollouts.

    Attributes:
        groups: those in which it gave a rollout with an outcome a value.
        ordered: those of them in which outcomes differ.
        accuracy: share of the pairs of a group that it has in the order of their outcomes, a tie one half, each pair
            weighted by the difference of the outcomes; mean over `ordered`, None without any.
        best: outcome of the rollout with the highest value, ties shared; mean over `groups`, None without any.
    """

    groups: int
    ordered: int
    accuracy: float | None
    best: float | None


@dataclass(frozen=True)
class Known:
    """What the components of a reward know of an outcome.

    Attributes:
        outcome: name of the part.
        source: whether it is a part of the reward that scores now, or of the stored scores.
        groups: those with an outcome; means are over these.
        rollouts: those with an outcome.
        size: rollouts with an outcome in each group; None where groups differ.
        mean: outcome of a rollout drawn at random from its group; None without groups.
        oracle: outcome of the best rollout of each group; None without groups.
        components: by dotted name, "" for the whole; the outcome itself is left out.
    """

    outcome: str
    source: Literal["new", "stored"]
    groups: int
    rollouts: int
    size: int | None
    mean: float | None
    oracle: float | None
    components: Mapping[str, Ordered]


@dataclass
class _Tally:
    groups: int = 0
    ordered: int = 0
    accuracy: float = 0.0
    best: float = 0.0

    def result(self) -> Ordered:
        return Ordered(self.groups, self.ordered, _mean(self.accuracy, self.ordered), _mean(self.best, self.groups))


@dataclass
class Outcomes:
    """Counts groups; constant memory, however many there are.

    Attributes:
        name: of the outcome: a part, or `reward` for the whole of what is stored.
    """

    name: str
    _source: Literal["new", "stored"] = "stored"
    _groups: int = 0
    _rollouts: int = 0
    _mean: float = 0.0
    _oracle: float = 0.0
    _sizes: set[int] = field(default_factory=set)
    _tallies: dict[str, _Tally] = field(default_factory=dict)

    def require(self, reward: Component, old: Sequence[Score] | None) -> None:
        """Raise a `UserError` if there can be no such outcome: as far as that is known before anything is scored.

        Args:
            reward: the reward that will score.
            old: the stored scores of a group; None where there are none.
        """
        stored = _stored(old)
        may_have = not isinstance(reward.reward, Implicit) and has_part(reward, self.name)
        if not may_have and not any(self.name in column for column in stored[:1]):
            parts = (f"{path}.{own}" for path, inner in walk(reward) for own in ("", *inner.declared))
            raise self._nowhere([part.strip(".") for part in parts], stored)

    def add(self, old: Sequence[Score] | None, new: Sequence[Score]) -> None:
        """Count a group.

        Args:
            old: the stored scores; None where there are none.
            new: the scores now.

        Raises:
            UserError: neither has the part.
        """
        columns = [{"": score} | dict(score.named_parts()) for score in new]
        outcomes = _values(self._outcomes(old, columns))
        known = ~np.isnan(outcomes)
        if not known.any():
            return
        self._groups += 1
        self._rollouts += int(known.sum())
        self._sizes.add(int(known.sum()))
        self._mean += float(outcomes[known].mean())
        self._oracle += float(outcomes[known].max())
        for name in columns[0]:
            if name != self.name or self._source == "stored":
                values = _values([column.get(name) for column in columns])
                both = known & ~np.isnan(values)
                self._count(self._tallies.setdefault(name, _Tally()), outcomes[both], values[both])

    def _outcomes(self, old: Sequence[Score] | None, new: Sequence[Mapping[str, Score]]) -> Sequence[Score | None]:
        """Return the scores that are the outcomes, one for each rollout."""
        if any(self.name in column for column in new):  # a rollout that failed may have no parts
            self._source = "new"
            return [column.get(self.name) for column in new]
        stored = _stored(old)
        if not any(self.name in column for column in stored):
            raise self._nowhere(new[0], stored)
        return [column.get(self.name) for column in stored]

    def _nowhere(self, new: Iterable[str], stored: Sequence[Mapping[str, Score]]) -> UserError:
        known = {name for names in (new, *stored[:1]) for name in names if name}
        told = f"{nearest(self.name, known)} Known: {listing(known)}" if known else ""
        if stored:
            return UserError(
                f"--outcome {self.name!r} is no part of the reward, nor of the scores that are stored.{told}"
            )
        return UserError(
            f"--outcome {self.name!r} is no part of the reward, and no scores are stored.{told}\n"
            'Choose a reward of type "sum" that has the outcome as a part beside what is judged by it, such as'
            ' parts.answer = { type = "rule", rule = "exact" }'
        )

    def _count(self, tally: _Tally, outcomes: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        if not len(values):
            return
        tally.groups += 1
        tally.best += best_of_n(outcomes, values, len(values))
        if outcomes.min() < outcomes.max():
            tally.ordered += 1
            tally.accuracy += _in_order(outcomes, values)

    def result(self) -> Known:
        """Return what has been counted so far."""
        return Known(
            outcome=self.name,
            source=self._source,
            groups=self._groups,
            rollouts=self._rollouts,
            size=next(iter(self._sizes)) if len(self._sizes) == 1 else None,
            mean=_mean(self._mean, self._groups),
            oracle=_mean(self._oracle, self._groups),
            components={name: tally.result() for name, tally in self._tallies.items()},
        )


def _in_order(outcomes: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    """Return the share of the pairs in order, weighted by the difference of the outcomes; these are not all equal."""
    possible = won = 0.0
    for outcome, value in zip(outcomes, values, strict=True):  # row by row: a group may hold thousands
        lead = np.maximum(outcome - outcomes, 0)
        possible += float(lead.sum())
        won += float((lead * ((value > values) + 0.5 * (value == values))).sum())
    return won / possible


def _stored(scores: Sequence[Score] | None) -> list[dict[str, Score]]:
    """Return the stored scores of each rollout by name, the whole and its parts."""
    return [{WHOLE: score} | dict(score.named_parts()) for score in scores or ()]


def _values(scores: Sequence[Score | None]) -> NDArray[np.float64]:
    """Return the values, NaN where there is none."""
    return np.array([np.nan if score is None or score.value is None else score.value for score in scores])


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None


__all__ = ["Known", "Ordered", "Outcomes"]
