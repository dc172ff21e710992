"""From which checkpoint a run is resumed, and what that holds.

It is the last one, unless the recipe has more steps for a stage that has ended. That stage is resumed from its own last
checkpoint, and later stages that only measure begin again. A later stage that has trained started from weights that
would change: then the recipe is refused, because its work would be lost.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rewardsmith.config import Chosen
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.recipe import Recipe
from rewardsmith.runs.folder import RECIPE, RunFolder
from rewardsmith.runs.summary import Summary


@dataclass
class RunState:
    """How far a run is, in addition to its models."""

    summary: Summary
    trained: list[str] = field(default_factory=list)  # models
    best: dict[str, tuple[float, str]] = field(default_factory=dict)  # by stage: validation, and its checkpoint
    learned: str = ""  # the last checkpoint of a stage that trained; a stage that is extended resumes from there
    steps: int = 0  # of all stages together
    seconds: float = 0.0


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of stage number `stage` after `step` steps; `lengths` are those of the growing files."""

    name: str
    stage: int
    step: int
    models: frozenset[str]
    lengths: Mapping[str, int]
    trainer: dict[str, Any]
    run: RunState


def read_checkpoint(files: RunFolder, recipe: Recipe) -> Checkpoint | None:
    """Return the checkpoint from which a run is resumed; None where there is none. Nothing in the folder changes."""
    if not files.checkpoints():
        return None
    name = resumes_from(files, recipe)
    files.require_intact(name)
    facts = files.facts(name)
    stages = stage_names(recipe)
    if facts["stage"] not in stages:
        known = f"{nearest(facts['stage'], stages)} Known: {listing(stages)}"
        raise UserError(f"the run stopped in the stage {facts['stage']!r}, which the recipe no longer has.{known}")
    files.require_lengths(name, facts["lengths"])
    run = RunState(**facts["run"] | {"summary": Summary.from_json(facts["run"]["summary"])})
    models = frozenset(facts["models"])
    return Checkpoint(name, stages.index(facts["stage"]), facts["step"], models, facts["lengths"], facts["state"], run)


def resumes_from(files: RunFolder, recipe: Recipe) -> str:
    """Return the checkpoint from which a run is resumed: the last one, or that of a stage which is extended."""
    names = files.checkpoints()
    number, setting = next(_extended_stages(files, recipe), (None, ""))
    if number is None:
        return names[-1]
    stages = stage_names(recipe)
    steps = _steps_done(files)
    own = [name for name in names if files.facts(name)["stage"] == stages[number]]
    later = zip(stages[number + 1 :], recipe.stages[number + 1 :], strict=True)
    trained = next((name for name, stage in later if name in steps and _trains(stage)), "")
    if own and not trained:
        return own[-1]
    why = f"the stage {trained!r} has trained since" if trained else "its checkpoint is gone"
    raise UserError(
        f"stages.{number}.{setting}: the stage {stages[number]!r} has ended after {steps[stages[number]][0]} steps, and"
        f" cannot have more: {why}. Set it to what it was, or start a new run with --resume never"
    )


def extended(files: RunFolder, recipe: Recipe) -> bool:
    """Return whether a recipe has more to do than a finished run has done: more steps, or stages after its last."""
    names = files.checkpoints()
    if not names:
        return False
    return any(_extended_stages(files, recipe)) or files.facts(names[-1])["stage"] in stage_names(recipe)[:-1]


def _extended_stages(files: RunFolder, recipe: Recipe) -> Iterator[tuple[int, str]]:
    """Yield each stage that has ended and has more steps now: its number, and the setting as `steps = 6`."""
    steps = _steps_done(files)
    before = {stage["name"]: stage for stage in tomllib.loads(files.read(RECIPE) or "").get("stages", [])}
    for number, (name, stage) in enumerate(zip(stage_names(recipe), recipe.stages, strict=True)):
        done, planned = steps.get(name, (0, 1))
        settings: Any = stage.settings
        if not _trains(stage) or done < planned:
            continue
        if settings.steps is not None and settings.steps > done:
            yield number, f"steps = {settings.steps}"
        # How many steps an epoch has, only the data can show.
        elif settings.steps is None and settings.epochs > before.get(name, {}).get("epochs", 0):
            yield number, f"epochs = {settings.epochs}"


def _steps_done(files: RunFolder) -> dict[str, tuple[int, int]]:
    """Return, by stage, the steps that the run has done, and those that its recipe had."""
    stages = files.facts(files.checkpoints()[-1])["run"]["summary"]["stages"]
    return {stage["name"]: (stage["done"], stage["steps"]) for stage in stages}


def _trains(stage: Chosen) -> bool:
    return hasattr(stage.settings, "steps")


def stage_names(recipe: Recipe) -> list[str]:
    """Return the names of the stages."""
    return [str(getattr(stage.settings, "name", "")) for stage in recipe.stages]
