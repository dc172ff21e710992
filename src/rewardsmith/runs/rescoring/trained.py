"""What a run has made of the models of its recipe: those that it published stand in the place of their beginnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rewardsmith.config import Chosen
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.recipe import Recipe, places
from rewardsmith.trainers.process.implicit_parts import process_parts


def as_trained(recipe: Recipe, run: Path, overrides: Sequence[str]) -> tuple[Recipe, dict[str, str]]:
    """Return a recipe with the models that a run has published, and with the references of its implicit rewards.

    An implicit reward is the distance between two models. What the first was when its stage began is kept by the run,
    or it is the same model without its adapter.

    Args:
        recipe: of the run, after the overrides.
        run: its folder.
        overrides: what the user has changed now: a model whose beginning is among it is left alone.

    Returns:
        the recipe, and by the name of a model what the user should know when it is loaded.
    """
    doubts, trained = {}, trained_in(recipe)
    models = dict(recipe.models)
    read = {part.settings.model for stage in recipe.stages for part in process_parts(stage).values()}  # type: ignore[attr-defined]
    for name, model in recipe.models.items():
        chosen = {"models", f"models.{name}", f"models.{name}.init", f"models.{name}.copy_of"}
        if not isinstance(model.settings, ModelSettings) or any(_key(one) in chosen for one in overrides):
            continue  # a model that is served, or one that the user has chosen now
        published = run / "models" / name
        if published.is_dir():
            models[name] = replace(model, settings=_published(model.settings, published, apart=name in read))
        elif name in trained:
            doubts[name] = f"{run} has not published models.{name}: it is as before the stage {trained[name]}"
        elif model.settings.copy_of in trained:
            doubts[name] = (
                f"{run} has not published models.{name}: it is a copy of {model.settings.copy_of} as it is now"
            )
    stages = [_with_references(stage, models, run / "references") for stage in recipe.stages]
    return recipe.model_copy(update={"models": models, "stages": stages}), doubts


def _key(override: str) -> str:
    """Return what an override changes."""
    return override.partition("=")[0].strip()


def _published(settings: ModelSettings, folder: Path, *, apart: bool) -> ModelSettings:
    """Return the table of a published model; with `apart`, its adapter can still be switched off."""
    if apart and settings.lora is not None:
        return settings.model_copy(update={"lora": settings.lora.model_copy(update={"init": str(folder / "adapter")})})
    # An adapter has been merged into what is published.
    return settings.model_copy(update={"init": str(folder), "copy_of": None, "lora": None})


def _with_references(stage: Chosen, models: dict[str, Chosen], references: Path) -> Chosen:
    """Return a stage whose implicit rewards know their reference; a model that the run kept for one joins `models`."""
    settings: Any = stage.settings
    parts = dict(process_parts(stage))
    for name, part in parts.items():
        of: Any = part.settings
        model: Any = models[of.model].settings
        if of.reference != "start" or of.reference_model is not None:
            continue
        kept = references / f"{settings.name}.{name}"
        if kept.is_dir():
            reference = kept.name
            while reference in models:
                reference += "_"
            began = model.model_copy(update={"init": str(kept), "copy_of": None, "lora": None})
            models[reference] = replace(models[of.model], settings=began)
            parts[name] = replace(part, settings=of.model_copy(update={"reference_model": reference}))
        elif model.lora is not None:  # it began with a fresh adapter, which changes nothing
            parts[name] = replace(part, settings=of.model_copy(update={"reference": "adapter-off"}))
    if not parts:
        return stage
    reward: Any = settings.reward.settings
    changed = reward.model_copy(update={"parts": {**reward.parts, **parts}})
    whole = replace(settings.reward, settings=changed)
    return replace(stage, settings=settings.model_copy(update={"reward": whole}))


def trained_in(recipe: Recipe) -> dict[str, str]:
    """Return the models that learn, and the first stage in which each does: it has an optimizer for it."""
    trained: dict[str, str] = {}
    for stage in recipe.stages:
        for name in _learners(stage):
            trained.setdefault(name, _name(stage))
    return trained


def learned_on(recipe: Recipe, reward: Chosen) -> dict[str, str]:
    """Return, by the name of a model, in which stages it learned on after that of an implicit reward in `reward`."""
    inside = [table for _, table in places(reward)]
    doubts = {}
    for i, stage in enumerate(recipe.stages):
        for part in process_parts(stage).values():
            of: Any = part.settings
            later = [_name(other) for other in recipe.stages[i + 1 :] if of.model in _learners(other)]
            if later and any(table is part for table in inside):
                stages = f"{', '.join(later)}, after the stage {_name(stage)}"
                doubts[of.model] = f"models.{of.model} has learned on in {stages}"
    return doubts


def _learners(stage: Chosen) -> list[str]:
    found = []
    for _, table in places(stage):
        settings: Any = table.settings if isinstance(table, Chosen) else table
        if hasattr(settings, "optimizer") and hasattr(settings, "model"):
            found.append(settings.model)
    parts: list[Any] = [part.settings for part in process_parts(stage).values()]
    return [*found, *(of.model for of in parts if of.update != "none")]


def _name(stage: Chosen) -> str:
    return str(getattr(stage.settings, "name", stage.name))


__all__ = ["as_trained", "learned_on", "trained_in"]
