"""From which checkpoint a run is resumed, and what that holds.

It is the last one, unless the recipe asks for more steps of a stage that has ended. That stage is resumed from its own
last checkpoint, and later stages that only measure begin again. A later stage that has trained went on from weights
that would change: then the recipe is refused, for its work would be lost.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rewardsmith.config import Chosen
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.learning import OptimizerSettings
from rewardsmith.recipe import Recipe, places, toml
from rewardsmith.runs.folder import RECIPE, RunFolder
from rewardsmith.runs.summary import Summary


@dataclass(frozen=True)
class Checkpoint:
    """What a run takes over from a checkpoint in addition to its models.

    Attributes:
        name: of its folder.
        stage: number of the stage in which it was saved.
        step: how many steps that stage had taken.
        models: those that it holds.
        trained: models that have learned so far.
        best: of each stage the best validation, and the checkpoint that has it.
        learned: the last checkpoint of a stage that trained.
        steps: of all stages together.
        seconds: how long the run had taken.
        summary: of the run at that time.
        lengths: of the growing files.
        state: of the trainer.
    """

    name: str
    stage: int
    step: int
    models: frozenset[str]
    trained: frozenset[str]
    best: Mapping[str, tuple[float, str]]
    learned: str
    steps: int
    seconds: float
    summary: Summary
    lengths: Mapping[str, int]
    state: dict[str, Any]


def read_checkpoint(files: RunFolder, recipe: Recipe) -> Checkpoint | None:
    """Return the checkpoint from which a run is resumed; None where there is none. Nothing in the folder changes.

    Raises:
        UserError: the checkpoint is damaged, or does not go with the recipe.
    """
    if not files.checkpoints():
        return None
    name = resumes_from(files, recipe)
    files.require_intact(name)
    facts = files.facts(name)
    stages = _names(recipe)
    if facts["stage"] not in stages:
        known = f"{nearest(facts['stage'], stages)} Known: {listing(stages)}"
        raise UserError(f"the run stopped in the stage {facts['stage']!r}, which the recipe no longer has.{known}")
    files.require_lengths(name, facts["lengths"])
    return Checkpoint(
        name=name,
        stage=stages.index(facts["stage"]),
        step=facts["step"],
        models=frozenset(facts["models"]),
        trained=frozenset(facts["trained"]),
        best={stage: (value, where) for stage, (value, where) in facts["best"].items()},
        learned=facts["learned"],
        steps=facts["steps"],
        seconds=facts["seconds"],
        summary=Summary.of(facts["summary"]),
        lengths=facts["lengths"],
        state=facts["state"],
    )


@dataclass(frozen=True)
class _Longer:
    """A stage that has ended, and has more steps now."""

    number: int
    name: str
    setting: str
    taken: int
    trained_since: str


def resumes_from(files: RunFolder, recipe: Recipe) -> str:
    """Return the checkpoint from which a run is resumed: the last one, or that of a stage which is longer now.

    Raises:
        UserError: a checkpoint cannot be read, or the stage that is longer now cannot go on.
    """
    names = files.checkpoints()
    longer = next(_longer(files, recipe), None)
    if longer is None:
        return names[-1]
    ours = [name for name in names if files.facts(name).get("stage") == longer.name]
    if ours and not longer.trained_since:
        return ours[-1]
    why = f"the stage {longer.trained_since!r} has trained since" if longer.trained_since else "its checkpoint is gone"
    raise UserError(
        f"stages.{longer.number}.{longer.setting}: the stage {longer.name!r} has ended after {longer.taken} steps, and"
        f" cannot have more: {why}. Set it to what it was, or start a new run with --resume never"
    )


def extended(files: RunFolder, recipe: Recipe) -> bool:
    """Return whether a recipe asks for more than a finished run has done: more steps, or stages after its last."""
    names = files.checkpoints()
    if not names:
        return False
    last = files.facts(names[-1]).get("stage")
    return any(_longer(files, recipe)) or last in _names(recipe)[:-1]


def other_length(stage: Chosen, planned: int, done: int, steps: int) -> str:
    """Return what it means that a stage that had `planned` steps, and took `done`, has `steps` now; "" if nothing."""
    if planned == steps:
        return ""
    if done >= steps:
        return f"{done} steps have been taken already, and the recipe has {steps}: none is added, and none taken back"
    scheduled = [
        f'{path}.schedule = "{table.schedule}"'
        for path, table in places(stage)
        if isinstance(table, OptimizerSettings) and table.schedule != "constant"
    ]
    if not scheduled:
        return ""
    return (
        f"warning: {steps} steps instead of {planned}. With {', '.join(scheduled)} the learning rate of the first"
        f" {done} was that of {planned} steps: a run with {steps} steps from the start would differ"
    )


def _longer(files: RunFolder, recipe: Recipe) -> Iterator[_Longer]:
    stages = files.facts(files.checkpoints()[-1])["summary"]["stages"]
    steps = {stage["name"]: (stage["done"], stage["steps"]) for stage in stages}
    before = {stage["name"]: stage for stage in tomllib.loads(files.read(RECIPE) or "").get("stages", [])}
    names = _names(recipe)
    for number, (name, stage) in enumerate(zip(names, recipe.stages, strict=True)):
        taken, planned = steps.get(name, (0, 1))
        if not _trains(stage) or taken < planned:
            continue
        setting = _asks_for_more(stage.settings, taken, before.get(name, {}))
        if setting:
            later = zip(names[number + 1 :], recipe.stages[number + 1 :], strict=True)
            since = next((other for other, chosen in later if other in steps and _trains(chosen)), "")
            yield _Longer(number, name, setting, taken, since)


def _asks_for_more(settings: Any, taken: int, before: Mapping[str, Any]) -> str:
    """Return the setting of a stage that gives it more steps than it took, as `steps = 6`; "" when none does."""
    if settings.steps is not None:
        return f"steps = {settings.steps}" if settings.steps > taken else ""
    # How many steps an epoch has, only the data can say.
    return f"epochs = {settings.epochs}" if settings.epochs > before.get("epochs", 0) else ""


def _trains(stage: Chosen) -> bool:
    return hasattr(stage.settings, "steps")


def _names(recipe: Recipe) -> list[str]:
    return [str(getattr(stage.settings, "name", "")) for stage in recipe.stages]


def changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
    """Return each setting whose value differs between two tables as `{path: "old -> new"}`, in order of the paths."""
    old, new = (dict([*_leaves("", table), *_orders("", table)]) for table in (before, now))
    paths = [path for path in sorted(old.keys() | new.keys()) if old.get(path) != new.get(path)]
    return {path: f"{_shown(old, path)} -> {_shown(new, path)}" for path in paths}


def _shown(settings: dict[str, Any], path: str) -> str:
    return toml(settings[path]) if path in settings else "not set"


def _orders(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the order of tables in which it counts: of several routes the first that fits is taken."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        where = f"{path}.{key}".lstrip(".")
        if key in ("parts", "routes") and isinstance(inner, dict):
            yield f"order of {where}", list(inner)
        yield from _orders(where, inner)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}".lstrip("."), inner)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for i, inner in enumerate(value):
            yield from _leaves(f"{path}.{i}", inner)
    else:
        yield path, value
