"""The model that a command asks, from a TOML file with `[models]`: a recipe, a reward table, or just that."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rewardsmith.config import Chosen, Refers, Settings
from rewardsmith.engines.model_settings import INCIDENTAL
from rewardsmith.recipe import explain, load_table, parse_models, parse_recipe
from rewardsmith.runs.lookup import is_reward

Name = Annotated[str, Refers("models", offer="chat"), Field(description="one of the models")]


class Judge(Settings):
    """Who writes rubrics."""

    judge: Name


class Teacher(Settings):
    """Who grades."""

    teacher: Name


@dataclass(frozen=True)
class Named:
    """A model of a file.

    Attributes:
        name: which of the models.
        models: all of them: it may be a copy of another.
        cache: where answers are kept; see `Recipe.cache`.
        seed: of weights that are made anew.
    """

    name: str
    models: Mapping[str, Chosen]
    cache: str | None = None
    seed: int = 0

    def facts(self) -> dict[str, Any]:
        """Return what is known of the model, as JSON: its table without what changes no answer."""
        table = tomllib.loads(explain(self.models[self.name]))
        kept = {setting: value for setting, value in table.items() if setting not in INCIDENTAL}
        told: dict[str, Any] = json.loads(json.dumps(kept, default=str))  # as it is read back: JSON has no dates
        return told


def find_model(file: str | Path, asks: Judge | Teacher, overrides: Sequence[str] = ()) -> Named:
    """Return the model of a file that a command asks.

    Args:
        file: TOML with `[models.NAME]` tables, and perhaps `cache`. A recipe or a reward table will do.
        asks: which model.
        overrides: changes of the file as `key.path=value`.

    Raises:
        UserError: the file cannot be read.
        RecipeError: with every problem that was found: there is no such model, or it does not write.
    """
    (name,) = asks.model_dump().values()
    table = load_table(file, overrides)
    source, seed = str(file), 0
    if "stages" in table:
        recipe = parse_recipe(dict(table), source=source)
        seed = recipe.seed
    if "stages" in table or is_reward(table):  # what is not about models is for others to check
        table = {key: value for key, value in table.items() if key in ("models", "cache")}
    around = parse_models(table, asks, source=source)
    return Named(name, around.models, around.cache, seed)


__all__ = ["Judge", "Named", "Teacher", "find_model"]
