"""Several servers of one model, each started, restarted and stopped on its own; the load is shared among them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from rewardsmith.engines.client import ServedModel
from rewardsmith.engines.managed.managed_model import ManagedModel, StartedByCalls
from rewardsmith.engines.managed.server_process import Launch, launch_here
from rewardsmith.engines.model_settings import ManagedSettings
from rewardsmith.errors import UserError
from rewardsmith.llm import ProbeReply


def managed_model(
    settings: ManagedSettings,
    *,
    name: str,
    folder: Path,
    log: Callable[[str], None],
    launch: Launch | None = None,
) -> ManagedModel | ManagedReplicas:
    """Return a model with its servers; without `launch` they run on this machine."""
    launch = launch or launch_here
    if settings.replicas == 1:
        return ManagedModel(settings, name=name, folder=folder, log=log, launch=launch)
    if launch is launch_here and settings.devices is None and settings.command in ("vllm", "sglang"):
        count = settings.replicas * settings.tensor_parallel_size
        raise UserError(
            f"models.{name}: {settings.replicas} replicas would start on the same GPU: name {count} GPUs in devices"
        )
    return ManagedReplicas(settings, name=name, folder=folder, log=log, launch=launch)


class ManagedReplicas(StartedByCalls):
    """A `ServedModel` with several servers; each is a `ManagedModel`.

    The first call starts all of them. Later, calls go to those that run, while one that died is started again.
    """

    model: ServedModel

    def __init__(
        self, settings: ManagedSettings, *, name: str, folder: Path, log: Callable[[str], None], launch: Launch
    ) -> None:
        size, devices = settings.tensor_parallel_size, settings.devices
        self._servers = [
            ManagedModel(
                settings.model_copy(update={"devices": devices and devices[i * size : (i + 1) * size]}),
                name=name if i == 0 else f"{name}-{i + 1}",
                folder=folder,
                log=log,
                launch=launch,
            )
            for i in range(settings.replicas)
        ]
        super().__init__(ServedModel(settings, [self._servers[0].url], model=settings.model, name=name))
        self._log = log
        self._used: list[str] = []  # URLs
        self._starts: dict[ManagedModel, asyncio.Task[None]] = {}
        self._given_up: set[ManagedModel] = set()

    async def identity(self) -> str:
        """Return the model's identity in the cache, the same for any number of servers."""
        return await self._servers[0].identity()

    async def fingerprint(self, deadline: float) -> tuple[ProbeReply, ...]:
        """Return replies to fixed probes; () for servers that were started from hashed files."""
        return await self._servers[0].fingerprint(deadline)

    async def check(self) -> None:
        """Start the servers that do not run; raise if one cannot work."""
        await asyncio.gather(*(server.check() for server in self._servers))
        await self.start()

    async def start(self) -> None:
        """Start the servers that do not run; return when one is healthy, the first time when all are."""
        running = [server for server in self._servers if server.is_up]
        if len(running) < len(self._servers):
            starts = [self._begin(server) for server in self._servers if not server.is_up]
            if not running:
                await asyncio.gather(*map(asyncio.shield, starts))
                running = [server for server in self._servers if server.is_up]
        if not running:
            raise UserError(f"models.{self.name}: all its servers died as soon as they were healthy; see their logs")
        urls = [server.url for server in running]
        if urls != self._used:
            self._used = urls
            self.model.replace_urls(urls, running[0].called)

    def _begin(self, server: ManagedModel) -> asyncio.Task[None]:
        """Start a server, unless its start is under way."""
        if server not in self._starts or self._starts[server].done():
            self._starts[server] = asyncio.create_task(self._start(server))
            self._starts[server].add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._starts[server]

    async def _start(self, server: ManagedModel) -> None:
        try:
            await server.start()
        except UserError as error:
            if not any(other.is_up for other in self._servers):
                raise
            if server not in self._given_up:
                self._given_up.add(server)
                self._log(f"{error}\nThe other servers of {self.name} go on without it.")

    async def sleep(self) -> None:
        """Let the servers release their device memory."""
        await asyncio.gather(*(server.sleep() for server in self._servers))

    async def wake(self) -> None:
        """Let the servers take their device memory again."""
        await asyncio.gather(*(server.wake() for server in self._servers))

    async def close(self) -> None:
        """Stop the servers. A later call starts them again."""
        self._used = []
        for task in self._starts.values():
            task.cancel()
        await asyncio.gather(self.model.close(), *(server.close() for server in self._servers))
