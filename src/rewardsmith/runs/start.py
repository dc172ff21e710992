"""Start or resume a run: which folder, which checkpoint, and what happens on Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console

from rewardsmith import __version__
from rewardsmith.engines.managed.server_process import Launch
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.engines.protocol import Engine
from rewardsmith.errors import UserError
from rewardsmith.recipe import Recipe, explain
from rewardsmith.runs.folder import LOCK, RECIPE, SUMMARY, RunFolder
from rewardsmith.runs.model_registry import usage_line
from rewardsmith.runs.preflight import RewardTrees
from rewardsmith.runs.progress import LOG, Progress, RunLog
from rewardsmith.runs.resume import extended
from rewardsmith.runs.run import Run, Stopped
from rewardsmith.storage import differences
from rewardsmith.viewer.report import write_report

Resume = Literal["auto", "never", "must"]


def start(
    recipe: Recipe,
    name: str,
    *,
    rewards: RewardTrees | None = None,
    folder: Path | None = None,
    resume: Resume = "auto",
    accept_changes: bool = False,
    on: Literal["embedded", "verl"] = "embedded",
    ignore_memory: bool = False,
    console: Console | None = None,
    stop: threading.Event | None = None,
) -> Path:
    """Run a recipe from the start or from its last checkpoint; return the run folder.

    Without a `folder` it is `runs/NAME`, or `runs/NAME-2` and so on. `auto` resumes a run that has not finished, `must`
    insists that there is one, `never` starts a new one; `accept_changes` resumes although the recipe has changed. `on`
    says what runs the models: this process, or verl's workers on Ray. `ignore_memory` starts what does not seem to fit.
    `Stopped` is raised after Ctrl-C, or when `stop` is set from another thread, with what was saved.
    """
    console = console or Console(stderr=True)
    path = _choose(folder, Path("runs") / name, resume, recipe, accept_changes)
    files = RunFolder(path)
    with files.locked():
        if files.checkpoints():
            if resume == "never" and folder is not None:
                raise UserError(f"{str(path)!r} holds a run already: use another --folder, or --resume auto")
            if not accept_changes:
                _require_unchanged(files, recipe)
            if _state(path) == "finished" and not (accept_changes and extended(files, recipe)):
                console.print(f"{path} has finished already; its report is {path / 'report.html'}")
                return path
        with ExitStack() as stack:
            try:
                starts = stack.enter_context(_cluster(recipe, path, console)) if on == "verl" else (None, None)
                run = Run(recipe, files, Progress(console), rewards, *starts, ignore_memory=ignore_memory, stop=stop)
            except UserError as error:
                RunLog(path / LOG).failed(error)
                raise
            console.print(f"run folder: {path}", highlight=False)
            _go(run, files, console)
        console.print(f"models: {path / 'models'}\nreport: {path / 'report.html'}", highlight=False)
    return path


@contextmanager
def _cluster(
    recipe: Recipe, path: Path, console: Console
) -> Iterator[tuple[Callable[[ModelSettings, int, str], Engine], Launch]]:
    from rewardsmith.runs.verl_command import verl_configs  # noqa: PLC0415 only a run on a cluster needs it
    from rewardsmith.scale.launch import launch  # noqa: PLC0415

    verl_configs(recipe)  # what verl refuses is found before Ray starts
    console.print("starting Ray and verl", highlight=False)
    with launch(recipe.scale, path.absolute() / "scale", recipe.models) as starts:
        yield starts


def _go(run: Run, files: RunFolder, console: Console) -> None:
    """Run the stages, and show and record how they ended."""
    try:
        with _recorded(run, files), _stopping(run, console):
            asyncio.run(run.go())
        console.print(run.state.summary.table())
    finally:
        if run.state.summary.state != "failed":
            for model, used in run.state.summary.models.items():
                console.print(f"{model}: {usage_line(used)}", highlight=False, markup=False)
        try:
            write_report(files.path)
        except OSError as error:  # a report is not worth losing a run's own message for
            console.print(f"the report could not be written: {error}", style="yellow")


@contextmanager
def _recorded(run: Run, files: RunFolder) -> Iterator[None]:
    """Record how a run ended: in `run.log`, and in its summary, which the report shows."""
    run.run_log.write(f"rewardsmith {__version__} starts in {files.path}")
    was_finished = _state(files.path) == "finished"
    try:
        with run.run_log.warnings():
            yield
    except BaseException as caught:
        error = _as_shown(caught)
        summary = run.state.summary
        if isinstance(error, Stopped):
            run.run_log.write(str(error))
            summary.state = "stopped"
        else:
            if error is not caught:
                run.run_log.write(f"caused by {type(caught).__name__}: {caught}")
            run.run_log.failed(error)
            known = isinstance(error, UserError)
            summary.state = "failed"
            summary.error = str(error) if known else f"{type(error).__name__}: {error} (see {LOG})"
        # A finished run stays finished if this start failed before it changed anything.
        if run.positioned and not (was_finished and _state(files.path) == "finished"):
            with suppress(UserError):  # of a disk that is full: that is the error already
                files.write(SUMMARY, summary.dumps())
        if error is caught:
            raise
        raise error from None
    run.state.summary.state = "finished"
    files.write(SUMMARY, run.state.summary.dumps())
    run.run_log.write(f"finished after {run.state.summary.seconds:.0f} s")


def _as_shown(error: BaseException) -> BaseException:
    """Return an error as the user sees it: a stop with what it saved or lost, a full GPU with the remedy."""
    if isinstance(error, Stopped):
        return Stopped("stopped; everything is saved. To resume, run the same command again.")
    if isinstance(error, KeyboardInterrupt):
        return Stopped("stopped at once; the work since the last checkpoint is lost. To resume, run the same command.")
    if isinstance(error, torch.OutOfMemoryError):
        return UserError(
            "the GPU has not enough memory. Lower models.NAME.rows for writing and models.NAME.tokens_per_pass for"
            ' learning, set recompute = "offload" or optimizer.offload = true, or give a model another GPU (device);'
            f" then run the same command with --accept-changes. ({error})"
        )
    if type(error).__module__.startswith("ray."):
        from rewardsmith.scale.launch import worker_error  # noqa: PLC0415 only a run on a cluster needs it

        return worker_error(error) or error
    return error


def _choose(folder: Path | None, default: Path, resume: Resume, recipe: Recipe, accept_changes: bool) -> Path:
    """Return the folder to use: the newest one of this name that has not finished, or the next free one.

    A start that failed before its first step leaves a folder without a recipe, which is free.
    """
    if folder is not None:
        if resume == "must" and not (folder / RECIPE).exists():
            raise UserError(f"there is no run in {str(folder)!r} to resume: check --folder, or use --resume auto")
        return folder
    taken: list[Path] = []
    while (free := default if not taken else default.with_name(f"{default.name}-{len(taken) + 1}")).exists():
        taken.append(free)
    while taken and (taken[-1] / LOCK).exists() and not (taken[-1] / RECIPE).exists():
        free = taken.pop()
    if taken and resume != "never" and (taken[-1] / RECIPE).exists():
        newest = taken[-1]
        if _state(newest) != "finished" or (accept_changes and extended(RunFolder(newest), recipe)):
            return newest
    if resume == "must":
        raise UserError(f"no run {str(default)!r} has been stopped before its end: there is nothing to resume")
    return free


def _state(folder: Path) -> str:
    """Return the state in the summary of a run; "" without a summary."""
    file = folder / SUMMARY
    return str(json.loads(file.read_text(encoding="utf-8"))["state"]) if file.exists() else ""


def _require_unchanged(files: RunFolder, recipe: Recipe) -> None:
    """Refuse to resume under another recipe than before."""
    text = files.read(RECIPE)
    changed = [] if text is None else differences(tomllib.loads(text), tomllib.loads(explain(recipe)))
    if changed:
        raise UserError(
            f"the recipe has changed since the run in {str(files.path)!r} stopped:\n"
            + "\n".join(f"  {change}" for change in changed)
            + "\nUse --accept-changes to resume with the new settings; --resume never or another --folder starts a new"
            " run"
        )


@contextmanager
def _stopping(run: Run, console: Console) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, let the run save at the next safe point; a second Ctrl-C ends it at once."""
    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield
        return

    def stop(number: int, _frame: object) -> None:
        if run.stop.is_set():
            raise KeyboardInterrupt
        run.stop.set()
        run.run_log.write("stopping: saving at the next safe point")
        text = (
            "\nstopping: the run saves and ends at the next safe point, at the latest after the update in progress."
            " Ctrl-C again stops at once, and loses the work since the last checkpoint."
        )
        console.print(text, style="yellow", highlight=False, soft_wrap=True)

    before = {kind: signal.signal(kind, stop) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


__all__ = ["Resume", "Stopped", "start"]
