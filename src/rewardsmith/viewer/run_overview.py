"""What a run folder holds apart from its rollouts, as JSON values: facts, results, curves, audits, evaluations, recipe.

The report and the viewer show the same overview. A run that was killed may leave a line that is not complete: it is
left out. Numbers that are not finite have become None.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rewardsmith.checks import require_count, require_text
from rewardsmith.storage import flat
from rewardsmith.viewer.display_rules import chance_of, is_share, results
from rewardsmith.viewer.growing_file import Position, is_continued, new_lines
from rewardsmith.viewer.rollout_view import UNREADABLE, number, parse_line, read_json, short_text
from rewardsmith.viewer.trust_view import read_trust

MAX_POINTS = 500  # points of a curve
MAX_METRICS_BYTES = 24_000_000  # of a longer file every n-th line is read, and every line with a validation
MAX_CURVES = 600  # a page shows how many more there were
MAX_ROWS = 250  # rows of a table of an evaluation
MAX_COLUMNS = 40
MAX_TABLES = 40  # of one evaluation
MAX_CELL = 2_000  # characters
MAX_REPLAYS = 20
MAX_RECIPE = 200_000  # characters
MAX_LINE = 32_000_000  # bytes of the group that names the parts of a reward
MAX_PARTS = 100

Curves = dict[str, dict[int, float]]
"""Of each metric the value at each step."""


class MetricsFile:
    """The curves of each stage in `metrics.jsonl`, both in the order of appearance; `read` continues where it ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start()

    def _start(self) -> None:
        self.stages: dict[str, Curves] = {}
        self.unread = 0  # lines
        self.seconds: float | None = None  # of the run, at its last line
        self._lines = 0
        self._position = Position()

    def read(self) -> MetricsFile:
        """Read what was added.

        Of two values for one step the later one counts: a resumed run repeats the steps after its last checkpoint.
        """
        if not is_continued(self._path, self._position):
            self._start()
        every = 1 + (self._path.stat().st_size if self._path.exists() else 0) // MAX_METRICS_BYTES
        for _, line in new_lines(self._path, self._position):
            self._lines += 1
            if (self._lines - 1) % every and b'"validation/' not in line:
                continue
            try:
                self._add(parse_line(line))
            except UNREADABLE:
                self.unread += 1
        return self

    def _add(self, record: Mapping[str, Any]) -> None:
        require_text("stage", record["stage"])
        require_count("step", record["step"], minimum=0)
        metrics = record.get("metrics", {}).items()
        values = {name: math.nan if value is None else float(value) for name, value in metrics}
        curves = self.stages.setdefault(record["stage"], {})
        self.seconds = record.get("seconds", self.seconds)
        for name, value in values.items():
            curves.setdefault(name, {})[record["step"]] = value


def read_overview(folder: Path, metrics: MetricsFile | None = None) -> dict[str, Any]:
    """Return the overview of a run, whatever state it is in; its stages have no rollouts."""
    summary = read_summary(folder)
    found = (metrics or MetricsFile(folder / "metrics.jsonl")).read()
    recipe = _read_recipe(folder)
    table = _parse_recipe(recipe)
    # A run writes its summary when it ends; until then its recipe has the steps, and its metrics the rest.
    planned = {stage["name"]: {key: stage.get(key) for key in ("type", "steps")} for stage in named_stages(table)}
    known = {stage["name"]: stage for stage in named_stages(summary)}
    with_rollouts = [path.stem for path in sorted((folder / "rollouts").glob("*.jsonl"))]
    names = list(dict.fromkeys([*known, *found.stages, *with_rollouts]))
    curves = sum(len(found.stages.get(name, {})) for name in names)
    left, stages = MAX_CURVES, []
    for name in names:
        shown = dict(list(found.stages.get(name, {}).items())[:left])
        left -= len(shown)
        parts = part_names(folder / "rollouts" / f"{name}.jsonl") if name in with_rollouts else []
        stages.append(_stage(name, known.get(name) or planned.get(name, {}), shown) | {"parts": parts})
    return {
        "title": summary.get("title") or folder.resolve().name or "run",
        "state": summary.get("state", "unknown"),
        "error": summary.get("error", "")[:4_000],
        "seconds": number(summary.get("seconds") or found.seconds),
        "facts": _facts(summary.get("facts", {}), table),
        "stages": stages,
        "trust": read_trust(folder / "audit.json"),
        "evaluations": read_evaluations(folder, list(known)),
        "replays": read_replays(folder),
        "models": [{"name": name, "used": numbers(used)} for name, used in summary.get("models", {}).items()],
        "recipe": recipe,
        "settings": {path: value[:2_000] for path, value in flat(table).items()},
        "unread": found.unread,
        "left_out": max(0, curves - MAX_CURVES),
    }


def _stage(name: str, known: Mapping[str, Any], curves: Curves) -> dict[str, Any]:
    steps = max((step for curve in curves.values() for step in curve), default=0)
    validation = {metric: sorted(curve.items()) for metric, curve in curves.items() if metric.startswith("validation/")}
    validated = sorted({step for curve in validation.values() for step, _ in curve})
    first = {metric: curve[0][1] for metric, curve in validation.items() if curve[0][0] == 0}
    last = {metric: curve[-1][1] for metric, curve in validation.items()}
    before, after = numbers(known.get("before") or first), numbers(known.get("after") or last)
    before = {} if validated == [0] else before  # nothing has been trained since
    history = [{metric: curves[metric][step] for metric in validation if step in curves[metric]} for step in validated]
    return {
        "name": name[:200],
        "type": known.get("type") or "",
        "steps": known.get("steps") or steps,
        "done": known.get("done", steps),
        "seconds": number(known.get("seconds")),
        "before": before,
        "after": after,
        "results": [{"name": one, "chance": after.get(chance_of(one))} for one in results(before, after)],
        "shares": [metric for metric in after if is_share(metric, [before, after, *history])],
        "curves": [{"name": metric[:200], **drawn(curve)} for metric, curve in curves.items()],
    }


