"""Statistics of new scores: against the stored ones (`--compare`), and against an outcome (`--outcome`).

The advantage of a rollout is its reward minus the mean of the scored rollouts of its group. A failure is counted and is
never a number: a rollout that either reward could not score takes part in no correlation.
"""

from __future__ import annotations

import heapq
import math
import tomllib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rewardsmith.algorithms.ranks import best_of_n, kendall_tau_b, spearman
from rewardsmith.console import Columns, Table, count_of, format_number
from rewardsmith.data.rows import printable
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.compose import Sum
from rewardsmith.rewards.implicit import Implicit
from rewardsmith.rewards.tree import has_part, walk
from rewardsmith.runs.stored_rollouts import StoredGroup
from rewardsmith.storage import ResumableJsonl
from rewardsmith.trainers import STAGES
from rewardsmith.types import RolloutGroup, Score

TOLERANCE = 1e-12
"""Relative difference below which two rewards are the same: sums may be rounded in another order."""

STORED_REWARD = "reward"
"""Name of the whole stored score as an outcome."""

MAX_TEXT = 60
"""Characters of a rollout that are shown, from its beginning."""

Vector = NDArray[np.float64]


def component_name(name: str) -> str:
    """Return a component as a table shows it: the whole first, its parts indented below it."""
    return f"  {name}" if name else "reward"


# ---- stored scores against new ones --------------------------------------------------------------------------------


@dataclass(frozen=True)
class SignChange:
    """A rollout whose advantage changes sign; `index` is its place in the group."""

    prompt: str
    index: int
    old: float
    new: float
    old_advantage: float
    new_advantage: float
    text: str


