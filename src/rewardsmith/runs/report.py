"""The report of a run: one HTML file that needs nothing else, for a person to look at.

Python extracts a bounded digest of the folder and embeds it as JSON; `report.js` lays it out, `report_charts.js` draws
the curves, and `report_tokens.js` colours tokens by their rewards. Text that a model wrote goes through that JSON and
then only into text nodes, so it cannot become markup, and the page's own policy allows no script but the one written
with it, and no connection to anywhere. A run that was killed may leave a line that is not complete: it is left out.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from rewardsmith.runs.report_rollouts import number, parse_line, read_rollouts
from rewardsmith.runs.summary import chance_of, is_share, results
from rewardsmith.storage import write_atomically

MAX_POINTS = 500  # points of a curve
MAX_METRICS_BYTES = 24_000_000  # of a longer file every n-th line is read, and every line with a validation
MAX_CURVES = 600  # the report shows how many more there were
MAX_ROWS = 250  # rows of a table of an evaluation
SCRIPTS = ("report_charts.js", "report_tokens.js", "report.js")  # the page's scripts, in the order in which they run
Curves = dict[str, dict[int, float]]
"""Of each metric the value at each step."""


def write_report(folder: Path) -> Path:
    """Write `report.html` for the run in `folder`, whatever state the run is in, and return its path."""
    path = folder / "report.html"
    write_atomically(path, render(digest(folder)))
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
    summary = _read_json(folder / "summary.json")
    metrics, unread = read_metrics(folder / "metrics.jsonl")
    rollouts = {path.stem: path for path in sorted((folder / "rollouts").glob("*.jsonl"))}
    known = {stage["name"]: stage for stage in summary.get("stages", [])}
    names = list(dict.fromkeys([*known, *metrics, *rollouts]))
    curves = sum(len(metrics.get(name, {})) for name in names)
    left, stages = MAX_CURVES, []
    for name in names:
        shown = dict(list(metrics.get(name, {}).items())[:left])
        left -= len(shown)
        examples = read_rollouts(rollouts[name]) if name in rollouts else None
        stages.append(_stage(name, known.get(name, {}), shown, examples))
    recipe = folder / "recipe.toml"
    return {
        "title": summary.get("title") or folder.resolve().name or "run",
        "state": summary.get("state", "unknown"),
        "error": summary.get("error", "")[:4_000],
        "seconds": number(summary.get("seconds")),
        "stages": stages,
        "evaluations": read_evaluations(folder, list(known)),
        "models": [{"name": name, "used": _numbers(used)} for name, used in summary.get("models", {}).items()],
        "recipe": recipe.read_text(encoding="utf-8", errors="replace")[:200_000] if recipe.exists() else "",
        "unread": unread,
        "left_out": max(0, curves - MAX_CURVES),
    }


def _stage(name: str, known: Mapping[str, Any], curves: Curves, rollouts: dict[str, Any] | None) -> dict[str, Any]:
    steps = max((step for curve in curves.values() for step in curve), default=0)
    validation = {metric: sorted(curve.items()) for metric, curve in curves.items() if metric.startswith("validation/")}
    first = {metric: curve[0][1] for metric, curve in validation.items() if curve[0][0] == 0}
    last = {metric: curve[-1][1] for metric, curve in validation.items()}
    before, after = _numbers(known.get("before") or first), _numbers(known.get("after") or last)
    validated = sorted({step for curve in validation.values() for step, _ in curve})
    history = [{metric: curves[metric][step] for metric in validation if step in curves[metric]} for step in validated]
    return {
        "name": name[:200],
        "type": known.get("type", ""),
        "steps": known.get("steps") or steps,
        "done": known.get("done", steps),
        "seconds": number(known.get("seconds")),
        "before": before,
        "after": after,
        "results": [{"name": one, "chance": after.get(chance_of(one))} for one in results(before, after)],
        "shares": [metric for metric in after if is_share(metric, [before, after, *history])],
        "curves": [{"name": metric[:200], **drawn(curve)} for metric, curve in curves.items()],
        "rollouts": rollouts,
    }


def _read_json(path: Path) -> dict[str, Any]:
    return parse_line(path.read_bytes()) if path.exists() else {}


def _numbers(table: Mapping[str, Any]) -> dict[str, float | int | None]:
    return {name[:200]: number(value) for name, value in table.items()}


# ---- curves ----------------------------------------------------------------------------------------------------------


def read_metrics(path: Path) -> tuple[dict[str, Curves], int]:
    """Return the curves of each stage, both in the order of appearance, and how many lines could not be read.

    Of two values for one step the later one counts: a resumed run repeats the steps after its last checkpoint.
    """
    stages: dict[str, Curves] = {}
    unread = 0
    if not path.exists():
        return stages, unread
    every = 1 + path.stat().st_size // MAX_METRICS_BYTES
    with path.open("rb") as file:
        for i, line in enumerate(file):
            if i % every and b'"validation/' not in line:
                continue
            record = parse_line(line)
            unread += not record
            curves = stages.setdefault(record["stage"], {}) if record else {}
            for name, value in record.get("metrics", {}).items():
                curves.setdefault(name, {})[record["step"]] = math.nan if value is None else float(value)
    return stages, unread


def drawn(curve: dict[int, float]) -> dict[str, Any]:
    """Return at most `MAX_POINTS` points of a curve as `x` and `y`, and how many values were not finite."""
    points = thinned(sorted(curve.items()), MAX_POINTS)
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
        kept += sorted({min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])})
    return [*kept, points[-1]]


# ---- evaluations -----------------------------------------------------------------------------------------------------


def read_evaluations(folder: Path, stages: Sequence[str]) -> list[dict[str, Any]]:
    """Return the evaluations of a run: those of its stages in their order, others after them."""
    found = {file.stem: file for file in sorted((folder / "evaluations").glob("*.json"))}
    places = {name: i for i, name in enumerate(stages)}
    return [
        _evaluation(name, _read_json(found[name]))
        for name in sorted(found, key=lambda name: (places.get(name, len(places)), name))
    ]


def _evaluation(name: str, content: dict[str, Any]) -> dict[str, Any]:
    metrics = _numbers(content["metrics"])
    main = [one for one in content.get("main", ()) if one in metrics]
    if "accuracy" in main and "chance" in metrics and "chance" not in main:
        main.insert(main.index("accuracy") + 1, "chance")  # what an accuracy over pairs is worth
    return {
        "name": name,
        "kind": content["kind"],
        "main": {one: metrics[one] for one in main},
        "shares": [one for one in metrics if is_share(one, [metrics])],
        "tables": [
            {**table, "rows": table["rows"][:MAX_ROWS], "more": max(0, len(table["rows"]) - MAX_ROWS)}
            for table in content["tables"]
        ],
    }
