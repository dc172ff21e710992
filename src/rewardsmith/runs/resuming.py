"""From which checkpoint a run goes on, and what that holds.

It is the last one, unless the recipe asks for more steps of a stage that has ended. That stage goes on from its own
last checkpoint, and later stages that only measure begin again. A later stage that has trained went on from weights
that would change: then the recipe is refused, for its work would be lost.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rewardsmith.config import Chosen
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.learning import OptimizerSettings
from rewardsmith.recipe import Recipe, places
from rewardsmith.runs.folder import CHECKPOINTS, RECIPE, RunFolder
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


def read_checkpoint(
    files: RunFolder, recipe: Recipe, *, accept_changes: bool, say: Callable[[str], None]
) -> Checkpoint | None:
    """Return the checkpoint from which a run goes on; None where there is none. Nothing in the folder changes.

    Args:
        files: of the run.
        recipe: of the run, as it is now.
        accept_changes: go on although lines of a growing file were lost.
        say: tells the user something.

    Raises:
        UserError: the checkpoint is damaged, or does not go with the recipe.
    """
    if not files.checkpoints():
        return None
    name = goes_on_from(files, recipe)
    if not files.require_intact(name):
        say(f"warning: {name} was written by an earlier version, without hashes: its files are not checked")
    facts = files.facts(name)
    stages = _names(recipe)
    if facts.get("stage") not in stages:
        known = f"{nearest(str(facts.get('stage')), stages)} Known: {listing(stages)}"
        raise UserError(f"the run stopped in the stage {facts.get('stage')!r}, which the recipe no longer has.{known}")
    try:
        lost = files.shortened(facts["lengths"])
        found = Checkpoint(
            name=name,
            stage=stages.index(facts["stage"]),
            step=int(facts["step"]),
            models=frozenset(facts["models"]),
            trained=frozenset(facts["trained"]),
            best={stage: (float(value), str(where)) for stage, (value, where) in facts["best"].items()},
            learned=str(facts.get("learned", "")),
            steps=int(facts["steps"]),
            seconds=float(facts["seconds"]),
            summary=Summary.of(facts["summary"]),
            lengths=dict(facts["lengths"]),
        )
        if found.step < 0:
            raise ValueError(f"step {found.step}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unusable(files, name, error) from None
    if lost and not accept_changes:
        raise UserError(
            "\n".join(lost) + f"\nPut back what was lost, remove the checkpoint {name} to go on before it, or use"
            " --accept-changes to go on without those lines"
        )
    for text in lost:
        say(f"warning: {text}")
    return found


def unusable(files: RunFolder, name: str, error: Exception) -> UserError:
    """Return what to say of a checkpoint that does not hold what it should."""
    where = files.path / CHECKPOINTS / name
    return UserError(f"the checkpoint {where} is not usable ({error!r}): remove it to go on before it")


@dataclass(frozen=True)
class _Longer:
    """A stage that has ended, and has more steps now."""

    number: int
    name: str
    setting: str
    taken: int
    trained_since: str


def goes_on_from(files: RunFolder, recipe: Recipe) -> str:
    """Return the checkpoint from which a run goes on: the last one, or that of a stage which is longer now.

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
    try:
        stages = {str(stage["name"]): stage for stage in files.facts(files.checkpoints()[-1])["summary"]["stages"]}
        steps = {name: (int(stage.get("done", stage["steps"])), int(stage["steps"])) for name, stage in stages.items()}
        before = {str(stage["name"]): stage for stage in tomllib.loads(files.read(RECIPE) or "").get("stages", [])}
    except (KeyError, TypeError, ValueError, AttributeError):  # `Run` reports what is wrong with a checkpoint
        return
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


__all__ = ["Checkpoint", "extended", "goes_on_from", "other_length", "read_checkpoint", "unusable"]
