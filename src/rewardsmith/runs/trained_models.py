"""The models of a recipe with the weights that a run gave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rewardsmith.config import Chosen
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.recipe import Recipe, places
from rewardsmith.trainers.process.implicit_parts import process_parts


def with_trained_models(recipe: Recipe, run: Path, overrides: Sequence[str]) -> tuple[Recipe, dict[str, str]]:
    """Return a recipe with the models that a run has published, and with the references of its implicit rewards.

    An implicit reward compares two models. The run stores what the second was when its stage began, or it is the same
    model without its adapter.

    Args:
        recipe: of the run, after the overrides.
        run: its folder.
        overrides: the user's changes: a model whose initial weights are among them is left alone.

    Returns:
        the recipe, and warnings by the name of a model.
    """
    warnings, trained = {}, training_stages(recipe)
    changed = {override.partition("=")[0].strip() for override in overrides}
    models = dict(recipe.models)
    implicit = {part.settings.model for stage in recipe.stages for part in process_parts(stage).values()}  # type: ignore[attr-defined]
    for name, model in recipe.models.items():
        own = {"models", f"models.{name}", f"models.{name}.init", f"models.{name}.copy_of"}
        if not isinstance(model.settings, ModelSettings) or own & changed:
            continue  # a served model, or one that the user has changed
        published, origin = run / "models" / name, model.settings.copy_of
        if published.is_dir():
            models[name] = replace(model, settings=_published(model.settings, published, adapter=name in implicit))
        elif name in trained:
            warnings[name] = f"{run} has not published models.{name}: it is as before the stage {trained[name]}"
        elif origin in trained:
            warnings[name] = f"{run} has not published models.{name}: it is a copy of {origin} as it is now"
    stages = [_with_references(stage, models, run / "references") for stage in recipe.stages]
    return recipe.model_copy(update={"models": models, "stages": stages}), warnings


def _published(settings: ModelSettings, folder: Path, *, adapter: bool) -> ModelSettings:
    """Return the table of a published model; with `adapter`, its adapter stays separate and can be switched off."""
    if adapter and settings.lora is not None:
        return settings.model_copy(update={"lora": settings.lora.model_copy(update={"init": str(folder / "adapter")})})
    # The adapter has been merged into what is published.
    return settings.model_copy(update={"init": str(folder), "copy_of": None, "lora": None})


def _with_references(stage: Chosen, models: dict[str, Chosen], references: Path) -> Chosen:
    """Return a stage whose implicit rewards name their reference; one that the run stored is added to `models`."""
    settings: Any = stage.settings
    parts = dict(process_parts(stage))
    for name, part in parts.items():
        implicit: Any = part.settings
        model: Any = models[implicit.model].settings
        if implicit.reference != "start" or implicit.reference_model is not None:
            continue
        stored = references / f"{settings.name}.{name}"
        if stored.is_dir():
            reference = stored.name
            while reference in models:
                reference += "_"
            initial = model.model_copy(update={"init": str(stored), "copy_of": None, "lora": None})
            models[reference] = replace(models[implicit.model], settings=initial)
            parts[name] = replace(part, settings=implicit.model_copy(update={"reference_model": reference}))
        elif model.lora is not None:  # it began with a new adapter, which changes nothing
            parts[name] = replace(part, settings=implicit.model_copy(update={"reference": "adapter-off"}))
    if not parts:
        return stage
    reward: Any = settings.reward.settings
    changed = reward.model_copy(update={"parts": {**reward.parts, **parts}})
    whole = replace(settings.reward, settings=changed)
    return replace(stage, settings=settings.model_copy(update={"reward": whole}))


def training_stages(recipe: Recipe) -> dict[str, str]:
    """Return the models that are trained, and the first stage in which each is."""
    trained: dict[str, str] = {}
    for stage in recipe.stages:
        for name in _trained_in(stage):
            trained.setdefault(name, _stage_name(stage))
    return trained


def trained_later(recipe: Recipe, reward: Chosen) -> dict[str, str]:
    """Return a warning for each model of an implicit reward in `reward` that was trained after its own stage."""
    inside = [table for _, table in places(reward)]
    warnings = {}
    for i, stage in enumerate(recipe.stages):
        for part in process_parts(stage).values():
            implicit: Any = part.settings
            later = [_stage_name(other) for other in recipe.stages[i + 1 :] if implicit.model in _trained_in(other)]
            if later and any(table is part for table in inside):
                stages = f"{', '.join(later)}, after the stage {_stage_name(stage)}"
                warnings[implicit.model] = f"models.{implicit.model} was trained in {stages}"
    return warnings


def untrained_warnings(recipe: Recipe, run: Path, path: str) -> Mapping[str, str]:
    """Return a warning for each model of a recipe file that its stages train: here it has its initial weights."""
    return {
        name: f"models.{name} is as before the stage {stage}, which trains it; with its weights after a run:"
        f" --reward {run if (run / 'models' / name).is_dir() else 'RUN'}{path and f':{path}'}"
        for name, stage in training_stages(recipe).items()
    }


def _trained_in(stage: Chosen) -> list[str]:
    names = []
    for _, table in places(stage):
        settings: Any = table.settings if isinstance(table, Chosen) else table
        if hasattr(settings, "optimizer") and hasattr(settings, "model"):
            names.append(settings.model)
    parts: list[Any] = [part.settings for part in process_parts(stage).values()]
    return [*names, *(part.model for part in parts if part.update != "none")]


def _stage_name(stage: Chosen) -> str:
    return str(getattr(stage.settings, "name", stage.name))
