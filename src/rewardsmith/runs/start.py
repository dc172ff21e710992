"""Start a run, or go on with one: which folder, which checkpoint, and what happens on Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console

from rewardsmith.errors import UserError
from rewardsmith.recipe import Recipe, explain
from rewardsmith.runs.changes import changes
from rewardsmith.runs.folder import RECIPE, SUMMARY, RunFolder
from rewardsmith.runs.progress import Progress
from rewardsmith.runs.report import write_report
from rewardsmith.runs.run import Run, Stopped
from rewardsmith.runs.summary import Summary
from rewardsmith.runs.usage import told

Resume = Literal["auto", "never", "must"]


def start(
    recipe: Recipe,
    name: str,
    *,
    folder: Path | None = None,
    resume: Resume = "auto",
    accept_changes: bool = False,
    console: Console | None = None,
) -> Path:
    """Run a recipe from the start or from its last checkpoint; return the run folder.

    Args:
        recipe: what to do.
        name: of the run; without a folder it is `runs/NAME`, or `runs/NAME-2` and so on.
        folder: where the files go.
        resume: `auto` goes on with a run that has not finished, `must` insists that there is one, `never` starts anew.
        accept_changes: go on although the recipe has changed since the run stopped.
        console: where to write.

    Raises:
        UserError: for whatever a user can mend.
        Stopped: after Ctrl-C; the message says what has been saved.
    """
    console = console or Console(stderr=True)
    files = RunFolder(_choose(folder, Path("runs") / name, resume))
    with files.locked():
        if files.checkpoints():
            if resume == "never" and folder is not None:
                raise UserError(f"{str(files.path)!r} holds a run already: use another --folder, or --resume auto")
            _require_unchanged(files, recipe, accept_changes)
            if _state(files.path) == "finished":
                console.print(f"{files.path} has finished already; its report is {files.path / 'report.html'}")
                return files.path
        run = Run(recipe, files, Progress(console))
        console.print(f"run folder: {files.path}", highlight=False)
        try:
            with _stopping(run, files, console):
                asyncio.run(run.go())
        except Stopped:
            _tell_models(run.summary, console)
            raise Stopped("stopped; everything is saved. To go on, run the same command again.") from None
        except KeyboardInterrupt:
            _tell_models(run.summary, console)
            raise Stopped(f"stopped at once; {_lost(files)}. To go on, run the same command again.") from None
        except torch.OutOfMemoryError as error:
            raise UserError(
                "the GPU has not enough memory. Lower models.NAME.rows for writing and models.NAME.tokens_per_pass for"
                f" learning, or set recompute = true; then run the same command with --accept-changes. ({error})"
            ) from None
        finally:
            _report(files.path, console)
        console.print(run.summary.table())
        _tell_models(run.summary, console)
        console.print(f"models: {files.path / 'models'}\nreport: {files.path / 'report.html'}", highlight=False)
    return files.path


def _report(folder: Path, console: Console) -> None:
    try:
        write_report(folder)
    except OSError as error:  # a report is not worth losing a run's own message for
        console.print(f"the report could not be written: {error}", style="yellow")


def _tell_models(summary: Summary, console: Console) -> None:
    for name, used in summary.models.items():
        console.print(f"{name}: {told(used)}", highlight=False, markup=False)


def _choose(folder: Path | None, default: Path, resume: Resume) -> Path:
    """Return the folder to use: the newest one of this name that has not finished, or the next free one."""
    if folder is not None:
        if resume == "must" and not (folder / RECIPE).exists():
            raise UserError(f"there is no run in {str(folder)!r} to go on with: check --folder, or use --resume auto")
        return folder
    number, last = 1, None
    while (candidate := default if number == 1 else default.with_name(f"{default.name}-{number}")).exists():
        last, number = candidate, number + 1
    if last is not None and resume != "never" and (last / RECIPE).exists() and _state(last) != "finished":
        return last
    if resume == "must":
        raise UserError(f"no run {str(default)!r} has been stopped before its end: there is nothing to go on with")
    return candidate


def _state(folder: Path) -> str:
    """Return what the summary of a run says: `running`, `stopped`, `finished`; "" without a summary."""
    try:
        return str(json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["state"])
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def _require_unchanged(files: RunFolder, recipe: Recipe, accepted: bool) -> None:
    """Refuse to go on under another recipe than before, unless the user says so."""
    text = files.read(RECIPE)
    if text is None or accepted:
        return
    try:
        changed = changes(tomllib.loads(text), tomllib.loads(explain(recipe)))
    except ValueError as error:
        raise UserError(f"{files.path / RECIPE} is not valid TOML any more: {error}") from None
    if changed:
        raise UserError(
            f"the recipe has changed since the run in {str(files.path)!r} stopped:\n"
            + "\n".join(f"  {path}: {change}" for path, change in changed.items())
            + "\nUse --accept-changes to go on with the new settings; --resume never or another --folder starts anew"
        )


def _lost(files: RunFolder) -> str:
    """Return what a stop without saving loses."""
    names = files.checkpoints()
    return f"all work since checkpoint {names[-1]} is lost" if names else "all work is lost: there is no checkpoint yet"


@contextmanager
def _stopping(run: Run, files: RunFolder, console: Console) -> Iterator[None]:
    """On Ctrl-C or a polite kill, let the run save at the next safe point; a second Ctrl-C ends it at once."""

    def stop(number: int, _frame: object) -> None:
        if run.stopping:
            raise KeyboardInterrupt
        run.stopping = True
        console.print(
            "\nstopping: the run saves and ends at the next safe point, at the latest after the update in progress."
            f" Ctrl-C again stops at once; then {_lost(files)}.",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )

    before = {kind: signal.signal(kind, stop) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


__all__ = ["Resume", "Stopped", "start"]
