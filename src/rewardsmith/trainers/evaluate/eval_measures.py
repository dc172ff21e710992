"""What evaluations share: measures with intervals, figures by source of the prompts, their tables, and the result."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rewardsmith.algorithms.judge_statistics import bootstrap_interval
from rewardsmith.algorithms.ranks import pass_at_k
from rewardsmith.console import Columns, Form, Table
from rewardsmith.jobs import Result
from rewardsmith.trainers.evaluate.scorer import FailureLog

MAX_SOURCES = 100
"""With more sources of prompts than this, none has figures of its own."""

MAX_NAME_CHARS = 60


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


def mean(values: Iterable[float]) -> float:
    """Return the mean of at least one number."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


def pass_chances(verdicts: Sequence[Sequence[bool]]) -> dict[int, list[float]]:
    """Return pass@k, for k = 1, 2, 4 and so on, of each group with at least k verdicts."""
    largest = max(map(len, verdicts), default=0)
    return {
        k: [pass_at_k(len(group), sum(group), k) for group in verdicts if len(group) >= k]
        for k in (2**i for i in range(largest.bit_length()))
    }


# ---- by source of the prompts ----------------------------------------------------------------------------------------


def measure_sources(
    sources: Sequence[str], measure: Callable[[Sequence[int]], Mapping[str, float]]
) -> dict[str, float]:
    """Return `sources/SOURCE/NAME` for what `measure` finds for the items of each source, given by their places.

    `sources` has that of each item. There is nothing for a single source, nor for more than `MAX_SOURCES`.
    """
    places: dict[str, list[int]] = {}
    for i, source in enumerate(sources):
        places.setdefault(source, []).append(i)
    if not 2 <= len(places) <= MAX_SOURCES:
        return {}
    return {
        f"sources/{name}/{key}": value
        for source, name in sorted(metric_names(places).items())
        for key, value in measure(places[source]).items()
        if math.isfinite(value)
    }


def metric_names(sources: Iterable[str]) -> dict[str, str]:
    """Return the name of each source in metrics: the letters, digits, `.`, `_` and `-` of what the user's rows have.

    Sources that would have the same name have a hash in addition.
    """
    names = {source: re.sub(r"[^\w.-]+", "_", source).strip("._")[:MAX_NAME_CHARS] or "unnamed" for source in sources}
    count = Counter(names.values())

    def unique(source: str) -> str:
        digest = hashlib.blake2b(source.encode("utf-8", "replace"), digest_size=3).hexdigest()
        return names[source] if count[names[source]] == 1 else f"{names[source]}-{digest}"

    return {source: unique(source) for source in names}


def sources_table(metrics: Mapping[str, float]) -> list[Table]:
    """Return what `measure_sources` found as a table; nothing where it found nothing."""
    found: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        if key.startswith("sources/"):
            _, source, name = key.split("/", 2)
            found.setdefault(source, {})[name] = value
    names = [name for name in dict.fromkeys(key for one in found.values() for key in one) if name not in _NOT_IN_TABLE]
    columns: dict[str, Form] = {"source": "text"}
    columns |= {name.replace("_", " "): _form(name) for name in names}
    rows = [
        (source, *(int(one[name]) if name in one and name in _COUNTS else one.get(name) for name in names))
        for source, one in found.items()
    ]
    return [Table("by source", columns, rows)] if rows else []


_COUNTS = ("prompts", "groups", "answers", "pairs")
_SHARES = ("accuracy", "pass@", "verified", "unsound", "failed", "reasoning_check_failed", "top1", "f1", "ties")
_NOT_IN_TABLE = ("length", "truncated")


def _form(name: str) -> Form:
    return "count" if name in _COUNTS else "share" if name.startswith(_SHARES) else "number"
