"""The runs that a page shows: found again while it is open, read when they are asked for, each version once."""

from __future__ import annotations

import hashlib
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.viewer.display_rules import is_share, results
from rewardsmith.viewer.rollout_index import RolloutIndex, index_file
from rewardsmith.viewer.rollout_query import RolloutPages
from rewardsmith.viewer.rollout_view import number, parse_line
from rewardsmith.viewer.run_overview import MetricsFile, named_stages, numbers, read_overview, read_summary

MAX_DEPTH = 3  # folders between one that is named and a run
MAX_RUNS = 2_000
SCAN_SECONDS = 2.0  # between two looks for new runs
RETRY_SECONDS = 5.0  # until a run is indexed again after an error
WATCH_SECONDS = 60.0  # that the index of a run is kept up to date after the last request
_TAIL = 200_000  # bytes in which the last line of metrics is looked for


class OpenRun:
    """One run folder: what was read of it, and the index of its rollouts."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.wanted = 0.0  # when it was last asked for
        self._metrics = MetricsFile(folder / "metrics.jsonl")
        self._lock, self._index_lock = threading.Lock(), threading.Lock()
        self._overview: tuple[str, dict[str, Any]] = ("", {})
        self._pages: RolloutPages | None = None
        self.indexed = ""  # the version whose rollouts are all in the index
        self._retry = 0.0  # when indexing is tried again after an error

    @property
    def version(self) -> str:
        """Changes whenever a file of the run does."""
        files = [self.folder / name for name in ("summary.json", "metrics.jsonl", "recipe.toml", "audit.json")]
        for pattern in ("rollouts/*.jsonl", "evaluations/*.json", "replays/*.json"):
            files += sorted(self.folder.glob(pattern))
        return _stamp(files)

    def overview(self) -> dict[str, Any]:
        """Return the overview, as of now."""
        with self._lock:
            version = self.version
            if self._overview[0] != version:
                self._overview = version, {**read_overview(self.folder, self._metrics), "version": version}
            return self._overview[1]

    @property
    def pages(self) -> RolloutPages:
        """The pages of its rollouts, which the index may not have complete."""
        with self._index_lock:
            self.wanted = time.monotonic()
            if self._pages is None:
                try:
                    self._pages = RolloutPages(RolloutIndex(self.folder, index_file(self.folder)))
                except (OSError, sqlite3.Error) as error:
                    remedy = "choose another cache folder with REWARDSMITH_CACHE"
                    raise UserError(f"cannot write the index of the rollouts ({error}): {remedy}") from None
            return self._pages

    def update_index(self) -> bool:
        """Index the next piece of the rollouts; return whether something was done. An error is only logged."""
        version = self.version
        if self._pages is None or (version == self.indexed and self._pages.index.share >= 1):
            return False
        if time.monotonic() < self._retry:  # an error does not go away at once
            return False
        try:
            if self._pages.index.update() >= 1:
                self.indexed = version
        except Exception as error:  # noqa: BLE001 a full disk, a run that is being removed: other runs go on
            sys.stderr.write(f"the rollouts of {self.name} could not be indexed: {error!r}\n")
            self._retry = time.monotonic() + RETRY_SECONDS
            return False
        return True

    def entry(self) -> dict[str, Any]:
        """Return a line about the run for the list of runs."""
        summary = read_summary(self.folder)
        last = _last_line(self.folder / "metrics.jsonl") if summary.get("state") == "running" else {}
        now = {"name": last.get("stage"), "done": last.get("step")}
        stages = named_stages(summary) or named_stages({"stages": [now]})
        return {
            "name": self.name,
            "title": summary.get("title", "")[:300],
            "state": summary.get("state", "unknown"),
            "seconds": number(summary.get("seconds") or last.get("seconds")),
            "started": str(summary.get("facts", {}).get("started", "")),
            "stages": [
                {"name": stage["name"], "steps": stage.get("steps"), "done": stage.get("done", stage.get("steps"))}
                for stage in stages
            ],
            "results": [result for stage in stages for result in _results(stage)],
            "changed": _changed(self.folder),
            "version": self.version,
        }


def _results(stage: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the first result of a stage."""
    before, after = numbers(stage.get("before")), numbers(stage.get("after"))
    for name in results(before, after)[:1]:
        share = is_share(name, [side for side in (before, after) if side])
        values = {"before": before.get(name), "after": after.get(name)}
        yield {"stage": stage["name"], "name": name.removeprefix("validation/"), "share": share, **values}


