"""Trackers: other programs that show the metrics of a run.

Each library is an extra (`pip install "rewardsmith[wandb]"`) and is imported when a run starts, not before. A run never
depends on its trackers: the run folder is complete without them, and `Guarded` switches one off that fails.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import tomllib
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from rewardsmith.errors import UserError
from rewardsmith.storage import leaves, write_atomically

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    """What follows a run. Called from one thread: `start`, any number of `log`, `close`."""

    def start(self, folder: Path, name: str, recipe: str) -> None:
        """Begin to follow the run in `folder` under a name, or resume; `recipe` is TOML."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show `metrics` at `step`, which counts over all stages; a resumed run repeats some steps."""

    def close(self) -> None:
        """Write out what is pending, and end."""


class Guarded:
    """A tracker that cannot hurt its run: a failure of `start` is a `UserError`, a later one a single warning."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name, self._tracker = name, tracker
        self._started = self._failed = False

    def start(self, folder: Path, name: str, recipe: str) -> None:
        """Start the tracker; whatever keeps it from starting is a `UserError`."""
        try:
            self._tracker.start(folder, name, recipe)
        except UserError:
            raise
        except Exception as error:  # another library's code, which may raise anything
            raise UserError(
                f"trackers: {self._name} could not start ({type(error).__name__}: {error}). Fix that, or remove"
                f' "{self._name}" from the trackers of the recipe: the run and its report are complete without it'
            ) from error
        self._started = True

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log, unless the tracker is off."""
        if self._started and not self._failed:
            self._try(f"at step {step}", self._tracker.log, step, metrics)

    def close(self) -> None:
        """Close the tracker once, also one that was switched off: it may hold files or a process."""
        if self._started:
            self._started = False
            self._try("to close", self._tracker.close)

    def _try(self, when: str, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001 another library's code, which may raise anything
            if not self._failed:
                message = "the tracker %s failed %s and is off from here (%s: %s); the run continues"
                logger.warning(message, self._name, when, type(error).__name__, error)
            self._failed = True


class AccelerateTracker:
    """A tracker of the accelerate library; `options` are for the service's own `init`."""

    def __init__(self, library: str, project: str, **options: Any) -> None:
        self._library, self._project = library, project
        self._options = {name: value for name, value in options.items() if value is not None}
        self._tracker: Any = None

    def start(self, folder: Path, name: str, recipe: str) -> None:
        """Open the run of the service that belongs to this folder."""
        try:
            importlib.import_module(self._library)
        except ModuleNotFoundError as error:
            remedy = f'pip install --upgrade "rewardsmith[{self._library}]"'
            raise UserError(f"trackers: {self._library} is not installed ({error}): {remedy}") from None
        self._open(**self._options, **self._of_run(folder, name, settings_by_path(recipe)))

    def _open(self, **options: Any) -> None:
        accelerate: Any = importlib.import_module("accelerate.tracking")  # it takes a second, and few runs need it
        accelerate.PartialState()  # without it accelerate's own log raises an error
        self._tracker = accelerate.LOGGER_TYPE_TO_CLASS[self._library](self._project, **options)
        self._tracker.start()

    def _of_run(self, folder: Path, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Return what else the service's `init` is given: the name and the settings of the run, and how to resume."""
        raise NotImplementedError

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics to the service."""
        self._tracker.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish; a service may wait until everything has been sent."""
        if self._tracker is not None:
            self._tracker.finish()


class TensorBoard(AccelerateTracker):
    """Event files in `trackers/tensorboard` of the run: `tensorboard --logdir RUN`."""

    def __init__(self) -> None:
        super().__init__("tensorboard", "tensorboard", flush_secs=10)

    def _of_run(self, folder: Path, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        return {"logging_dir": folder / "trackers"}

    def _open(self, **options: Any) -> None:
        self._options = options  # the file is opened by the first `log`, which knows the step

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics. A new file hides what an earlier one has from its first step on."""
        if self._tracker is None:
            resumed = any((self._options["logging_dir"] / "tensorboard").glob("events.out.tfevents.*"))
            super()._open(purge_step=step if resumed else None, **self._options)
        super().log(step, metrics)


class Wandb(AccelerateTracker):
    """Weights & Biases; a resumed run continues the same wandb run."""

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
        project = project or os.environ.get("WANDB_PROJECT") or "rewardsmith"
        super().__init__("wandb", project, entity=entity or None, mode=mode or os.environ.get("WANDB_MODE") or None)

    def _of_run(self, folder: Path, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        wandb = importlib.import_module("wandb")
        return {
            "id": _remembered(folder, "wandb", uuid.uuid4().hex[:16]),
            "name": name,
            "resume": "allow",
            "dir": str(folder / "trackers"),
            "config": settings,
            "allow_val_change": True,  # a resumed run may have changed settings
            "reinit": "create_new",  # a program may have a wandb run of its own
            "settings": wandb.Settings(console="off"),  # the run's own output stays where it is
        }

    def _open(self, **options: Any) -> None:
        super()._open(**options)
        run = self._tracker.tracker
        # wandb's own counter never goes back, and drops the steps that a resumed run repeats. So the step is a metric
        # like any other, and the x-axis of all of them.
        run.define_metric("step", hidden=True)
        run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the metrics to wandb's own process."""
        self._tracker.log({**metrics, "step": step})


class Trackio(AccelerateTracker):
    """Trackio, local or on a Hugging Face Space; a resumed run continues the same trackio run."""

    def __init__(
        self,
        *,
        project: Annotated[str, Field(min_length=1, description="the trackio project")] = "rewardsmith",
        space_id: Annotated[str, Field(description='the Space, as user/name; "" keeps the run on this machine')] = "",
    ) -> None:
        super().__init__("trackio", project, space_id=space_id or None, resume="allow", embed=False)

    def _of_run(self, folder: Path, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        # Trackio resumes by name: two runs of one recipe must not get the same one.
        return {"name": _remembered(folder, "trackio", f"{name}-{uuid.uuid4().hex[:6]}"), "config": settings}


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": Wandb, "trackio": Trackio}


def settings_by_path(recipe: str) -> dict[str, Any]:
    """Return the settings of a recipe by their paths, as an override names them: `stages.1.loss.high`."""
    return dict(leaves(tomllib.loads(recipe)))


def _remembered(folder: Path, tracker: str, new: str) -> str:
    """Return the id under which `tracker` knows this folder; `new`, written down, when it knows none."""
    path = folder / "trackers" / f"{tracker}.json"
    if path.exists():
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"id": new}) + "\n")
    return new