def part_names(path: Path) -> list[str]:
    """Return the names of the parts of the reward in a rollouts file, as its first group has them."""

    def names(score: Mapping[str, Any], prefix: str = "") -> list[str]:
        inner = score.get("parts") or {}
        return [name for part in inner for name in (f"{prefix}{part}", *names(inner[part], f"{prefix}{part}."))]

    try:
        with path.open("rb") as file:
            return names(parse_line(file.readline(MAX_LINE))["scored"]["scores"][0])[:MAX_PARTS]
    except (OSError, *UNREADABLE):
        return []


def read_summary(folder: Path) -> dict[str, Any]:
    """Return what `summary.json` has of the right type."""
    kinds = {"title": str, "state": str, "error": str, "facts": dict, "stages": list, "models": dict}
    return _of_kinds(read_json(folder / "summary.json"), kinds)


def named_stages(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the stages of a summary or a recipe that have a name, with what they have of the right type."""
    kinds = {"name": str, "type": str, "steps": int, "done": int}
    found = [_of_kinds(stage, kinds) for stage in table.get("stages", []) if isinstance(stage, dict)]
    return [stage for stage in found if "name" in stage]


def _of_kinds(table: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if isinstance(value, kinds.get(name, object))}


def numbers(table: object) -> dict[str, float | int | None]:
    """Return the values of a table of measures; none of what is no table."""
    return {name[:200]: number(value) for name, value in table.items()} if isinstance(table, dict) else {}


# ---- facts of the run ------------------------------------------------------------------------------------------------


def _read_recipe(folder: Path) -> str:
    path = folder / "recipe.toml"
    return path.read_text(encoding="utf-8", errors="replace")[:MAX_RECIPE] if path.exists() else ""


def _parse_recipe(text: str) -> dict[str, Any]:
    try:
        return _of_kinds(tomllib.loads(text), {"models": dict, "stages": list})
    except (ValueError, RecursionError):  # of a folder that was damaged, or a recipe that was cut
        return {}


def _facts(written: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[list[str]]:
    """Return the facts in the head of a page as names and values; older runs have fewer of them."""
    models = recipe.get("models", {})
    versions = _of_kinds(written, {"versions": dict}).get("versions", {})
    found = {
        "started": str(written.get("started", "")),
        "models": ", ".join(f"{name}: {_origin(table)}" for name, table in models.items() if isinstance(table, dict)),
        "seed": str(recipe.get("seed", "")),
        "device": str(written.get("device", "")),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return [[name, value[:1_000]] for name, value in found.items() if value]


def _origin(table: Mapping[str, Any]) -> str:
    """Return what a model of a recipe is: its folder or id, the model that it copies, or its server."""
    keys = ("init", "copy_of", "model", "urls", "type")
    name, value = next(((key, table[key]) for key in keys if table.get(key)), ("", "default"))
    return f"copy of {value}" if name == "copy_of" else str(value)


# ---- curves ----------------------------------------------------------------------------------------------------------


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
    made = []
    for name in sorted(found, key=lambda name: (places.get(name, len(places)), name)):
        with suppress(*UNREADABLE):  # a file that was cut is left out
            evaluation = _evaluation(name, read_json(found[name]))
            json.dumps(evaluation, allow_nan=False)
            made.append(evaluation)
    return made


def read_replays(folder: Path) -> list[dict[str, Any]]:
    """Return what `score --compare --keep NAME` wrote, by name; a file that cannot be read is `unread`."""
    made = []
    for file in sorted((folder / "replays").glob("*.json"))[:MAX_REPLAYS]:
        try:
            replay = _evaluation(file.stem, {"kind": "", **read_json(file)})
            json.dumps(replay, allow_nan=False)
        except UNREADABLE:
            replay = {"name": file.stem, "tables": [], "shares": [], "unread": True}
        made.append(replay)
    return made


def _evaluation(name: str, content: dict[str, Any]) -> dict[str, Any]:
    metrics = numbers(content["metrics"])
    main = [one for one in content.get("main", ()) if one in metrics]
    if "accuracy" in main and "chance" in metrics and "chance" not in main:
        main.insert(main.index("accuracy") + 1, "chance")  # what an accuracy over pairs is worth
    return {
        "name": name,
        "kind": content["kind"],
        "main": {one: metrics[one] for one in main},
        "shares": [one for one in metrics if is_share(one, [metrics])],
        "tables": [_table(table) for table in content["tables"][:MAX_TABLES]],
    }


def _table(content: Mapping[str, Any]) -> dict[str, Any]:
    columns = content["columns"][:MAX_COLUMNS]
    return {
        "title": short_text(content["title"], MAX_CELL),
        "columns": [{"name": short_text(one["name"], 200), "form": short_text(one["form"], 20)} for one in columns],
        "rows": [[_cell(row[i]) for i in range(len(columns))] for row in content["rows"][:MAX_ROWS]],
        "more": max(0, len(content["rows"]) - MAX_ROWS),
        "note": short_text(content.get("note", ""), MAX_CELL),
    }


def _cell(value: object) -> str | float | int | None:
    return value[:MAX_CELL] if isinstance(value, str) else number(value)
