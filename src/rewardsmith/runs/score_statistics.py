"""Statistics of new scores: against the stored ones (`--compare`), and against an outcome (`--outcome`).

A failure is counted and is never a number: a rollout that either reward could not score takes part in no correlation.
The advantages that changes of sign are about come from `reward_comparison`.
"""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any

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

Facts = dict[str, Any]
"""Statistics for `--json`; a mean or correlation without values is None."""


def component_name(name: str) -> str:
    """Return a component as a table shows it: the whole first, its parts indented below it."""
    return f"  {name}" if name else "reward"


# ---- stored scores against new ones --------------------------------------------------------------------------------


class Comparison:
    """Two rewards over the same rollouts; lists the `max_changes` largest changes of sign of an advantage."""

    def __init__(self, max_changes: int = 10) -> None:
        self._max_changes = max_changes
        self._pairs: list[tuple[float, float]] = []
        self._within: list[tuple[float, float]] = []
        self._counts: Counter[str] = Counter()
        self._failures: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._changes: list[Facts] = []
        self.left_out: set[str] = set()  # parts that count on neither side

    def add(
        self,
        group: RolloutGroup,
        old: Sequence[Score],
        new: Sequence[Score],
        before: Sequence[float],
        after: Sequence[float],
    ) -> None:
        """Count a group by its scores, and by the advantage of each rollout before and after."""
        self._counts.update(groups=1, rollouts=len(group.rollouts))
        for scores, failures in zip((old, new), self._failures, strict=True):
            failures.update(score.failure.kind for score in scores if score.failure is not None)
        pairs: list[tuple[float, float]] = []
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            if before[i] * after[i] < 0:
                values = {"old": a.value, "new": b.value, "old_advantage": before[i], "new_advantage": after[i]}
                text = printable(group.rollouts[i].text, MAX_TEXT)
                self._changes.append({"prompt": group.prompt.id, "index": i, **values, "text": text})
            if a.value is None or b.value is None:
                continue
            pairs.append((a.value, b.value))
            self._counts["changed"] += not math.isclose(a.value, b.value, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        self._pairs += pairs
        sides = np.array(pairs).reshape(-1, 2).T
        if all(len(set(side)) > 1 for side in sides):
            self._within.append((spearman(*sides), kendall_tau_b(*sides)))

    def result(self) -> tuple[Facts, list[Table]]:
        """Return the statistics so far, and their tables.

        Means, changes and correlations are over the rollouts that `both` scored; `*_within` are means over the groups
        in which neither reward is constant (`ranked`).
        """
        old, new = np.array(self._pairs).reshape(-1, 2).T
        size = lambda one: -abs(one["new_advantage"] - one["old_advantage"])  # noqa: E731
        facts = {
            **{name: self._counts[name] for name in ("groups", "rollouts", "changed")},
            "both": len(old),
            "old_mean": _mean(old),
            "new_mean": _mean(new),
            "spearman": _defined(spearman(old, new)),
            "kendall": _defined(kendall_tau_b(old, new)),
            "ranked": len(self._within),
            "spearman_within": _mean([rho for rho, _ in self._within]),
            "kendall_within": _mean([tau for _, tau in self._within]),
            "sign_changes": len(self._changes),
            "largest_changes": sorted(self._changes, key=size)[: self._max_changes],
            "old_failed": dict(self._failures[0].most_common()),
            "new_failed": dict(self._failures[1].most_common()),
            "left_out": sorted(self.left_out),
        }
        return facts, _comparison_tables(facts)


def _comparison_tables(facts: Facts) -> list[Table]:
    numbers = {name: format_number(value) for name, value in facts.items() if isinstance(value, float | None)}
    old, new = (
        ", ".join(f"{kind} {count:,}" for kind, count in facts[side].items()) or "none"
        for side in ("old_failed", "new_failed")
    )
    rows = [
        ("mean, where both scored", numbers["old_mean"], numbers["new_mean"]),
        ("could not score", old, new),
        ("changed", "", f"{facts['changed']:,} of {facts['both']:,} rollouts that both scored"),
        ("Spearman and Kendall τ_b over all", "", f"{numbers['spearman']}, {numbers['kendall']}"),
        ("the same within a group, mean", "", f"{numbers['spearman_within']}, {numbers['kendall_within']}"),
        ("groups where both rewards vary", "", f"{facts['ranked']:,} of {facts['groups']:,}"),
        ("advantages that change sign", "", f"{facts['sign_changes']:,}"),
    ]
    names = ", ".join(printable(name, 60) for name in facts["left_out"])
    note = f"Both without {names}: a run stores the value of the sum without its implicit rewards." if names else ""
    tables = [Table("old reward against new", {"": "text", "old": "text", "new": "text"}, rows, note)]
    changes = [
        (
            printable(one["prompt"], 40),
            one["index"],
            f"{format_number(one['old'])} → {format_number(one['new'])}",
            f"{one['old_advantage']:+.3g} → {one['new_advantage']:+.3g}",
            one["text"],
        )
        for one in facts["largest_changes"]
    ]
    if changes:
        columns: Columns = {"prompt": "text", "#": "count", "reward": "text", "advantage": "text", "text": "text"}
        tables.append(
            Table(f"the {len(changes)} largest of {facts['sign_changes']:,} changes of sign", columns, changes)
        )
    return tables


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


def with_scaled_weight(whole: Sum, name: str, factor: float, scores: Sequence[Score]) -> Sequence[Score]:
    """Return scores of a sum as they would be if the weight of one of its parts were multiplied by a factor."""
    if factor == 1:
        return scores
    scaled = copy(whole)
    scaled.scale_weight(name, factor)
    return [scaled.without(score, ()) if score.ok else score for score in scores]


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


class OutcomeTally:
    """How components predict an outcome, in constant memory: a part, or `reward` for the whole of the stored score."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._source = "stored"
        self._sizes: Counter[int] = Counter()
        self._totals = np.zeros(2)
        self._sums: dict[str, NDArray[np.float64]] = {}

    def require(self, reward: Component, old: Sequence[Score] | None) -> None:
        """Raise a `UserError` if there can be no such outcome, as far as that is known before anything is scored."""
        stored = _by_name(old[0], STORED_REWARD) if old else {}
        possible = not isinstance(reward.reward, Implicit) and has_part(reward, self._name)
        if possible or self._name in stored:
            return
        parts = (f"{path}.{own}".strip(".") for path, inner in walk(reward) for own in ("", *inner.declared))
        known = {name for name in (*parts, *stored) if name}
        names = f"{nearest(self._name, known)} Known: {listing(known)}" if known else ""
        where = ", nor of the stored scores" if stored else ", and no scores are stored: add it to a sum as a part"
        raise UserError(f"--outcome {self._name!r} is no part of the reward{where}.{names}")

    def add(self, old: Sequence[Score] | None, new: Sequence[Score]) -> None:
        """Count a group by its stored scores, if there are any, and its new ones."""
        columns = [_by_name(score, "") for score in new]
        outcome_of = [_by_name(score, STORED_REWARD) for score in old or ()]
        if any(self._name in column for column in columns):  # a rollout that failed may have no parts
            self._source, outcome_of = "new", columns
        outcomes = _values([column.get(self._name) for column in outcome_of])
        known = ~np.isnan(outcomes)
        if not known.any():
            return
        self._sizes[int(known.sum())] += 1
        self._totals += outcomes[known].mean(), outcomes[known].max()
        for name in columns[0]:
            if name != self._name or self._source == "stored":
                sums = self._sums.setdefault(name, np.zeros(4))
                values = _values([column.get(name) for column in columns])
                both = known & ~np.isnan(values)
                if both.any():
                    sums += _order(outcomes[both], values[both])

    def result(self) -> tuple[Facts, Table]:
        """Return the statistics so far, and their table.

        `groups` and `rollouts` are those with an outcome, `size` the rollouts of each group (None where groups differ),
        `mean` the outcome of a random rollout and `oracle` that of the best one of each group. A component has `groups`
        in which it scored a rollout with an outcome, `ordered` ones in which outcomes differ, over these the mean
        `accuracy` (see `_order`), and `best`, the mean outcome of the rollout with the highest value, ties shared.
        """
        groups = self._sizes.total()
        size = next(iter(self._sizes)) if len(self._sizes) == 1 else None
        mean, oracle = (self._totals / groups).tolist() if groups else (None, None)
        components: dict[str, Facts] = {}
        for name, sums in self._sums.items():
            count, ordered, accuracy, best = sums.tolist()
            means = {"accuracy": accuracy / ordered if ordered else None, "best": best / count if count else None}
            components[name] = {"groups": int(count), "ordered": int(ordered), **means}
        facts = {
            "outcome": self._name,
            "source": self._source,
            "groups": groups,
            "rollouts": sum(size * count for size, count in self._sizes.items()),
            "size": size,
            "mean": mean,
            "oracle": oracle,
            "components": components,
        }
        columns: Columns = {
            "component": "text", "groups": "count", "that differ": "count", "pairs in order": "share",
            "best of all" if size is None else f"best of {size}": "number",
        }  # fmt: skip
        title = f"the outcome {printable(self._name, 60)}: mean {format_number(mean)}, at best {format_number(oracle)}"
        rows = [(component_name(name), *one.values()) for name, one in components.items()]
        return facts, Table(f"{title}, of {count_of(groups, 'group')}", columns, rows)


def _order(outcomes: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for one group, 1, whether outcomes differ, the share of pairs in order, and the best of n.

    A pair weighs as much as its outcomes differ; a tie is half in order.
    """
    possible = won = 0.0
    for outcome, value in zip(outcomes, values, strict=True):  # row by row: a group may hold thousands
        lead = np.maximum(outcome - outcomes, 0)
        possible += float(lead.sum())
        won += float((lead * ((value > values) + 0.5 * (value == values))).sum())
    return np.array([1, possible > 0, won / possible if possible else 0.0, best_of_n(outcomes, values, len(values))])


def _by_name(score: Score, whole: str) -> dict[str, Score]:
    """Return a score under the name `whole`, and its parts by name."""
    return {whole: score} | dict(score.named_parts())


def _values(scores: Sequence[Score | None]) -> NDArray[np.float64]:
    """Return the values, NaN where there is none."""
    return np.array([np.nan if score is None or score.value is None else score.value for score in scores])


def _mean(values: Sequence[float] | NDArray[np.float64]) -> float | None:
    return math.fsum(values) / len(values) if len(values) else None


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
