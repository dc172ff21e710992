"""The models that a reward asks about stored rollouts: as the recipe describes them, not as a run left them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from rewardsmith.engines.settings import ModelSettings
from rewardsmith.runs.models import AskedModels
from rewardsmith.runs.rescoring.choice import Found


def models_of(found: Found, say: Callable[[str], None]) -> AskedModels | None:
    """Return the models of a reward; None where it asks none. They are loaded when they are first asked for."""
    if not found.asked:
        return None
    from rewardsmith.engines.embedded.engine import EmbeddedEngine  # noqa: PLC0415 loads torch
    from rewardsmith.trainers.protocol import derive  # noqa: PLC0415

    engines: dict[str, EmbeddedEngine] = {}

    def engine(name: str) -> EmbeddedEngine:
        if name not in engines:
            settings = found.models[name].settings
            assert isinstance(settings, ModelSettings)
            say(f"loading {name}: {settings.init or 'a copy of ' + str(settings.copy_of)}")
            if settings.copy_of is not None:
                engines[name] = engine(settings.copy_of).copy(settings, name=name)
            else:
                engines[name] = EmbeddedEngine.open(
                    settings, seed=derive(found.seed, "weights", name) % 2**32, name=name
                )
            models.share(engines[name])
        return engines[name]

    logs = Path(tempfile.gettempdir()) / f"rewardsmith-{os.getpid()}"  # of servers that are started
    models = AskedModels(found.models, engine, folder=logs, say=say, cache=found.cache)
    return models
