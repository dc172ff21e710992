"""Tables for people and programs: one type, printed to a terminal, as JSON, or in a report."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from rewardsmith.data.rows import printable

Cell = str | int | float | None
Form = Literal["text", "count", "number", "share"]
"""How a column is formatted: `number` with three decimals, `share` as a percentage."""

Columns = Mapping[str, Form]
"""The names of columns, from left to right, and how their cells are formatted."""

PIPE_WIDTH = 200  # columns of output that goes to a file or a pipe, which has no width of its own


@dataclass(frozen=True)
class Table:
    """A table with an optional title, and a note below it; a cell is None or NaN where there is no value.

    A column without any value is not printed.
    """

    title: str
    columns: Columns
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the table as JSON values; a cell that is not finite is null."""
        return {
            "title": self.title,
            "columns": [{"name": name, "form": form} for name, form in self.columns.items()],
            "rows": [[None if _is_empty(cell) and cell != "" else cell for cell in row] for row in self.rows],
            "note": self.note,
        }


def print_tables(shown: Iterable[Table | str]) -> None:
    """Print tables and lines of text on standard output; whatever a terminal may act on is escaped."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    for one in shown:
        if isinstance(one, str):
            console.print(Text(one), soft_wrap=True)
            continue
        console.print(_rendered(one))
        if one.note:
            console.print(Text(printable(one.note, 2000), style="dim"), soft_wrap=True)


def print_json(values: Any) -> None:
    """Print one JSON document on standard output."""
    sys.stdout.write(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _rendered(table: Table) -> RichTable:
    title = Text(printable(table.title, 200), style="bold") if table.title else None
    rich = RichTable(title=title, title_justify="left")
    shown = {
        i: (name, form)
        for i, (name, form) in enumerate(table.columns.items())
        if not all(_is_empty(row[i]) for row in table.rows)
    }
    for i, (name, form) in shown.items():
        width = max(len(format_cell(row[i], form)) for row in table.rows)
        # Names, ids and numbers are copied from the terminal: only a long text is folded, or what stands last.
        short = form != "text" or (width <= 40 and i < max(shown))
        rich.add_column(
            printable(name, 60), justify="left" if form == "text" else "right", no_wrap=short, overflow="fold",
            min_width=width if short else None,
        )  # fmt: skip
    for row in table.rows:
        rich.add_row(*(Text(format_cell(row[i], form)) for i, (_, form) in shown.items()))
    return rich


def _is_empty(value: Cell) -> bool:
    return value is None or value == "" or (isinstance(value, float) and not math.isfinite(value))


def format_cell(value: Cell, form: Form) -> str:
    """Return a cell as text."""
    if value is None or _is_empty(value):
        return "" if form == "text" else "-"
    if isinstance(value, str):
        return printable(value, 200)
    if form == "count":
        return f"{value:,}"
    return format_share(value) if form == "share" else format_number(value)


def format_number(value: float | None) -> str:
    """Return a number with three decimals; `-` for None."""
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < 1_000 else f"{value:.4g}"


def format_share(share: float) -> str:
    """Return a percentage; a share that is small is not 0%, and one that is nearly all is not 100%."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    if 0 < share < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 < share < 1 else f"{share:.1%}"


def format_seconds(value: float) -> str:
    """Return a duration with a unit."""
    if value < 0.9995e-3:
        return f"{value * 1e6:.0f} µs"
    return f"{value * 1e3:.3g} ms" if value < 0.9995 else f"{value:.3g} s"


def count_of(count: int, noun: str) -> str:
    """Return `1 group`, `2,000 groups`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
