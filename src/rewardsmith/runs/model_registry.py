"""The models of a recipe as rewards use them, and their usage.

Each kind is imported when a recipe has one: scoring with a served judge needs no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardsmith.config import Chosen, Settings
from rewardsmith.console import count_of
from rewardsmith.engines.model_settings import (
    ManagedSettings,
    ModelSettings,
    SentenceSettings,
    ServerSettings,
    sharing,
)
from rewardsmith.engines.offload import DeviceScheduler, OffloadedModel
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.llm import Model, ModelCallError, UnconnectedModel, Usage
from rewardsmith.trainers.trainer import derive

if TYPE_CHECKING:
    from rewardsmith.engines.managed.server_process import Launch
    from rewardsmith.engines.protocol import Engine

WAKE_TIMEOUT = 60.0
"""Seconds in which external servers must be awake again at the end."""


class ModelRegistry:
    """Finds models by name; each is opened at its first use.

    Started servers write their logs to `folder` (or a function that makes it), `cache` is the folder of the verdict
    cache (None for the user's own, "" for none), and `on_open` gets each engine after it was loaded. `start` makes an
    engine from its settings, a seed and a name; without it, engines are in this process. So does `launch` for servers.
    `given` are Python objects that a program uses as models; they are neither cached nor closed here.
    """

    def __init__(
        self,
        tables: Mapping[str, Chosen],
        *,
        seed: int,
        folder: Path | Callable[[], Path],
        log: Callable[[str], None],
        cache: str | None = None,
        on_open: Callable[[Engine], None] = lambda engine: None,
        start: Callable[[ModelSettings, int, str], Engine] | None = None,
        launch: Launch | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self._tables, self._seed, self._folder, self._log = tables, seed, folder, log
        self._given = given or {}
        self._cache_folder, self._on_open, self._start, self._launch = cache, on_open, start, launch
        self._cache: Any = None
        self._engines: dict[str, Engine] = {}
        self._models: dict[str, Model] = {}
        self._logged: dict[str, Usage] = {}
        self._offloaded: dict[str, OffloadedModel] = {}
        self._sharing = sharing(tables)
        self._schedulers = {first: DeviceScheduler() for first in sorted(set(self._sharing.values()))}

    def engine(self, name: str) -> Engine:
        """Return an embedded model; one with `offload` stays off the device until it is needed."""
        if name in self._engines:
            return self._engines[name]
        settings = self._tables[name].settings
        assert isinstance(settings, ModelSettings)  # the recipe was checked
        engine: Engine
        if settings.copy_of is not None:
            self._log(f"loading {name}: a copy of {settings.copy_of}")
            engine = self.engine(settings.copy_of).copy(settings, name=name)
        else:
            self._log(f"loading {name}: {settings.init}")
            seed = derive(self._seed, "weights", name) % 2**32
            if self._start is not None:
                engine = self._start(settings, seed, name)
            else:
                from rewardsmith.engines.embedded.engine import EmbeddedEngine  # noqa: PLC0415 it imports torch

                engine = embedded = EmbeddedEngine.open(settings, seed=seed, name=name)
                precision = str(embedded.dtype).removeprefix("torch.")
                self._log(f"{name} is on {embedded.device} in {precision}, {embedded.forward_pass}")
        self._engines[name] = engine
        self._on_open(engine)
        if settings.offload:
            engine.sleep()
            self._schedulers[self._sharing[name]].add(name, engine.sleep, engine.wake)
        return engine

    def __call__(self, name: str) -> Model:
        """Return a model of the recipe, with the verdict cache around it."""
        if name in self._given:
            return self._given[name]  # type: ignore[no-any-return]
        if name not in self._models:
            model = self._make(name, self._settings(name))
            if self._cache_folder != "":
                from rewardsmith.rewards.cache import CachedModel, VerdictCache  # noqa: PLC0415

                self._cache = self._cache or VerdictCache(self._cache_folder, log=self._log)
                model = CachedModel(model, self._cache)
            self._models[name] = model
        return self._models[name]

    def before(self, name: str) -> Any:
        """Return a model for the checks before a run; an embedded one is not loaded yet."""
        return NotLoadedModel(name) if isinstance(self._settings(name), ModelSettings) else self(name)

    def _settings(self, name: str) -> Settings:
        """Return the table of a model; which one a user's own reward needs is known only now."""
        if name not in self._tables:
            known = f"{nearest(name, self._tables)} Known: {listing(self._tables)}"
            raise UserError(f"the reward needs the model {name!r}, and there is no [models.{name}].{known}")
        return self._tables[name].settings

    def _make(self, name: str, settings: Settings) -> Any:
        if isinstance(settings, ModelSettings):
            engine = self.engine(name)  # before the imports, which take time: it logs that it loads a model
            from rewardsmith.engines.embedded.chat_model import EmbeddedChatModel, EmbeddedRater  # noqa: PLC0415
            from rewardsmith.engines.embedded.engine import EmbeddedEngine  # noqa: PLC0415

            if not isinstance(engine, EmbeddedEngine):
                remedy = 'set type = "managed" or "server" for it'
                raise UserError(f"models.{name}: a reward cannot call a model on the cluster: {remedy}")
            make = EmbeddedChatModel if settings.head == "language" else EmbeddedRater
            return make(engine, partial(self.on_device, name))
        if isinstance(settings, SentenceSettings):
            from rewardsmith.engines.sentences import SentenceModel  # noqa: PLC0415

            return SentenceModel(settings, name=name)
        model: Any
        if isinstance(settings, ManagedSettings):
            from rewardsmith.engines.managed import managed_model  # noqa: PLC0415

            folder = self._folder if isinstance(self._folder, Path) else self._folder()
            model = managed_model(settings, name=name, folder=folder, log=self._log, launch=self._launch)
        else:
            from rewardsmith.engines.client import ServedModel  # noqa: PLC0415

            assert isinstance(settings, ServerSettings)
            model = ServedModel(settings, settings.urls, model=settings.model, name=name)
        if not settings.offload:
            return model
        self._offloaded[name] = OffloadedModel(model, self._schedulers[self._sharing[name]])
        return self._offloaded[name]

    @asynccontextmanager
    async def on_device(self, *names: str) -> AsyncIterator[None]:
        """Keep these models on their devices; those that share them are offloaded. Other devices are left alone."""
        async with AsyncExitStack() as stack:
            for first, scheduler in self._schedulers.items():  # always in the same order: two never wait for each other
                mine = [name for name in names if self._sharing.get(name) == first]
                if mine:
                    await stack.enter_async_context(scheduler.on_device(*mine))
            yield

    def metrics(self) -> dict[str, float]:
        """Return the usage of each model since the last call, as `models/NAME/calls` and so on."""
        metrics: dict[str, float] = {}
        for name, model in self._models.items():
            used = asdict(model.usage.since(self._logged.get(name, Usage())))
            self._logged[name] = copy(model.usage)
            if any(used.values()):
                metrics |= {f"models/{name}/{what}": float(count) for what, count in used.items()}
        return metrics

    def totals(self) -> dict[str, Usage]:
        """Return the usage of each model."""
        return {name: copy(model.usage) for name, model in self._models.items()}

    def log_unreachable(self) -> None:
        """Log which addresses of a model did not respond when it was checked, while others did."""
        for name, model in self._models.items():
            if away := getattr(model, "away", ()):
                self._log(f"models.{name}: no reply from {', '.join(away)}; using the other addresses meanwhile")

    async def close(self) -> None:
        """Close connections, and stop the servers that were started."""
        await self._wake_servers()
        models, self._models = self._models, {}
        async with AsyncExitStack() as stack:  # one that fails to close does not keep the others open
            if self._cache is not None:
                stack.callback(self._cache.close)
            for model in models.values():
                if hasattr(model, "close"):
                    stack.push_async_callback(model.close)

    async def _wake_servers(self) -> None:
        """Leave external servers as they were found: awake."""
        asleep = [
            name
            for name, model in self._offloaded.items()
            if model.added and isinstance(self._tables[name].settings, ServerSettings)
        ]
        try:
            async with asyncio.timeout(WAKE_TIMEOUT), self.on_device(*asleep):
                pass
        except (TimeoutError, ModelCallError, UserError) as error:
            why = str(error) or f"no reply within {WAKE_TIMEOUT:g} s"
            self._log(f"{', '.join(asleep)} may still be asleep: {why}")


class NotLoadedModel(UnconnectedModel):
    """An embedded model before it is loaded: nothing about it can be checked yet."""

    async def check(self) -> None:
        """Find nothing wrong."""


def add_usage(first: Mapping[str, Usage], second: Mapping[str, Usage]) -> dict[str, Usage]:
    """Return the sums by model; a model without usage is left out."""
    sums = {}
    for name in dict.fromkeys([*first, *second]):
        one, other = first.get(name, Usage()), second.get(name, Usage())
        sums[name] = Usage(*(getattr(one, field.name) + getattr(other, field.name) for field in fields(Usage)))
    return {name: used for name, used in sums.items() if any(asdict(used).values())}


def usage_line(used: Usage) -> str:
    """Return one line for people: calls, cache hits, retries, failures, tokens, cost."""
    counts = {"from the cache": used.cached, "retried": used.retries, "failed": used.failed}
    parts = [count_of(used.calls, "call"), *(f"{count:,} {name}" for name, count in counts.items() if count)]
    if used.prompt_tokens or used.tokens:  # not known of numbers and vectors
        parts.append(f"{used.prompt_tokens:,} prompt and {used.tokens:,} completion tokens")
    return ", ".join([*parts, *([f"cost {used.cost:.4g}"] if used.cost else [])])
