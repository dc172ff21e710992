"""What `rewardsmith prepare graded` tells: for people as tables and lines, for programs as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from rewardsmith.data.preparing import Skipped
from rewardsmith.data.rows import printable
from rewardsmith.runs.preparing.session import Answered, failure_lines, usage_lines
from rewardsmith.runs.preparing.solutions import Solutions


@dataclass(frozen=True)
class Told:
    """What grading solutions brought.

    Attributes:
        skipped: the rows that were left out.
        solutions: how many of the others are blank or there twice.
        answered: what asking brought.
        bands: name of each band, and how many solutions of the training part it has before and after balancing.
        files: rows of each file.
        no_analysis: rows left out of demonstrations, because the teacher wrote nothing but the verdict.
        rightness: how many solutions are right, wrong or unknown.
    """

    skipped: Skipped
    solutions: Solutions
    answered: Answered
    bands: Sequence[tuple[str, int, int]]
    files: Mapping[str, int]
    no_analysis: int
    rightness: Mapping[bool | None, int]

    @property
    def graded(self) -> int:
        """Solutions that have a grade."""
        return self.answered.asked + self.answered.resumed

    def as_json(self) -> dict[str, Any]:
        """Return all of it."""
        return {
            "rows": self.skipped.of,
            "bad": self.skipped.as_json(),
            "blank": self.solutions.blank,
            "twice": self.solutions.twice,
            "graded": self.graded,
            "resumed": self.answered.resumed,
            "failed": len(self.answered.failed),
            "failures": self.answered.as_json(),
            "bands": [{"band": name, "before": before, "after": after} for name, before, after in self.bands],
            "right": {"right": self.rightness.get(True, 0), "wrong": self.rightness.get(False, 0)}
            | {"unknown": self.rightness.get(None, 0)},
            "no_analysis": self.no_analysis,
            "files": dict(self.files),
            "models": {name: asdict(used) for name, used in self.answered.used.items()},
        }


def graded_lines(told: Told, *, balanced: bool) -> Iterator[RenderableType]:
    """Yield what to print, in order."""
    if told.skipped.rows:
        yield str(told.skipped)
    yield from failure_lines(told.answered, "no grade")
    if not told.files:
        yield "nothing is written: no solution has a grade"
    else:
        yield from _written(told, balanced)
    yield from usage_lines(told.answered)


def _written(told: Told, balanced: bool) -> Iterator[RenderableType]:
    yield _bands(told, balanced)
    left = {"blank": told.solutions.blank, "there twice": told.solutions.twice, "without analysis": told.no_analysis}
    if any(left.values()):
        yield "left out: " + ", ".join(f"{count:,} {why}" for why, count in left.items() if count)
    if set(told.rightness) - {None}:
        right, wrong, unknown = (told.rightness.get(one, 0) for one in (True, False, None))
        yield f"final answers: {right:,} right, {wrong:,} wrong, {unknown:,} unknown"
    before = f", {told.answered.resumed:,} of them from an earlier start" if told.answered.resumed else ""
    yield f"{told.graded:,} solutions have a grade{before}"
    for file, rows in told.files.items():
        yield f"{rows:,} rows in {printable(file, 200)}"


def _bands(told: Told, balanced: bool) -> Table:
    table = Table("points of 10")
    table.add_column("solutions", justify="right")
    if balanced:
        table.add_column("to train on", justify="right")
    for name, before, after in told.bands:
        table.add_row(name, f"{before:,}", *([f"{after:,}"] if balanced else []))
    return table


__all__ = ["Told", "graded_lines"]