@dataclass(frozen=True)
class Compared:
    """Two rewards over the same rollouts: the fields of `--json`; a mean or correlation without values is None.

    Means, changes and correlations are over the rollouts that `both` scored, `*_within` are means over the groups in
    which neither reward is constant (`ranked`), and `left_out` are the parts that count on neither side.
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
    sign_changes: int
    largest_changes: Sequence[SignChange]
    old_failed: Mapping[str, int]
    new_failed: Mapping[str, int]
    left_out: Sequence[str] = ()

    def tables(self) -> list[Table]:
        """Return the comparison, and the largest changes of sign, for people."""
        old, new = (
            ", ".join(f"{kind} {count:,}" for kind, count in kinds.items()) or "none"
            for kinds in (self.old_failed, self.new_failed)
        )
        over_all = f"{format_number(self.spearman)}, {format_number(self.kendall)}"
        within = f"{format_number(self.spearman_within)}, {format_number(self.kendall_within)}"
        rows = [
            ("mean, where both scored", format_number(self.old_mean), format_number(self.new_mean)),
            ("could not score", old, new),
            ("changed", "", f"{self.changed:,} of {self.both:,} rollouts that both scored"),
            ("Spearman and Kendall τ_b over all", "", over_all),
            ("the same within a group, mean", "", within),
            ("groups where both rewards vary", "", f"{self.ranked:,} of {self.groups:,}"),
            ("advantages that change sign", "", f"{self.sign_changes:,}"),
        ]
        names = ", ".join(printable(name, 60) for name in self.left_out)
        note = f"Both without {names}: a run stores the value of the sum without its implicit rewards." if names else ""
        tables = [Table("old reward against new", {"": "text", "old": "text", "new": "text"}, rows, note)]
        if not self.largest_changes:
            return tables
        columns: Columns = {"prompt": "text", "#": "count", "reward": "text", "advantage": "text", "text": "text"}
        changes = [
            (
                printable(one.prompt, 40),
                one.index,
                f"{format_number(one.old)} → {format_number(one.new)}",
                f"{one.old_advantage:+.3g} → {one.new_advantage:+.3g}",
                one.text,
            )
            for one in self.largest_changes
        ]
        title = f"the {len(changes)} largest of {self.sign_changes:,} changes of sign"
        return [*tables, Table(title, columns, changes)]


class Comparison:
    """Collects groups, with 16 bytes for each rollout; lists at most `max_changes` sign changes."""

    def __init__(self, max_changes: int = 10) -> None:
        self.left_out: set[str] = set()
        self._max_changes = max_changes
        self._old, self._new = array("d"), array("d")
        self._within: list[tuple[float, float]] = []
        self._counts: Counter[str] = Counter()
        self._failures: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._changes: list[tuple[float, int, SignChange]] = []

    def add(self, group: RolloutGroup, old: Sequence[Score], new: Sequence[Score]) -> None:
        """Count a group."""
        self._counts.update(groups=1, rollouts=len(group.rollouts))
        for scores, failures in zip((old, new), self._failures, strict=True):
            failures.update(score.failure.kind for score in scores if score.failure is not None)
        before, after = advantages(old), advantages(new)
        pairs: list[tuple[float, float]] = []
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            if a.value is None or b.value is None:
                continue
            pairs.append((a.value, b.value))
            self._counts["changed"] += not math.isclose(a.value, b.value, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
            if before[i] < 0 < after[i] or after[i] < 0 < before[i]:
                text = printable(group.rollouts[i].text, MAX_TEXT)
                self._add_change(SignChange(group.prompt.id, i, a.value, b.value, before[i], after[i], text))
        values = [a for a, _ in pairs], [b for _, b in pairs]
        self._old.extend(values[0])
        self._new.extend(values[1])
        if len(set(values[0])) > 1 and len(set(values[1])) > 1:
            self._within.append((spearman(*values), kendall_tau_b(*values)))

    def _add_change(self, change: SignChange) -> None:
        self._counts["sign_changes"] += 1
        # Of equal ones the earlier stays: the later has the smaller number.
        size = abs(change.new_advantage - change.old_advantage)
        heapq.heappush(self._changes, (size, -self._counts["sign_changes"], change))
        if len(self._changes) > self._max_changes:
            heapq.heappop(self._changes)

    def result(self) -> Compared:
        """Return the statistics so far."""
        old, new = np.array(self._old), np.array(self._new)
        return Compared(
            **{name: self._counts[name] for name in ("groups", "rollouts", "changed", "sign_changes")},
            both=len(old),
            old_mean=_mean(self._old),
            new_mean=_mean(self._new),
            spearman=_defined(spearman(old, new)),
            kendall=_defined(kendall_tau_b(old, new)),
            ranked=len(self._within),
            spearman_within=_mean([rho for rho, _ in self._within]),
            kendall_within=_mean([tau for _, tau in self._within]),
            largest_changes=[one for *_, one in sorted(self._changes, key=lambda entry: entry[:2], reverse=True)],
            old_failed=dict(self._failures[0].most_common()),
            new_failed=dict(self._failures[1].most_common()),
            left_out=sorted(self.left_out),
        )


def advantages(scores: Sequence[Score]) -> list[float]:
    """Return reward minus the mean of the scored rollouts; NaN for those that failed. A rounding error is 0."""
    values = _values(scores)
    scored = values[~np.isnan(values)]
    if not len(scored):
        return list(values)
    apart = values - math.fsum(scored) / len(scored)
    apart[np.abs(apart) <= TOLERANCE * np.abs(scored).max()] = 0.0
    return [float(one) for one in apart]


def without_implicit(reward: Component, stored: StoredGroup, new: Sequence[Score]) -> tuple[Sequence[Score], set[str]]:
    """Return new scores that compare with stored ones, and the implicit rewards that were left out of them.

    While a stage trains, an implicit reward is a stream of its own, and the stored value of the sum is that of the
    other parts. Everywhere else it is a part of the sum like any other.
    """
    whole = reward.reward
    if not isinstance(whole, Sum) or stored.scores is None:
        return new, set()
    implicit = {name for name, part in whole.components.items() if isinstance(part.reward, Implicit)}
    names = implicit & set(stored.scores[0].parts)
    if not names or not _scored_by_trainer(stored, names):
        return new, set()
    kept = [whole.without(score, names) for score in new]
    # Where the rest failed so did the sum, and may have a value in spite of that.
    return [score if other.failure is not None else other for score, other in zip(new, kept, strict=True)], names


def _scored_by_trainer(stored: StoredGroup, names: set[str]) -> bool:
    """Return whether a trainer stored the scores, and not `rewardsmith score` or a stage that evaluates."""
    if stored.record is None or ResumableJsonl(stored.file).note_file.exists():
        return False
    parts = [score.parts[name] for score in stored.scores or () for name in names]
    skipped = any(part.failure is not None and part.failure.kind == "skipped" for part in parts)
    return stored.record.kind == "train" or skipped or _stage_trains_rewards(stored.file)


@lru_cache(maxsize=64)
def _stage_trains_rewards(file: Path) -> bool:
    """Return whether the stage of a run that wrote a file of rollouts trains the rewards that it validates with."""
    recipe = file.parent.parent / "recipe.toml"
    stages = tomllib.loads(recipe.read_text(encoding="utf-8"))["stages"] if recipe.is_file() else []
    return any(
        bool(getattr(STAGES.get(stage["type"]), "trains_rewards", False))
        for stage in stages
        if stage["name"] == file.stem and "reward" not in stage.get("validation", {})
    )


# ---- an outcome ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComponentOrder:
    """How a component orders rollouts.

    Attributes:
        groups: those in which it scored a rollout with an outcome.
        ordered: those of them in which outcomes differ.
        accuracy: share of the pairs of a group that it orders as their outcomes, a tie one half, each pair weighted by
            the difference of the outcomes; mean over `ordered`, None without any.
        best: outcome of the rollout with the highest value, ties shared; mean over `groups`, None without any.
    """

    groups: int
    ordered: int
    accuracy: float | None
    best: float | None


@dataclass(frozen=True)
class OutcomeStatistics:
    """How the components of a reward predict an outcome: the fields of `--json`.

    `groups` and `rollouts` are those with an outcome, `size` the rollouts of each group (None where groups differ),
    `mean` the outcome of a random rollout and `oracle` that of the best one of each group.
    """

    outcome: str
    source: Literal["new", "stored"]
    groups: int
    rollouts: int
    size: int | None
    mean: float | None
    oracle: float | None
    components: Mapping[str, ComponentOrder]

    def table(self) -> Table:
        """Return the statistics for people."""
        name = printable(self.outcome, 60)
        title = f"the outcome {name}: mean {format_number(self.mean)}, at best {format_number(self.oracle)}"
        columns: Columns = {
            "component": "text", "groups": "count", "that differ": "count", "pairs in order": "share",
            "best of all" if self.size is None else f"best of {self.size}": "number",
        }  # fmt: skip
        rows = [(component_name(name), *asdict(one).values()) for name, one in self.components.items()]
        return Table(f"{title}, of {count_of(self.groups, 'group')}", columns, rows)


@dataclass
class OutcomeTally:
    """Counts groups in constant memory. `name` is a part, or `reward` for the whole of the stored score."""

    name: str
    _source: Literal["new", "stored"] = "stored"
    _sizes: Counter[int] = field(default_factory=Counter)
    _mean: float = 0.0
    _oracle: float = 0.0
    _sums: dict[str, Vector] = field(default_factory=dict)

    def require(self, reward: Component, old: Sequence[Score] | None) -> None:
        """Raise a `UserError` if there can be no such outcome, as far as that is known before anything is scored."""
        stored = _by_name(old[0], STORED_REWARD) if old else {}
        possible = not isinstance(reward.reward, Implicit) and has_part(reward, self.name)
        if possible or self.name in stored:
            return
        parts = (f"{path}.{own}".strip(".") for path, inner in walk(reward) for own in ("", *inner.declared))
        known = {name for name in (*parts, *stored) if name}
        names = f"{nearest(self.name, known)} Known: {listing(known)}" if known else ""
        where = ", nor of the stored scores" if stored else ", and no scores are stored: add it to a sum as a part"
        raise UserError(f"--outcome {self.name!r} is no part of the reward{where}.{names}")

    def add(self, old: Sequence[Score] | None, new: Sequence[Score]) -> None:
        """Count a group by its stored scores, if there are any, and its new ones."""
        columns = [_by_name(score, "") for score in new]
        outcome_of = [_by_name(score, STORED_REWARD) for score in old or ()]
        if any(self.name in column for column in columns):  # a rollout that failed may have no parts
            self._source, outcome_of = "new", columns
        outcomes = _values([column.get(self.name) for column in outcome_of])
        known = ~np.isnan(outcomes)
        if not known.any():
            return
        self._sizes[int(known.sum())] += 1
        self._mean += float(outcomes[known].mean())
        self._oracle += float(outcomes[known].max())
        for name in columns[0]:
            if name != self.name or self._source == "stored":
                sums = self._sums.setdefault(name, np.zeros(4))
                values = _values([column.get(name) for column in columns])
                both = known & ~np.isnan(values)
                if both.any():
                    sums += _order(outcomes[both], values[both])

    def result(self) -> OutcomeStatistics:
        """Return the statistics so far."""
        groups = self._sizes.total()
        components: dict[str, Any] = {}
        for name, sums in self._sums.items():
            count, ordered, accuracy, best = sums.tolist()
            means = (accuracy / ordered if ordered else None, best / count if count else None)
            components[name] = ComponentOrder(int(count), int(ordered), *means)
        return OutcomeStatistics(
            outcome=self.name,
            source=self._source,
            groups=groups,
            rollouts=sum(size * count for size, count in self._sizes.items()),
            size=next(iter(self._sizes)) if len(self._sizes) == 1 else None,
            mean=self._mean / groups if groups else None,
            oracle=self._oracle / groups if groups else None,
            components=components,
        )


def _order(outcomes: Vector, values: Vector) -> Vector:
    """Return, for one group, 1, whether outcomes differ, the weighted share of pairs in order, and the best of n."""
    possible = won = 0.0
    for outcome, value in zip(outcomes, values, strict=True):  # row by row: a group may hold thousands
        lead = np.maximum(outcome - outcomes, 0)
        possible += float(lead.sum())
        won += float((lead * ((value > values) + 0.5 * (value == values))).sum())
    return np.array([1, possible > 0, won / possible if possible else 0.0, best_of_n(outcomes, values, len(values))])


def _by_name(score: Score, whole: str) -> dict[str, Score]:
    """Return a score under the name `whole`, and its parts by name."""
    return {whole: score} | dict(score.named_parts())


def _values(scores: Sequence[Score | None]) -> Vector:
    """Return the values, NaN where there is none."""
    return np.array([np.nan if score is None or score.value is None else score.value for score in scores])


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if len(values) else None


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
