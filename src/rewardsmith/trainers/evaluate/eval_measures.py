"""What evaluations share: measures with intervals, their table, and the result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rewardsmith.algorithms.judge_statistics import bootstrap_interval
from rewardsmith.console import Columns, Table
from rewardsmith.jobs import Result
from rewardsmith.trainers.evaluate.scorer import FailureLog


def evaluation_result(
    kind: str,
    metrics: Mapping[str, float],
    main: Iterable[str],
    tables: Sequence[Table],
    failures: Sequence[FailureLog],
    failed: float,
) -> Result:
    """Return the result of an evaluation, as `RUN/evaluations/STAGE.json` and `--json` have it.

    Args:
        kind: `rankings`, `grades`, `pairs` or `policy`: those of one kind can be compared.
        metrics: by name; those that are not finite are left out.
        main: the metrics by which evaluations of one kind are compared, as far as they exist.
        tables: for people.
        failures: of each reward.
        failed: share of the items without a score.
    """
    values = dict(metrics)
    for log in failures:
        values |= log.metrics()
    finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
    details = {cause: text for log in failures for cause, text in log.details.items()}
    facts = {"kind": kind, "main": [name for name in main if name in finite], "details": details}
    return Result(finite, tables, [line for log in failures for line in log.lines()], facts, failed)


@dataclass(frozen=True)
class Measure:
    """A metric over many items, with its 95% interval; NaN where there is no value."""

    name: str
    about: str
    value: float
    low: float = math.nan
    high: float = math.nan
    items: int = 0


def mean_of(name: str, about: str, values: ArrayLike, *, seed: int = 0) -> Measure:
    """Return the mean over the items that have a value (not NaN), with its bootstrap interval."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    value = float(known.mean()) if len(known) else math.nan
    return Measure(name, about, value, *bootstrap_interval(known, seed=seed), len(known))


def ratio_of(name: str, about: str, totals: ArrayLike, counts: ArrayLike, *, seed: int = 0) -> Measure:
    """Return the sum of the totals by that of the counts, with its bootstrap interval over the items."""
    t, c = np.asarray(totals, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    value = float(t.sum() / c.sum()) if c.sum() > 0 else math.nan
    return Measure(name, about, value, *bootstrap_interval(t, c, seed=seed), int((c > 0).sum()))


def measures_table(title: str, measures: Iterable[Measure], items: str, notes: Iterable[str] = ()) -> Table:
    """Return the measures that have a value as a table; `items` names what they are taken over."""
    columns: Columns = {
        "measure": "text", "value": "number", "95% from": "number", "to": "number", items: "count",
        "meaning": "text",
    }  # fmt: skip
    rows = [
        (one.name.replace("_", " "), one.value, one.low, one.high, one.items or None, one.about)
        for one in measures
        if not math.isnan(one.value)
    ]
    return Table(title, columns, rows, " ".join(note for note in notes if note))


def metrics_of(measures: Iterable[Measure]) -> dict[str, float]:
    """Return the values by name."""
    return {one.name: one.value for one in measures if not math.isnan(one.value)}
