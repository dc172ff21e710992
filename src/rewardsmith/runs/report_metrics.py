"""The curves of a report: `metrics.jsonl` in a bounded form.

A folder may be damaged (the run was killed while it wrote), so a line that cannot be read is counted and left out. The
file may be huge: a curve keeps as many points as a screen can show.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_BYTES = 24_000_000
"""Bytes of metrics that are parsed; of a longer file every n-th line, and every line with a validation."""

MAX_LINE = 1_000_000
"""Bytes of a line of metrics; a longer one is damage."""

Curves = dict[str, dict[int, float]]
"""Of each metric the value at each step."""


def read_metrics(path: Path) -> tuple[dict[str, Curves], int]:
    """Return the curves of each stage, both in the order of appearance, and how many lines could not be read.

    Of two values for one step the later one counts: a resumed run repeats the steps after its last checkpoint.
    """
    stages: dict[str, Curves] = {}
    unread = 0
    for line in _sampled_lines(path):
        record = parsed(line)
        step: Any = record.get("step")
        values = record.get("metrics")
        if not is_step(step) or not isinstance(values, dict) or not isinstance(record.get("stage"), str):
            unread += 1
            continue
        curves = stages.setdefault(record["stage"], {})
        for name, value in values.items():
            if isinstance(value, int | float | None):
                curves.setdefault(name, {})[step] = math.nan if value is None else _float(value)
    return stages, unread


def _sampled_lines(path: Path) -> Iterator[bytes]:
    try:
        every = -(-path.stat().st_size // MAX_BYTES)
        with path.open("rb") as file:
            for i, line in enumerate(iter(lambda: file.readline(MAX_LINE), b"")):
                if line.strip() and (every <= 1 or i % every == 0 or b'"validation/' in line):
                    yield line
    except OSError:  # missing: the run was killed before its first step
        return


def drawn(curve: dict[int, float], limit: int) -> dict[str, Any]:
    """Return at most `limit` points of a curve as `x` and `y`, and how many values were not finite."""
    points = thinned(sorted(curve.items()), limit)
    lost = sum(not math.isfinite(value) for value in curve.values())
    return {"x": [step for step, _ in points], "y": [number(value) for _, value in points], "lost": lost}


def thinned(points: list[tuple[int, float]], limit: int) -> list[tuple[int, float]]:
    """Return at most `limit` of `points`: the lowest and the highest of each stretch, so that no spike is lost."""
    if len(points) <= limit:
        return points
    stretches = max(1, (limit - 2) // 2)
    inner = points[1:-1]
    kept = [points[0]]
    for i in range(stretches):
        stretch = inner[i * len(inner) // stretches : (i + 1) * len(inner) // stretches]
        finite = [point for point in stretch if math.isfinite(point[1])] or stretch[:1]
        ends = {min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])}
        kept += sorted(ends)
    return [*kept, points[-1]]


def number(value: object) -> float | int | None:
    """Return `value` with six digits, more than a screen shows; None when it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    value = _float(value)
    if not math.isfinite(value):
        return None
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # JSON has integers of any length
        return math.inf


def is_step(value: object) -> bool:
    """Return whether `value` can be a step: an integer of a size that a chart can show."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def parsed(line: bytes) -> dict[str, Any]:
    """Return the JSON object in `line`; an empty one when there is none, as in a line that was cut off."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
