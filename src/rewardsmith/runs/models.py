"""The models that rewards ask, made from the `[models]` tables of a recipe.

Each kind is imported when a recipe has one: scoring with a served judge needs no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from copy import copy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardsmith.config import Chosen, Settings
from rewardsmith.engines.settings import ManagedSettings, ModelSettings, SentenceSettings, ServerSettings
from rewardsmith.engines.turns import TakingTurns, Turns
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.llm import Model, ModelCallError, UnconnectedModel, Usage
from rewardsmith.trainers.protocol import derive

if TYPE_CHECKING:
    from rewardsmith.engines.embedded.engine import EmbeddedEngine


WAKING = 60.0
"""Seconds in which servers that somebody else runs must be awake again at the end."""


def open_engine(
    tables: Mapping[str, Chosen],
    name: str,
    origin: Callable[[str], EmbeddedEngine],
    *,
    seed: int,
    say: Callable[[str], None],
) -> EmbeddedEngine:
    """Load a model of this process.

    Args:
        tables: the `[models]` of the recipe.
        name: which of them.
        origin: gives the model of which this one is a copy.
        seed: of the recipe.
        say: tells the user something.
    """
    settings = tables[name].settings
    assert isinstance(settings, ModelSettings)  # the recipe was checked
    if settings.copy_of is not None:
        say(f"loading {name}: a copy of {settings.copy_of}")
        return origin(settings.copy_of).copy(settings, name=name)
    say(f"loading {name}: {settings.init}")
    from rewardsmith.engines.embedded.engine import EmbeddedEngine  # noqa: PLC0415 it imports torch, which takes time

    return EmbeddedEngine.open(settings, seed=derive(seed, "weights", name) % 2**32, name=name)


class AskedModels:
    """Finds models by name; each is made when it is first asked for, and is the same for all who ask.

    Args:
        tables: the `[models]` of the recipe.
        engine: loads a model of this process.
        folder: where servers that are started write their logs, or what makes it when there is one.
        say: tells the user something.
        cache: folder of the verdict cache; None for the user's own, "" for none.
    """

    def __init__(
        self,
        tables: Mapping[str, Chosen],
        engine: Callable[[str], EmbeddedEngine],
        *,
        folder: Path | Callable[[], Path],
        say: Callable[[str], None],
        cache: str | None = None,
    ) -> None:
        self._tables = tables
        self._engine = engine
        self._folder = folder
        self._say = say
        self._where = cache
        self._cache: Any = None
        self._made: dict[str, Model] = {}
        self._used: dict[str, Usage] = {}
        self._turns = Turns()

    def __call__(self, name: str) -> Model:
        """Return a model of the recipe; what it says is kept in the cache."""
        if name not in self._made:
            model = self._make(name, self._settings(name))
            self._made[name] = model if self._where == "" else self._remembering(model)
        return self._made[name]

    def _remembering(self, model: Model) -> Any:
        from rewardsmith.rewards.cache import CachedModel, VerdictCache  # noqa: PLC0415

        if self._cache is None:
            self._cache = VerdictCache(self._where, say=self._say)
        return CachedModel(model, self._cache)

    def before(self, name: str) -> Any:
        """Return a model as it is before the run: one of this process is not loaded yet, and is not asked."""
        return Later(name) if isinstance(self._settings(name), ModelSettings) else self(name)

    def _settings(self, name: str) -> Settings:
        """Return the table of a model; of a user's own reward it is known only now which one it asks."""
        if name not in self._tables:
            known = f"{nearest(name, self._tables)} Known: {listing(self._tables)}"
            raise UserError(f"the reward asks for the model {name!r}, and there is no [models.{name}].{known}")
        return self._tables[name].settings

    def _make(self, name: str, settings: Settings) -> Any:
        if isinstance(settings, ModelSettings):
            engine = self._engine(name)  # first: it says that it loads a model
            from rewardsmith.engines.embedded.asked import AskedModel  # noqa: PLC0415
            from rewardsmith.engines.embedded.rating import RatingModel  # noqa: PLC0415

            make = AskedModel if settings.head == "language" else RatingModel
            return make(engine, partial(self._turns.turn, name))
        if isinstance(settings, SentenceSettings):
            from rewardsmith.engines.sentences import SentenceModel  # noqa: PLC0415

            return SentenceModel(settings, name=name)
        model: Any
        if isinstance(settings, ManagedSettings):
            from rewardsmith.engines.managed import ManagedModel  # noqa: PLC0415

            folder = self._folder if isinstance(self._folder, Path) else self._folder()
            model = ManagedModel(settings, name=name, folder=folder, say=self._say)
        else:
            from rewardsmith.engines.client import ServedModel  # noqa: PLC0415

            assert isinstance(settings, ServerSettings)
            model = ServedModel.of(settings, name=name)
        return TakingTurns(model, self._turns) if settings.sleeps else model

    # ---- sharing a device ------------------------------------------------------------------------------------------

    def share(self, engine: EmbeddedEngine) -> None:
        """Let an engine that was just loaded sleep until it is its turn, if its settings want that."""
        if engine.settings.sleeps:
            engine.sleep()
            self._turns.join(engine.name, engine.sleep, engine.wake)

    def turn(self, *names: str) -> AbstractAsyncContextManager[None]:
        """Keep these models awake; those that share the device with them sleep."""
        return self._turns.turn(*names)

    # ---- at each step, and at the end ------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Return what was asked of each model since this was last asked, as `models/NAME/calls` and so on."""
        metrics: dict[str, float] = {}
        for name, model in self._made.items():
            used = asdict(model.usage.since(self._used.get(name, Usage())))
            self._used[name] = copy(model.usage)
            if any(used.values()):
                metrics |= {f"models/{name}/{what}": float(count) for what, count in used.items()}
        return metrics

    def totals(self) -> dict[str, Usage]:
        """Return what was asked of each model in all."""
        return {name: copy(model.usage) for name, model in self._made.items()}

    def tell_away(self) -> None:
        """Say which addresses of a model did not answer when it was checked, while others did."""
        for name, model in self._made.items():
            away = getattr(model, "away", ())
            if away:
                self._say(
                    f"models.{name}: {', '.join(away)} does not answer; the others do its work until it comes back"
                )

    async def close(self) -> None:
        """Let go of connections, and stop the servers that were started."""
        await self._wake_servers()
        made, self._made = self._made, {}
        async with AsyncExitStack() as closing:  # one that cannot be closed does not keep the others open
            if self._cache is not None:
                closing.callback(self._cache.close)
            for model in made.values():
                close: Callable[[], Awaitable[None]] | None = getattr(model, "close", None)
                if close is not None:
                    closing.push_async_callback(close)

    async def _wake_servers(self) -> None:
        """Leave servers that somebody else runs as they were found: awake."""
        asleep = [
            name
            for name, model in self._made.items()
            if isinstance(self._tables[name].settings, ServerSettings)
            and getattr(getattr(model, "uncached", model), "joined", False)
        ]
        try:
            async with asyncio.timeout(WAKING), self._turns.turn(*asleep):
                pass
        except (TimeoutError, ModelCallError, UserError) as error:
            self._say(f"{', '.join(asleep)} may still be asleep: {error or f'not awake within {WAKING:g} s'}")


class Later(UnconnectedModel):
    """A model of this process before it is loaded: nothing can be said about it yet."""

    async def check(self) -> None:
        """Find nothing wrong."""
