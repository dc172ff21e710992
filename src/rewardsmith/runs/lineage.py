"""Where each model of a run comes from: `lineage.json`, a record for each stage that has begun.

    {"stage": "judge-rl", "type": "policy",
     "models": {"judge": {"init": "tiny-llama", "before": "embedded:5f…", "after": "embedded:a0…"}},
     "data": {"train": {"type": "arithmetic-grading", "template": "rubric_short", "template_sha256": "9c…"}},
     "rewards": {"reward": {"type": "grade_accuracy", "parser": "grade-3"}}}

An implicit process reward is the distance between two models, so its record names both, and the weights of the second:

    {"type": "implicit", "model": "prm", "beta": 0.05, "reference": "start", "reference_weights": "embedded:5f…",
     "update": "after", "loss": "cross-entropy", "offset": "none"}

A model with an adapter has two hashes, `embedded:5f…+c3…`: of the weights below, which stay the same while it learns,
and of the adapter. A reward or a data source describes itself by its method `facts()`, where it has one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rewardsmith import __version__
from rewardsmith.config import Chosen
from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError
from rewardsmith.recipe import Recipe, places, references
from rewardsmith.rewards import REWARDS
from rewardsmith.rewards.tree import walk
from rewardsmith.runs.folder import RunFolder
from rewardsmith.runs.preflight import RewardTrees
from rewardsmith.trainers.trainer import Trainer

LINEAGE = "lineage.json"

Identify = Callable[[str], Awaitable[str]]
"""From the name of a model to what it is now."""


class Lineage:
    """Writes the record of a run; `identify` returns what a model is."""

    def __init__(self, recipe: Recipe, files: RunFolder, identify: Identify, trees: RewardTrees) -> None:
        self._recipe, self._files, self._identify, self._trees = recipe, files, identify, trees
        self._records: list[dict[str, Any]] = []

    def resume(self, stage: int, *, begun: bool) -> None:
        """Take over what was recorded before stage number `stage`, and of it too if it had begun."""
        records = json.loads(self._files.read(LINEAGE) or '{"stages": []}')["stages"]
        self._records = records[: stage + begun]

    async def begin(self, number: int, sources: Callable[[str], Any]) -> None:
        """Record what a stage starts from, unless it was recorded before an interruption."""
        chosen = self._recipe.stages[number]
        name = getattr(chosen.settings, "name", chosen.name)
        if len(self._records) > number and self._records[number].get("stage") == name:
            return
        named = [(table, value) for _, table, value in references(chosen)]
        models = {
            model: {"init": self._init(model), "before": await self._identity(model)}
            for model in dict.fromkeys(value for table, value in named if table == "models")
        }
        data = {
            source: {"type": self._recipe.data[source].name} | _facts(sources(source))
            for source in dict.fromkeys(value for table, value in named if table == "data")
        }
        record = {"stage": name, "type": chosen.name, "version": __version__, "models": models, "data": data}
        rewards = {place: about | _reference(about, models) for place, about in _rewards(chosen, self._trees).items()}
        self._records = [*self._records[:number], record | {"rewards": rewards}]
        self._write()

    async def end(self, number: int, trainer: Trainer) -> None:
        """Record what the models that learned in a stage have become."""
        models = self._records[number]["models"]
        for model in trainer.learners:
            models.setdefault(model, {})["after"] = await self._identity(model)
        self._write()

    def _init(self, model: str) -> str:
        settings: Any = self._recipe.models[model].settings
        copied = getattr(settings, "copy_of", None)
        return f"copy of {copied}" if copied else str(getattr(settings, "init", None) or getattr(settings, "model", ""))

    async def _identity(self, model: str) -> str:
        try:
            return await self._identify(model)
        except (ModelCallError, UserError) as error:  # a server that is away now; the run itself waits for it or ends
            return f"unknown: {str(error)[:200]}"

    def _write(self) -> None:
        self._files.write(LINEAGE, json.dumps({"stages": self._records}, indent=2, ensure_ascii=False) + "\n")


def _rewards(stage: Chosen, trees: RewardTrees) -> dict[str, Any]:
    """Return the description of each reward of a stage and of its validation, by its place in the stage."""
    found: dict[str, Any] = {}
    for place, table in places(stage):
        if isinstance(table, Chosen) and re.fullmatch(r"(validation\.)?(reward|reasoning_check)", place):
            for path, component in walk(trees(table)):
                about = {"type": _NAMES.get(type(component.reward), type(component.reward).__name__)}
                found[f"{place}.{path}".rstrip(".")] = about | _facts(component.reward)
    return found


def _reference(about: Mapping[str, Any], models: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the weights that an implicit reward measures against, as far as these are known when its stage begins."""
    if about.get("type") != "implicit":
        return {}
    model, reference = str(about.get("model")), str(about.get("reference"))
    if reference == "policy":
        return {}  # it changes from step to step
    before = models.get(reference if reference in models else model, {}).get("before", "unknown")
    return {"reference_weights": before.partition("+")[0] if reference == "adapter-off" else before}


_NAMES = {kind: name for name, kind in REWARDS.items()}


def _facts(thing: Any) -> dict[str, Any]:
    try:
        return dict(json.loads(json.dumps(thing.facts())))
    except Exception:  # noqa: BLE001 a user's own component has no such method, or one that means something else
        return {}
