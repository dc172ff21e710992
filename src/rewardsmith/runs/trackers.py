"""Trackers: other programs that show a run's metrics while it goes on.

Each library is an extra (`pip install "rewardsmith[wandb]"`) and is imported when a run starts, not before. A run never
depends on its trackers: what the folder holds is complete without them, and `Guarded` switches one off that fails.

    tracker = Guarded("tensorboard", TensorBoard())
    tracker.start(folder, name="quickstart", recipe=text)
    tracker.log(1, {"reward/mean": 0.25})
    tracker.close()
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import time
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from rewardsmith.errors import UserError

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    """What follows a run. Called from one thread: `start`, any number of `log`, `close`."""

    def start(self, folder: Path, name: str, recipe: str) -> None:
        """Begin to follow the run in `folder`, or go on where an earlier `start` for the same folder left off.

        Args:
            folder: the run's folder; what the tracker keeps there lies under `trackers/`.
            name: what the run is called in the tracker.
            recipe: the resolved recipe, TOML.
        """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show `metrics` at `step`, which counts over all stages; a resumed run repeats some steps."""

    def close(self) -> None:
        """Write out what is pending, and end."""


class Guarded:
    """A tracker that cannot hurt its run.

    A failure of `start` is the user's to know at once, before any training: it is a `UserError`. A failure of `log` is
    one warning, and the tracker is off from then on; `close` never fails.
    """

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name = name
        self.on = False
        self._tracker = tracker
        self._started = False

    def start(self, folder: Path, name: str, recipe: str) -> None:
        """Start the tracker; whatever keeps it from starting is a `UserError`."""
        try:
            self._tracker.start(folder, name, recipe)
        except UserError:
            raise
        except Exception as error:  # another library's code, which may raise anything
            raise UserError(
                f"trackers: {self.name} could not start ({type(error).__name__}: {error}). Mend that, or remove"
                f' "{self.name}" from the trackers of the recipe: the run and its report are complete without it'
            ) from error
        self.on = self._started = True

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log, unless the tracker is off."""
        if not self.on:
            return
        try:
            self._tracker.log(step, metrics)
        except Exception as error:  # noqa: BLE001 another library's code, which may raise anything
            self.on = False
            logger.warning(
                "the tracker %s failed at step %d and is off from here (%s: %s); the run goes on",
                *(self.name, step, type(error).__name__, error),
            )

    def close(self) -> None:
        """Close the tracker once, also one that was switched off: it may hold files or a process."""
        if not self._started:
            return
        was_on, self.on, self._started = self.on, False, False
        try:
            self._tracker.close()
        except Exception as error:  # noqa: BLE001 another library's code, which may raise anything
            # One that was switched off has been warned about already.
            level = logging.WARNING if was_on else logging.DEBUG
            logger.log(level, "the tracker %s did not close (%s: %s)", self.name, type(error).__name__, error)


class TensorBoard:
    """Event files in `trackers/tensorboard` of the run: `tensorboard --logdir RUN`."""

    def __init__(
        self,
        *,
        flush_seconds: Annotated[float, Field(gt=0, description="how often pending values are written to disk")] = 10.0,
    ) -> None:
        self._flush_seconds = flush_seconds
        self._writer: Any = None
        self._resumed = False

    def start(self, folder: Path, name: str, recipe: str) -> None:
        """Open a new event file beside those of an earlier start."""
        # The writer is tensorboard's own: the one in torch is a layer above it, and neither needs tensorflow.
        writers = _library("tensorboard", "tensorboard.summary.writer.event_file_writer")
        self._events = _library("tensorboard", "tensorboard.compat.proto.event_pb2")
        self._summaries = _library("tensorboard", "tensorboard.compat.proto.summary_pb2")
        logs = folder / "trackers" / "tensorboard"
        self._resumed = any(logs.glob("events.out.tfevents.*"))
        self._writer = writers.EventFileWriter(str(logs), flush_secs=self._flush_seconds)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one event with all metrics."""
        if self._resumed:
            # A session that starts at a step hides what an earlier one wrote from there on. Only the first `log` of a
            # resumed run knows the step.
            started = self._events.SessionLog(status=self._events.SessionLog.START)
            self._add(step, session_log=started)
            self._resumed = False
        values = [self._summaries.Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        self._add(step, summary=self._summaries.Summary(value=values))

    def close(self) -> None:
        """Write what is pending and close the file."""
        self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, **content))


