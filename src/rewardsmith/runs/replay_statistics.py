"""Statistics of a replay: which groups would have taught something else, and which rollouts gain from it.

The measures and their approximation are those of `algorithms.update_directions`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rewardsmith.algorithms.ranks import spearman
from rewardsmith.algorithms.update_directions import Vector, flipped, gains, rollout_means, update_cosine
from rewardsmith.console import Columns, Table, count_of, format_number, format_share
from rewardsmith.data.rows import printable
from rewardsmith.types import RolloutGroup

SAME = 1e-6
"""A cosine this near to 1 is a rounding error, and so is an advantage this small next to the largest of its batch."""

MAX_TEXT = 60
MAX_SOURCES = 20

Facts = dict[str, Any]


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None


def _share(value: float | None) -> str:
    return "-" if value is None else format_share(value)


class _Totals:
    """What is counted of all groups, and of those of each source."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.cosines: list[float] = []
        self.lengths: list[float] = []
        self.truncated: list[float] = []

    def add_gains(self, gains_K: Vector, counts_K: NDArray[np.int64], truncated_K: NDArray[np.bool_]) -> None:
        """Count the gains of a group: those of the K rollouts that have one, with their numbers of tokens."""
        if len(set(counts_K.tolist())) > 1 and len(set(gains_K.tolist())) > 1:
            self.lengths.append(spearman(gains_K, counts_K.astype(np.float64)))
        if truncated_K.any() and not truncated_K.all():
            self.truncated.append(float(gains_K[truncated_K].mean()))

    def facts(self) -> Facts:
        counts, cosines = self.counts, np.array(self.cosines)
        names = (
            "groups", "rollouts", "both", "flipped", "compared", "taught_before", "teaching_now", "newly", "no_longer",
        )  # fmt: skip
        return {
            **{name: counts[name] for name in names},
            "flipped_share": counts["flipped"] / counts["both"] if counts["both"] else None,
            "cosine": _mean(cosines),
            "cosine_below_0": _mean(cosines < 0),
            "cosine_below_half": _mean(cosines < 0.5),
            "gain_with_length": _mean(np.array(self.lengths)),
            "gain_of_truncated": _mean(np.array(self.truncated)),
        }


class ReplayTally:
    """Counts groups with their old and new advantages; lists the `max_changes` with the largest disagreement."""

    def __init__(self, max_changes: int = 10) -> None:
        self._max_changes = max_changes
        self._all, self._sources = _Totals(), defaultdict[str, _Totals](_Totals)
        self._groups: list[Facts] = []

    @property
    def groups(self) -> int:
        """Groups so far."""
        return self._all.counts["groups"]

    def add(
        self,
        group: RolloutGroup,
        old_T: Vector,
        new_T: Vector,
        counts_N: NDArray[np.int64],
        both_N: NDArray[np.bool_],
        step: int | None = None,
    ) -> None:
        """Count a group by the advantages of its tokens, rollout after rollout, which are 0 where there are none.

        `both_N` are the rollouts that have an advantage on both sides. Flips and gains are those of these rollouts.
        """
        cosine = update_cosine(old_T, new_T)
        old_N, new_N = rollout_means(old_T, counts_N), rollout_means(new_T, counts_N)
        flips = int((flipped(old_N, new_N) & both_N).sum())
        before, now = bool(old_T.any()), bool(new_T.any())
        gains_N = gains(old_T, new_T, counts_N, both_N)
        truncated_N = np.array([rollout.stop_reason == "length" for rollout in group.rollouts])
        changed = before != now or (before and cosine < 1 - SAME)
        for totals in (self._all, self._sources[group.prompt.source]):
            totals.counts.update(groups=1, rollouts=len(counts_N), both=int(both_N.sum()), flipped=flips)
            totals.counts.update(compared=before and now, taught_before=before, teaching_now=now)
            totals.counts.update(newly=now and not before, no_longer=before and not now)
            if before and now:
                totals.cosines.append(cosine)
            if changed:
                totals.add_gains(gains_N[both_N], counts_N[both_N], truncated_N[both_N])
        if changed:
            self._groups.append(
                {
                    "step": step,
                    "prompt": group.prompt.id,
                    "source": group.prompt.source,
                    "cosine": None if math.isnan(cosine) else cosine,
                    "flipped": flips,
                    "rollouts": len(counts_N),
                    "both": int(both_N.sum()),
                    "taught_before": before,
                    "teaches_now": now,
                    "gains": _largest_gain(group, old_N, new_N, gains_N),
                }
            )
            if len(self._groups) > 4 * self._max_changes + 100:  # of a long list only the first ones can be needed
                self._groups = self._first()

    def _first(self) -> list[Facts]:
        # A group with an update on one side only differs as much as one at a right angle.
        def order(one: Facts) -> tuple[float, int, float]:
            return one["cosine"] or 0.0, -one["flipped"], -one["gains"]["gain"] if one["gains"] else 0.0

        return sorted(self._groups, key=order)[: self._max_changes]

    def result(self) -> tuple[Facts, list[Table]]:
        """Return the statistics so far, and their tables.

        `compared` are the groups that both sides learn from, over which cosines are taken; `newly` and `no_longer` are
        those that one side alone learns from. `both` are the rollouts that have an advantage on both sides, and
        `flipped_share` is of these. `gain_with_length` is the mean rank correlation, within a group, of a rollout's
        gain with its number of tokens; `gain_of_truncated` the mean gain of truncated rollouts.
        """
        facts = self._all.facts()
        sources = sorted(self._sources.items(), key=lambda one: -one[1].counts["groups"])[:MAX_SOURCES]
        facts["sources"] = {name: totals.facts() for name, totals in sources}
        facts["largest_disagreements"] = self._first()
        tables = [_summary(facts)]
        if len(self._sources) > 1:
            tables.append(_by_source(facts["sources"]))
        if facts["largest_disagreements"]:
            tables.append(_disagreements(facts["largest_disagreements"]))
        return facts, tables


