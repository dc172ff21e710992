"""Rows that cannot be used: reported all at once, or left out, counted and listed.

bad = BadRows(skip=False)
for place, row in rows:
    try:
        noun = read(row)
    except RowError as error:
        bad.note(f"{file}, line {place.number}", error)
        continue
    ...
skipped = bad.settle(total)          # raises one UserError if any row was bad, unless they may be skipped
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rewardsmith.data.rows import printable
from rewardsmith.errors import UserError

MOST_SHOWN = 10
"""Bad rows that a user is shown; all are counted."""

_NUMBERED = re.compile(r"(.*), (line|row) ([0-9]{1,18})", re.DOTALL)

MOST_KEPT = 1_000
"""Bad rows that are listed in the provenance of what was made without them."""


@dataclass(frozen=True)
class Skipped:
    """The rows that were left out.

    Attributes:
        rows: how many.
        of: how many there were in all.
        first: (where, why) of the first of them, at most `MOST_KEPT`.
    """

    rows: int
    of: int
    first: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return what a user is told: the count, and the first ones with the reason; "" when there is none."""
        return "" if not self.rows else _listed(f"{self.rows:,} of {self.of:,} rows left out", self.rows, self.first)

    def as_json(self) -> dict[str, Any]:
        """Return the same for a file."""
        return {"rows": self.rows, "of": self.of, "first": [{"where": at, "why": why} for at, why in self.first]}


class BadRows:
    """Collects what is wrong with rows.

    Args:
        skip: leave bad rows out, instead of ending with an error that lists them.
        option: how a user asks for that, for the message.
    """

    def __init__(self, *, skip: bool, option: str = "--skip-bad") -> None:
        self._skip = skip
        self._option = option
        self._count = 0
        self._first: list[tuple[str, str]] = []

    @property
    def count(self) -> int:
        """How many bad rows there were so far."""
        return self._count

    @property
    def fatal(self) -> bool:
        """Whether nothing will come of it any more: the other rows need only be checked, not written."""
        return bool(self._count) and not self._skip

    def note(self, where: str, error: Exception | str) -> None:
        """Remember a bad row.

        Args:
            where: the file and the number of the row or line in it, from 1.
            error: the field, its value and the remedy.
        """
        self._count += 1
        if len(self._first) < MOST_KEPT:
            self._first.append((printable(where, 300), printable(str(error))))

    def settle(self, total: int) -> Skipped:
        """Return what was left out.

        Args:
            total: rows that were read, good and bad.

        Raises:
            UserError: there were bad rows and they may not be skipped, or no row is left.
        """
        skipped = Skipped(self._count, total, tuple(self._first))
        if self.fatal:
            heading = f"{self._count:,} of {total:,} rows cannot be used"
            remedy = f"\nMend them, or use {self._option} to leave them out"
            raise UserError(_listed(heading, self._count, skipped.first) + remedy)
        if self._count and self._count >= total:
            raise UserError(_listed(f"none of the {total:,} rows can be used", self._count, skipped.first))
        return skipped


def _listed(heading: str, count: int, first: tuple[tuple[str, str], ...]) -> str:
    by_reason: dict[str, list[str]] = {}  # often it is one thing in many rows
    for where, why in first[:MOST_SHOWN]:
        by_reason.setdefault(why, []).append(where)
    lines = [line for why, at in by_reason.items() for line in (*(f"  {place}" for place in _runs(at)), f"    {why}")]
    more = f"; the first {MOST_SHOWN}" if count > MOST_SHOWN else ""
    return "\n".join([f"{heading}{more}:", *lines])


def _runs(places: list[str]) -> Iterator[str]:
    """Yield places, those that follow one another as one: `rows.jsonl, lines 1-10`."""
    numbered = [_NUMBERED.fullmatch(place) for place in places]
    # Within a run, number and index grow alike.
    keys = [
        (m[1], m[2], int(m[3]) - i) if m else (place, "", i)
        for i, (place, m) in enumerate(zip(places, numbered, strict=True))
    ]
    for _, run in groupby(range(len(places)), key=keys.__getitem__):
        first, *others = run
        start, end = numbered[first], numbered[others[-1]] if others else None
        yield f"{start[1]}, {start[2]}s {start[3]}-{end[3]}" if start and end else places[first]


__all__ = ["MOST_KEPT", "MOST_SHOWN", "BadRows", "Skipped"]
