"""The evaluations of a report: `evaluations/*.json` in a bounded form. Files may be damaged, and hold any text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardsmith.runs.forms import is_share
from rewardsmith.runs.report_metrics import number, parsed

MAX_BYTES = 2_000_000
"""Bytes of a file; a longer one is damage."""

MAX_EVALUATIONS = 64
MAX_MEASURES = 12
"""Measures by which the evaluations of one kind are compared."""

MAX_METRICS = 1_000
MAX_TABLES = 16
MAX_ROWS = 250
MAX_COLUMNS = 12
MAX_TEXT = 300

FORMS = ("text", "count", "number", "share")


def read_evaluations(folder: Path, stages: Sequence[str]) -> list[dict[str, Any]]:
    """Return the evaluations of a run as plain JSON values.

    Args:
        folder: of the run.
        stages: names of its stages in their order; others come after them.
    """
    files = {file.stem: file for file in sorted((folder / "evaluations").glob("*.json")) if file.is_file()}
    places = {name: i for i, name in enumerate(stages)}
    names = sorted(files, key=lambda name: (places.get(name, len(places)), name))[:MAX_EVALUATIONS]
    found = [(name, _read(files[name])) for name in names]
    return [_evaluation(name, content) for name, content in found if content]


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_BYTES:
            return {}
        return parsed(file.read_bytes())
    except OSError:
        return {}


def _evaluation(name: str, content: dict[str, Any]) -> dict[str, Any]:
    metrics = content.get("metrics")
    values = metrics if isinstance(metrics, dict) else {}
    named = [one for one in _list(content.get("main")) if isinstance(one, str)]
    if "accuracy" in named and "chance" not in named:
        named.insert(named.index("accuracy") + 1, "chance")  # what an accuracy over pairs is worth, where that is known
    main = [one for one in named if number(values.get(one)) is not None]
    finite = {str(one): number(value) for one, value in list(values.items())[:MAX_METRICS]}
    return {
        "name": name[:MAX_TEXT],
        "kind": _text(content.get("kind")),
        "main": {one[:MAX_TEXT]: number(values[one]) for one in main[:MAX_MEASURES]},
        "shares": [one[:MAX_TEXT] for one in finite if is_share(one, [finite])],
        "tables": [_table(table) for table in _list(content.get("tables"))[:MAX_TABLES] if isinstance(table, dict)],
    }


def _table(table: dict[str, Any]) -> dict[str, Any]:
    columns = [one for one in _list(table.get("columns")) if isinstance(one, dict)][:MAX_COLUMNS]
    rows = [row for row in _list(table.get("rows")) if isinstance(row, list)]
    forms = [one.get("form") if one.get("form") in FORMS else "text" for one in columns]
    return {
        "title": _text(table.get("title")),
        "columns": [{"name": _text(one.get("name")), "form": form} for one, form in zip(columns, forms, strict=True)],
        "rows": [[_cell(row[i] if i < len(row) else None) for i in range(len(columns))] for row in rows[:MAX_ROWS]],
        "more": max(0, len(rows) - MAX_ROWS),
        "note": _text(table.get("note")),
    }


def _cell(value: object) -> str | float | int | None:
    return value[:MAX_TEXT] if isinstance(value, str) else number(value)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else ""