def _largest_gain(group: RolloutGroup, old_N: Vector, new_N: Vector, gains_N: Vector) -> Facts | None:
    """Return the rollout that gains most; None where no rollout has an advantage on both sides."""
    if np.isnan(gains_N).all():
        return None
    best = int(np.nanargmax(gains_N))
    return {
        "index": best,
        "old_advantage": float(old_N[best]),
        "new_advantage": float(new_N[best]),
        "gain": float(gains_N[best]),
        "text": printable(group.rollouts[best].text, MAX_TEXT),
    }


def _summary(facts: Facts) -> Table:
    below = f"{_share(facts['cosine_below_half'])}, {_share(facts['cosine_below_0'])}"
    rows: list[Sequence[str]] = [
        ("groups that teach something, old and new", f"{facts['taught_before']:,}, {facts['teaching_now']:,}"),
        ("taught nothing, and would now", f"{facts['newly']:,}"),
        ("taught something, and would no longer", f"{facts['no_longer']:,}"),
        ("cosine of the updates, mean over groups", format_number(facts["cosine"])),
        ("groups with a cosine below 0.5, below 0", below),
        ("rollouts whose advantage changes sign", f"{facts['flipped']:,} ({_share(facts['flipped_share'])})"),
        ("gain with length, rank correlation", format_number(facts["gain_with_length"])),
        ("mean gain of truncated rollouts", format_number(facts["gain_of_truncated"])),
    ]
    return Table(f"what {count_of(facts['groups'], 'group')} would have taught", {"": "text", "replay": "text"}, rows)


def _by_source(sources: Facts) -> Table:
    columns: Columns = {
        "source": "text", "groups": "count", "cosine": "number", "below 0": "share", "flipped": "share",
        "newly": "count", "no longer": "count", "gain with length": "number",
    }  # fmt: skip
    names = ("groups", "cosine", "cosine_below_0", "flipped_share", "newly", "no_longer", "gain_with_length")
    rows = [(printable(name, 40) or "-", *(one[key] for key in names)) for name, one in sources.items()]
    return Table("by source", columns, rows)


def _disagreements(groups: Sequence[Facts]) -> Table:
    columns: Columns = {
        "step": "count", "prompt": "text", "cosine": "text", "flipped": "text", "gains most": "text", "text": "text",
    }  # fmt: skip
    rows = []
    for one in groups:
        best = one["gains"]
        only = "" if one["taught_before"] and one["teaches_now"] else "new only" if one["teaches_now"] else "old only"
        rows.append(
            (
                one["step"],
                printable(one["prompt"], 40),
                only or format_number(one["cosine"]),
                f"{one['flipped']} of {one['both']}",
                f"#{best['index']} {best['old_advantage']:+.3g} → {best['new_advantage']:+.3g}" if best else "-",
                best["text"] if best else "",
            )
        )
    return Table("groups that would have taught something else", columns, rows)
