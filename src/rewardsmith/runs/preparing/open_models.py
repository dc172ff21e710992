"""The models that a reward asks about stored rollouts: as a recipe describes them, or as a run left them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rewardsmith.config import Chosen
from rewardsmith.runs.model_registry import ModelRegistry, open_engine

if TYPE_CHECKING:
    from rewardsmith.engines.protocol import Engine


class Tables(Protocol):
    """What a file says about models: its `[models]`, where their verdicts are kept, and its seed."""

    @property
    def models(self) -> Mapping[str, Chosen]: ...  # noqa: D102 the class says it

    @property
    def cache(self) -> str | None: ...  # noqa: D102

    @property
    def seed(self) -> int: ...  # noqa: D102


class Logs:
    """A folder for what servers write that are started; it is made when there is one."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def __call__(self) -> Path:
        """Return the folder."""
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="rewardsmith-"))
        return self._folder

    def remove(self) -> None:
        """Remove it, after all went well: else it may tell why not."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def models_of(found: Tables, say: Callable[[str], None], logs: Logs | None = None) -> ModelRegistry:
    """Return the models that a reward may ask. They are loaded when they are first asked for.

    Args:
        found: the models of a recipe.
        say: tells the user something.
        logs: where servers that are started write their logs.
    """
    engines: dict[str, Engine] = {}

    def engine(name: str) -> Engine:
        if name not in engines:
            if doubt := getattr(found, "doubts", {}).get(name):
                say(f"warning: {doubt}")
            engines[name] = open_engine(found.models, name, engine, seed=found.seed, log=say)
            models.share(engines[name])
        return engines[name]

    models = ModelRegistry(found.models, engine, folder=logs or Logs(), log=say, cache=found.cache)
    return models
