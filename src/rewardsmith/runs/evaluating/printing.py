"""What `rewardsmith evaluate` prints: for people as tables, for programs as JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from rewardsmith import __version__
from rewardsmith.data.rows import printable
from rewardsmith.llm import Usage
from rewardsmith.runs.model_registry import usage_line
from rewardsmith.trainers.evaluating.tables import Cell, Evaluation, Form, Table

WIDE = 200
DETAIL = 300
"""Characters shown of what a failure said."""


def show(evaluation: Evaluation, used: Mapping[str, Usage], facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print an evaluation on standard output.

    Args:
        evaluation: what was measured.
        used: what was asked of each model.
        facts: what it was measured with: data, reward, settings.
        as_json: print JSON instead of tables.
    """
    if as_json:
        whole = {
            **evaluation.as_json(),
            "details": {what: printable(said, DETAIL) for what, said in evaluation.details.items()},
            "made_with": {"rewardsmith": __version__, **facts},
            "models": {name: asdict(usage) for name, usage in used.items()},
        }
        sys.stdout.write(json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        return
    # A file or a pipe has no width of its own, and a number that is cut off says nothing.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    for shown in rendered(evaluation):
        console.print(shown, soft_wrap=isinstance(shown, Text))
    for name, usage in used.items():
        console.print(Text(f"{name}: {usage_line(usage)}"), soft_wrap=True)


def rendered(evaluation: Evaluation) -> Iterator[RenderableType]:
    """Yield the tables of an evaluation for a terminal, and what went wrong."""
    for table in evaluation.tables:
        yield _rich(table)
        if table.note:
            yield Text(printable(table.note), style="dim")
    for what, said in evaluation.details.items():
        yield Text(f"{printable(what, 100)}, the first: {printable(said, DETAIL)}")


def _rich(table: Table) -> RichTable:
    empty = [all(_nothing(row[i]) for row in table.rows) for i in range(len(table.columns))]
    shown = [i for i in range(len(table.columns)) if not empty[i]]
    rich = RichTable(title=printable(table.title, 100), title_justify="left", title_style="bold")
    for i in shown:
        column = table.columns[i]
        text = column.form == "text"
        rich.add_column(
            printable(column.name, 60), justify="left" if text else "right", no_wrap=not text, overflow="fold"
        )
    for row in table.rows:
        rich.add_row(*(Text(cell(row[i], table.columns[i].form)) for i in shown))
    return rich


def _nothing(value: Cell) -> bool:
    return value is None or value == "" or (isinstance(value, float) and not math.isfinite(value))


def cell(value: Cell, form: Form) -> str:
    """Return a cell as text."""
    if _nothing(value):
        return "" if form == "text" else "-"
    if isinstance(value, str):
        return printable(value, 200)
    assert value is not None
    if form == "count":
        return f"{value:,}"
    if form == "share":
        return f"{value:.1%}"
    return f"{value:.3f}" if abs(value) < 1_000 else f"{value:.4g}"
