"""The report of a run: one HTML file that needs nothing else, for a person to look at.

Python extracts a bounded digest of the folder and embeds it as JSON; `report.js` lays it out, `report_charts.js` draws
the curves, and `report_tokens.js` colours tokens by their rewards. Text that a model wrote goes through that JSON and
then only into text nodes, so it cannot become markup, and the page's own policy allows no script but the one written
with it, and no connection to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from rewardsmith.runs.forms import chance_of, is_share, results
from rewardsmith.runs.report_evaluations import read_evaluations
from rewardsmith.runs.report_metrics import MAX_LINE, Curves, drawn, number, parsed, read_metrics
from rewardsmith.runs.report_rollouts import read_rollouts
from rewardsmith.runs.report_tokens import MAX_ALL_VALUES, Room

MAX_POINTS = 2_000
"""Points of a curve."""

MAX_ALL_POINTS = 240_000
"""Points of all curves together: hundreds of metrics share them."""

MAX_CURVES = 600
"""Curves in a report; the report says how many more there were."""

MAX_STAGES = 64
"""Stages in a report."""

MAX_MODELS = 64
"""Models whose use is told."""

MAX_ERROR = 4_000
"""Characters of the error that ended a run."""

MAX_RECIPE = 200_000
"""Characters of the recipe that are shown."""

SCRIPTS = ("report_charts.js", "report_tokens.js", "report.js")
"""The page's scripts, in the order in which they run."""

_STATES = ("finished", "stopped", "failed", "running")


def write_report(folder: Path) -> Path:
    """Write `report.html` for the run in `folder`, whatever state the folder is in, and return its path.

    The file appears at once or not at all: a report that is open in a browser can be reloaded at any time.

    Raises:
        OSError: the folder is not there, or cannot be written.
        UserError: it holds a link.
    """
    path = folder / "report.html"
    partial = folder / f".report.html.{os.getpid()}"
    try:
        partial.write_text(render(digest(folder)), encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def render(content: dict[str, Any]) -> str:
    """Return the page for a digest."""
    room = files("rewardsmith.runs")
    page, style, *scripts = (room.joinpath(name).read_text("utf-8") for name in ("report.html", "report.css", *SCRIPTS))
    script = "".join(scripts)
    # A '<' in the data could end the script element that holds it; as an escape it means the same to JSON.
    data = json.dumps(content, allow_nan=False, separators=(",", ":"))
    data = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    blanks = {
        "title": html.escape(content["title"].encode("utf-8", "replace").decode("utf-8").replace("\0", "")),
        "policy": (
            f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)};"
            " base-uri 'none'; form-action 'none'"
        ),
        "style": style,
        "script": script,
        "data": data,
    }
    # In one pass: what is filled in is never searched for blanks again.
    return re.sub(r"\{\{(\w+)\}\}", lambda blank: blanks[blank[1]], page)


def _hash(inline: str) -> str:
    digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def digest(folder: Path) -> dict[str, Any]:
    """Return what a report shows of `folder` as plain JSON values; numbers that are not finite have become None."""
    summary = _read_table(folder / "summary.json")
    metrics, unread = read_metrics(folder / "metrics.jsonl")
    rollouts = {path.stem: path for path in sorted((folder / "rollouts").glob("*.jsonl")) if path.is_file()}
    told = {name: row for row in _rows(summary.get("stages")) if (name := _text(row.get("name")))}
    names = list(dict.fromkeys([*told, *metrics, *rollouts]))[:MAX_STAGES]
    state = summary.get("state")
    curves = sum(len(metrics.get(name, {})) for name in names)
    points = max(100, min(MAX_POINTS, MAX_ALL_POINTS // max(1, curves)))
    room = MAX_CURVES
    stages = []
    for name in names:
        kept = dict(list(metrics.get(name, {}).items())[:room])
        room -= len(kept)
        share = Room(MAX_ALL_VALUES // max(1, len(rollouts)))
        examples = read_rollouts(rollouts[name], share) if name in rollouts else None
        stages.append(_stage(name, told.get(name, {}), kept, points, examples))
    return {
        "title": _text(summary.get("title")) or folder.resolve().name or "run",
        "state": state if state in _STATES else "unknown",
        "error": _text(summary.get("error"), MAX_ERROR),
        "seconds": number(summary.get("seconds")),
        "stages": stages,
        "evaluations": read_evaluations(folder, list(told)),
        "models": _models(summary.get("models")),
        "recipe": _read_text(folder / "recipe.toml"),
        "unread": unread,
        "left_out": max(0, curves - MAX_CURVES),
    }


def _stage(
    name: str, told: dict[str, Any], curves: Curves, points: int, rollouts: dict[str, Any] | None
) -> dict[str, Any]:
    steps = max((step for curve in curves.values() for step in curve), default=0)
    validation = {metric: sorted(curve.items()) for metric, curve in curves.items() if metric.startswith("validation/")}
    before = {metric: curve[0][1] for metric, curve in validation.items() if len(curve) > 1}
    after = {metric: curve[-1][1] for metric, curve in validation.items()}
    told_before, told_after = _numbers(told.get("before") or before), _numbers(told.get("after") or after)
    steps_seen = {step for curve in validation.values() for step, _ in curve}
    seen = [{m: curves[m][step] for m in validation if step in curves[m]} for step in sorted(steps_seen)]
    shown = results(told_before, told_after)
    return {
        "name": name[:200],
        "type": _text(told.get("type")),
        "steps": number(told.get("steps")) or steps,
        "done": steps if number(told.get("done")) is None else number(told.get("done")),
        "seconds": number(told.get("seconds")),
        "before": told_before,
        "after": told_after,
        "results": [{"name": metric, "chance": told_after.get(chance_of(metric))} for metric in shown],
        "shares": [metric for metric in told_after if is_share(metric, [told_before, told_after, *seen])],
        "curves": [{"name": metric[:200], **drawn(curve, points)} for metric, curve in curves.items()],
        "rollouts": rollouts,
    }


def _models(told: object) -> list[dict[str, Any]]:
    """Return what was asked of each model: its name, and the counts of `Usage`."""
    rows = list(told.items())[:MAX_MODELS] if isinstance(told, dict) else []
    return [{"name": str(name)[:200], "used": _numbers(used)} for name, used in rows]


def _read_table(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return parsed(file.read(MAX_LINE))
    except OSError:
        return {}


def _read_text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_RECIPE)
    except OSError:
        return ""


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _numbers(table: object) -> dict[str, float | int | None]:
    rows = list(table.items())[:MAX_CURVES] if isinstance(table, dict) else []
    return {str(name)[:200]: number(value) for name, value in rows}


def _text(value: object, limit: int = 500) -> str:
    return value[:limit] if isinstance(value, str) else ""