class Wandb:
    """Weights & Biases; a resumed run goes on in the same wandb run."""

    def __init__(
        self,
        *,
        project: Annotated[
            str | None, Field(min_length=1, description="the wandb project; not set: WANDB_PROJECT, or rewardsmith")
        ] = None,
        entity: Annotated[str, Field(description='the user or team; "" for your default one')] = "",
        mode: Annotated[
            Literal["online", "offline", "disabled"] | None,
            Field(description="offline: the run stays in the folder, for `wandb sync`; not set: WANDB_MODE, or online"),
        ] = None,
    ) -> None:
        self._project = project
        self._entity = entity
        self._mode = mode
        self._run: Any = None

    def start(self, folder: Path, name: str, recipe: str) -> None:
        """Start or resume the wandb run whose id the folder holds."""
        wandb = _library("wandb", "wandb")
        run_id = _remembered(folder, "wandb", uuid.uuid4().hex[:16])
        self._run = wandb.init(
            project=self._project or os.environ.get("WANDB_PROJECT") or "rewardsmith",
            entity=self._entity or None,
            mode=self._mode or os.environ.get("WANDB_MODE") or None,  # wandb itself looks there once in a process
            id=run_id,
            name=name,
            resume="allow",
            dir=str(folder / "trackers"),
            config=settings_by_path(recipe),
            allow_val_change=True,  # a resumed run may have changed settings
            reinit="create_new",  # a program may have a wandb run of its own
            settings=wandb.Settings(console="off"),  # the run's own output stays where it is
        )
        # wandb's own counter never goes back, and drops the steps that a resumed run repeats. So the step is a metric
        # like any other, and the x-axis of all of them.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics to wandb's own process."""
        self._run.log({**metrics, "step": step})

    def close(self) -> None:
        """Finish the run; online, this waits until everything has been sent."""
        self._run.finish()


class Trackio:
    """Trackio, local or on a Hugging Face Space; a resumed run goes on in the same trackio run."""

    def __init__(
        self,
        *,
        project: Annotated[str, Field(min_length=1, description="the trackio project")] = "rewardsmith",
        space_id: Annotated[str, Field(description='the Space, as user/name; "" keeps the run on this machine')] = "",
    ) -> None:
        self._project = project
        self._space_id = space_id
        self._run: Any = None

    def start(self, folder: Path, name: str, recipe: str) -> None:
        """Start or resume the trackio run whose name the folder holds."""
        trackio = _library("trackio", "trackio")
        # Trackio resumes by name: two runs of one recipe must not get the same one.
        unique = _remembered(folder, "trackio", f"{name}-{uuid.uuid4().hex[:6]}")
        self._run = trackio.init(
            project=self._project,
            name=unique,
            space_id=self._space_id or None,
            config=settings_by_path(recipe),
            resume="allow",
            embed=False,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics to trackio's own thread."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
}


def settings_by_path(recipe: str) -> dict[str, Any]:
    """Return the settings of a recipe by their paths, as an override names them: `stages.1.loss.high`."""
    try:
        return dict(_leaves("", tomllib.loads(recipe)))
    except tomllib.TOMLDecodeError:
        return {"recipe": recipe}


def _leaves(path: str, value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        items = list(enumerate(value))
    else:
        yield path, value if isinstance(value, bool | int | float | str | list) else str(value)
        return
    for key, item in items:
        yield from _leaves(f"{path}.{key}" if path else str(key), item)


def _library(extra: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == extra:
            raise UserError(f'trackers: {extra} is not installed: pip install "rewardsmith[{extra}]"') from None
        raise UserError(
            f'trackers: {extra} is installed but lacks {error.name}: pip install --upgrade "rewardsmith[{extra}]"'
        ) from None


def _remembered(folder: Path, tracker: str, new: str) -> str:
    """Return the id under which `tracker` knows this folder; `new`, written down, when it knows none."""
    path = folder / "trackers" / f"{tracker}.json"
    with contextlib.suppress(OSError, ValueError, RecursionError):
        known = json.loads(path.read_bytes())
        if isinstance(known, dict) and isinstance(known.get("id"), str) and known["id"]:
            return str(known["id"])
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps({"id": new}) + "\n", encoding="utf-8")
    partial.replace(path)
    return new
