"""What an evaluation comes to: numbers by name, and plain tables for terminals, reports and programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from rewardsmith.algorithms.bootstrap import bootstrap_interval

Cell = str | int | float | None
Form = Literal["text", "count", "number", "share"]
"""How a column is shown: `number` with a few decimals, `share` as a percentage."""


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        name: its head.
        form: how its cells are shown.
    """

    name: str
    form: Form = "number"


@dataclass(frozen=True)
class Table:
    """A table of plain values.

    Attributes:
        title: what it shows.
        columns: from left to right.
        rows: one cell per column; None, or a number that is not finite, where nothing is known.
        note: a sentence below it.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def __post_init__(self) -> None:
        wrong = next((len(row) for row in self.rows if len(row) != len(self.columns)), None)
        assert wrong is None, f"{self.title}: a row of {wrong} cells in {len(self.columns)} columns"

    def as_json(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        return {
            "title": self.title,
            "columns": [{"name": column.name, "form": column.form} for column in self.columns],
            "rows": [[_finite(cell) for cell in row] for row in self.rows],
            "note": self.note,
        }


@dataclass(frozen=True)
class Evaluation:
    """One evaluation.

    Attributes:
        name: of the stage, or of what was measured.
        kind: `rankings`, `grades`, `pairs` or `policy`: those of one kind can be compared.
        metrics: finite numbers by name.
        main: names of the metrics that say most; others of the same kind are compared by these.
        tables: for people.
        details: what the first failure of each component and kind said, by `component kind`.
    """

    name: str
    kind: str
    metrics: Mapping[str, float]
    main: Sequence[str] = ()
    tables: Sequence[Table] = ()
    details: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        finite = {name: float(value) for name, value in self.metrics.items() if math.isfinite(value)}
        object.__setattr__(self, "metrics", finite)
        object.__setattr__(self, "main", tuple(name for name in self.main if name in finite))

    def as_json(self) -> dict[str, Any]:
        """Return the evaluation as JSON values, for `RUN/evaluations/STAGE.json` and for `--json`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "metrics": dict(self.metrics),
            "main": list(self.main),
            "tables": [table.as_json() for table in self.tables],
            "details": dict(self.details),
        }


def _finite(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


@dataclass(frozen=True)
class Measure:
    """A number over many items, with its 95% interval.

    Attributes:
        name: the metric; "" is shown but is no metric.
        about: what it means, in a few words.
        value: NaN when there is nothing to measure.
        low: end of the interval; NaN where there is none.
        high: the other end.
        items: how many it is taken over.
    """

    name: str
    about: str
    value: float
    low: float = math.nan
    high: float = math.nan
    items: int = 0


def mean_of(name: str, about: str, values: ArrayLike, *, seed: int = 0) -> Measure:
    """Return the mean over the items for which a value is known (not NaN), with its bootstrap interval."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    value = float(known.mean()) if len(known) else math.nan
    return Measure(name, about, value, *bootstrap_interval(known, seed=seed), len(known))


def ratio_of(name: str, about: str, totals: ArrayLike, counts: ArrayLike, *, seed: int = 0) -> Measure:
    """Return the sum of the totals by that of the counts, with its bootstrap interval over the items."""
    t, c = np.asarray(totals, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    value = float(t.sum() / c.sum()) if c.sum() > 0 else math.nan
    return Measure(name, about, value, *bootstrap_interval(t, c, seed=seed), int((c > 0).sum()))


def table_of(title: str, measures: Iterable[Measure], items: str = "items", note: str = "") -> Table:
    """Return the measures that have a value as a table; `items` says what they are taken over."""
    shown = [one for one in measures if not math.isnan(one.value)]
    columns = (
        Column("measure", "text"),
        Column("value"),
        Column("95% from"),
        Column("to"),
        Column(items, "count"),
        Column("meaning", "text"),
    )
    rows = [(one.name.replace("_", " "), one.value, one.low, one.high, one.items or None, one.about) for one in shown]
    return Table(title, columns, rows, note)


def metrics_of(measures: Iterable[Measure]) -> dict[str, float]:
    """Return the values by name."""
    return {one.name: one.value for one in measures if one.name and not math.isnan(one.value)}