def _last_line(path: Path) -> dict[str, Any]:
    """Return the last complete line of metrics."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return {}
    return parse_line(lines[-2]) if len(lines) > 1 else {}


def _changed(folder: Path) -> float:
    """Return when a run last wrote something, in seconds since 1970."""
    times = [0.0]
    for name in ("metrics.jsonl", "summary.json"):
        with suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    return max(times)


def _stamp(files: Sequence[Path]) -> str:
    made = hashlib.sha256()
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            continue
        made.update(f"{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return made.hexdigest()[:16]


class RunList:
    """The runs below some folders, by name: only these can be asked for."""

    def __init__(self, paths: Sequence[Path]) -> None:
        for path in paths:
            if not path.expanduser().is_dir():
                raise UserError(f"there is no folder {str(path)!r}: name run folders, or a folder that contains some")
        self._paths = [path.expanduser().resolve() for path in paths]
        self._runs: dict[str, OpenRun] = {}
        self._lock = threading.Lock()
        self._scanned = -SCAN_SECONDS

    def runs(self) -> dict[str, OpenRun]:
        """Return the runs that there are now, in the order of their names."""
        with self._lock:
            if time.monotonic() - self._scanned >= SCAN_SECONDS:
                known = {run.folder: run for run in self._runs.values()}
                names: dict[str, Path] = {}
                for root in self._paths:
                    for folder in _run_folders(root):
                        if folder not in names.values() and len(names) < MAX_RUNS:
                            names[_free_name(root, folder, names)] = folder
                found = {name: known.get(folder) for name, folder in names.items()}
                self._runs = {
                    name: run if run is not None and run.name == name else OpenRun(name, names[name])
                    for name, run in found.items()
                }
                self._scanned = time.monotonic()
            return self._runs

    def run(self, name: str) -> OpenRun:
        """Return a run by its name; a `UserError` if there is none."""
        found = self.runs().get(name)
        if found is None:
            raise UserError(f"there is no run {name[:100]!r}: see the list of runs")
        return found

    def entries(self) -> list[dict[str, Any]]:
        """Return a line about each run."""
        return [run.entry() for run in self.runs().values()]

    @property
    def version(self) -> str:
        """Changes when a run begins, ends or changes its results."""
        runs = self.runs()
        summaries = _stamp([run.folder / "summary.json" for run in runs.values()])
        return hashlib.sha256("\0".join([summaries, *runs]).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    def update_indexes(self) -> bool:
        """Index the next piece of each run that was asked for lately; return whether something was to be done."""
        now = time.monotonic()
        watched = [run for run in self.runs().values() if now - run.wanted < WATCH_SECONDS and run.wanted]
        updated = [run.update_index() for run in watched]  # all of them, not only the first
        return any(updated)


def _is_run(folder: Path) -> bool:
    return (folder / "rollouts").is_dir() or (folder / "summary.json").is_file()


def _run_folders(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Yield a folder that is a run, or the runs below it."""
    try:
        if _is_run(folder):
            yield folder
        elif depth < MAX_DEPTH:
            for child in sorted(folder.iterdir()):
                if child.is_dir() and not child.name.startswith("."):
                    yield from _run_folders(child, depth + 1)
    except OSError:  # a folder that may not be read, or has gone
        return


def _free_name(root: Path, folder: Path, taken: dict[str, Path]) -> str:
    """Return a name for a run: its path below the folder that was named, made unique."""
    base = folder.name if folder == root else folder.relative_to(root).as_posix()
    base = base.encode("utf-8", "backslashreplace").decode("utf-8")
    names = [base, f"{folder.parent.name}/{folder.name}", *(f"{base} ({i})" for i in range(2, MAX_RUNS + 2))]
    return next(name for name in names if name not in taken)
