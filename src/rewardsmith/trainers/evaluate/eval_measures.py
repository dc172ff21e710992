"""What evaluations share: settings, measures with intervals, and the result."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from rewardsmith.algorithms.judge_statistics import bootstrap_interval, changed_relations, repeat_consistency
from rewardsmith.console import Columns, Table
from rewardsmith.data.rows import printable
from rewardsmith.jobs import Job, Result
from rewardsmith.trainers.evaluate.scorer import FailureLog

Values = NDArray[np.float64]
TieCredit = Literal["wrong", "half"]

MAX_DETAIL = 300
"""Characters of an error message that are shown."""


class RewardEvalSettings(Job):
    """How a reward is measured; a setting that a kind of data has no use for is ignored."""

    orders: int = Field(default=1, ge=1, description="also show each group in K orders: does the position matter?")
    repeats: int = Field(default=1, ge=1, description="score K times, past the cache: are the verdicts the same?")
    threshold: float = Field(default=0.5, description="grades: flag a right answer that scores below it as unsound")
    levels: int = Field(default=10, ge=1, le=100, description="grades: bands of scores around 0, 1/levels, …, 1")
    ties: TieCredit = Field(
        default="wrong", description="pairs: credit for equal scores in subsets and sections; RewardBench: wrong"
    )
    concurrency: int = Field(default=256, ge=1, description="groups that are scored at a time")


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
    details: dict[str, str] = {}
    for log in failures:
        values |= log.metrics()
        details |= {cause: printable(text, MAX_DETAIL) for cause, text in log.details.items()}
    finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
    facts = {"kind": kind, "main": [name for name in main if name in finite], "details": details}
    notes = [f"{printable(cause, 100)}, the first: {text}" for cause, text in details.items()]
    return Result(finite, tables, notes, facts, failed)


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


def complete(verdicts: Iterable[Values]) -> Values | None:
    """Return the verdicts on one group that have no failure, [K, N]; None for fewer than two."""
    known = [one for one in verdicts if not np.isnan(one).any()]
    return np.array(known) if len(known) > 1 else None


def order_measures(verdicts: Sequence[Values], seed: int) -> Iterator[Measure]:
    """Yield how often the order of the candidates changes the verdict; [K, N] for each group."""
    if not verdicts:
        return
    changed, flipped = zip(*map(changed_relations, verdicts), strict=True)
    yield mean_of("order_changed", "chance that another order changes the relation of a pair", changed, seed=seed)
    yield mean_of("order_flipped", "chance that another order reverses a pair", flipped, seed=seed)


def repeat_measures(verdicts: Sequence[Values], seed: int) -> Iterator[Measure]:
    """Yield how often a repeated verdict is another one; [K, N] for each group."""
    if not verdicts:
        return
    same, spread = zip(*map(repeat_consistency, verdicts), strict=True)
    yield mean_of("repeat_same", "chance that two verdicts on an answer are equal", same, seed=seed)
    yield mean_of("repeat_spread", "standard deviation of the verdicts on an answer", spread, seed=seed)
    changed = [changed_relations(one)[0] for one in verdicts]
    yield mean_of("repeat_changed", "chance that a repeat changes the relation of a pair", changed, seed=seed)
