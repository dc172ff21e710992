"""The viewer as a static site: the same page, with the runs in small JSON files, for any web server.

data/runs.json, and for each run data/rN/: overview.json, stages.json, validations.json, and for each stage sN/:
rows-K.json (what can be filtered and sorted) and groups-K.json (what is shown of a group).
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.storage import writing
from rewardsmith.viewer.report import web_file
from rewardsmith.viewer.rollout_query import RolloutPages
from rewardsmith.viewer.rollout_view import IN_VIEWER, group_view
from rewardsmith.viewer.run_list import OpenRun, RunList
from rewardsmith.viewer.view_page import PAGE_FILES, page

ROWS = 500  # groups in a file of rows
GROUPS = 20  # groups in a file of bodies


def write_bundle(runs: RunList, folder: Path) -> int:
    """Write the site into a new or empty folder, and return how many groups it shows."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{str(folder)!r} is not empty: name a new folder for --bundle")
    count = 0
    with writing(folder):
        for name in PAGE_FILES:
            path = folder / "web" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(web_file(name), encoding="utf-8")
        for i, run in enumerate(runs.runs().values()):
            count += _write_run(run, folder / "data" / f"r{i}")
        entries = runs.entries()
        _write(folder / "data" / "runs.json", {"runs": entries, "version": runs.version})
        (folder / "index.html").write_text(page(bundle=True), encoding="utf-8")
    return count


def _write_run(run: OpenRun, folder: Path) -> int:
    pages = run.pages
    while pages.index.update() < 1:
        pass
    _write(folder / "overview.json", run.overview())
    stages = list(pages.stages())
    for i, stage in enumerate(stages):
        lost = _write_stage(pages, stage["name"], folder / f"s{i}")
        stages[i] = stage | {"groups": stage["groups"] - lost, "unread": stage["unread"] + lost}
    files = {"rows": ROWS, "groups": GROUPS}
    _write(folder / "stages.json", {"stages": stages, "indexed": 1.0, "files": files})
    _write(folder / "validations.json", {"validations": pages.validations(), "indexed": 1.0})
    return sum(stage["groups"] for stage in stages)


def _write_stage(pages: RolloutPages, stage: str, folder: Path) -> int:
    """Write the groups of a stage, and return how many were left out because they cannot be read.

    The number of a file is that of its lines, divided by how many it may hold.
    """
    lost: set[int] = set()
    for k, rows in groupby(pages.all_rows(stage), lambda row: row["line"] // GROUPS):
        bodies: dict[int, Any] = {}
        for row in rows:
            try:
                bodies[row["line"]] = group_view(pages.record(stage, row["line"]), IN_VIEWER)
            except UserError:
                lost.add(row["line"])
        _write(folder / f"groups-{k}.json", bodies)
    readable = (row for row in pages.all_rows(stage) if row["line"] not in lost)
    for k, rows in groupby(readable, lambda row: row["line"] // ROWS):
        _write(folder / f"rows-{k}.json", list(rows))
    return len(lost)


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, allow_nan=False, separators=(",", ":")), encoding="utf-8")
