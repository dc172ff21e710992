"""What a run folder holds apart from its rollouts, as JSON values: facts, results, curves, evaluations, recipe.

The report and the viewer show the same overview. A run that was killed may leave a line that is not complete: it is
left out. Numbers that are not finite have become None.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewardsmith.storage import flat
from rewardsmith.viewer.display_rules import chance_of, is_share, results
from rewardsmith.viewer.growing_file import Position, is_continued, new_lines
from rewardsmith.viewer.rollout_view import number, parse_line

MAX_POINTS = 500  # points of a curve
MAX_METRICS_BYTES = 24_000_000  # of a longer file every n-th line is read, and every line with a validation
MAX_CURVES = 600  # a page shows how many more there were
MAX_ROWS = 250  # rows of a table of an evaluation
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
            record = parse_line(line)
            self.unread += not record
            curves = self.stages.setdefault(record["stage"], {}) if record else {}
            self.seconds = record.get("seconds", self.seconds)
            for name, value in record.get("metrics", {}).items():
                curves.setdefault(name, {})[record["step"]] = math.nan if value is None else float(value)
        return self


def read_overview(folder: Path, metrics: MetricsFile | None = None) -> dict[str, Any]:
    """Return the overview of a run, whatever state it is in; its stages have no rollouts."""
    summary = read_json(folder / "summary.json")
    found = (metrics or MetricsFile(folder / "metrics.jsonl")).read()
    recipe = _read_recipe(folder)
    table = _parse_recipe(recipe)
    # A run writes its summary when it ends; until then its recipe has the steps, and its metrics the rest.
    planned = {
        stage.get("name"): {key: stage.get(key) for key in ("type", "steps")} for stage in table.get("stages", [])
    }
    known = {stage["name"]: stage for stage in summary.get("stages", [])}
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
        "evaluations": read_evaluations(folder, list(known)),
        "models": [{"name": name, "used": _numbers(used)} for name, used in summary.get("models", {}).items()],
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
    before, after = _numbers(known.get("before") or first), _numbers(known.get("after") or last)
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
    with path.open("rb") as file:
        record = parse_line(file.readline(MAX_LINE))

    def names(score: Mapping[str, Any], prefix: str = "") -> list[str]:
        inner = score.get("parts") or {}
        return [name for part in inner for name in (f"{prefix}{part}", *names(inner[part], f"{prefix}{part}."))]

    scores = record["scored"]["scores"] if record else []
    return names(scores[0])[:MAX_PARTS] if scores else []


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; an empty one where there is none."""
    return parse_line(path.read_bytes()) if path.exists() else {}


def _numbers(table: Mapping[str, Any]) -> dict[str, float | int | None]:
    return {name[:200]: number(value) for name, value in table.items()}


# ---- facts of the run ------------------------------------------------------------------------------------------------


def _read_recipe(folder: Path) -> str:
    path = folder / "recipe.toml"
    return path.read_text(encoding="utf-8", errors="replace")[:MAX_RECIPE] if path.exists() else ""


def _parse_recipe(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):  # of a folder that was damaged, or a recipe that was cut
        return {}


def _facts(written: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[list[str]]:
    """Return the facts in the head of a page as names and values; older runs have fewer of them."""
    models = recipe.get("models", {})
    versions = written.get("versions", {})
    found = {
        "started": str(written.get("started", "")),
        "models": ", ".join(f"{name}: {_origin(table)}" for name, table in models.items()),
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
    return [
        _evaluation(name, read_json(found[name]))
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
