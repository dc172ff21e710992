"""Servers of judges on the nodes of a cluster: Ray reserves the GPUs, and everything ends with the run."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from rewardsmith.engines.managed.server_process import (
    HostedProcess,
    ServerProcess,
    free_port,
    launch_here,
    server_command,
    server_environment,
)
from rewardsmith.engines.model_settings import ManagedSettings
from rewardsmith.errors import UserError
from rewardsmith.masking import resolved
from rewardsmith.scale.placement import gpus_to_reserve
from rewardsmith.scale.scale_settings import ScaleSettings

PLACE_TIMEOUT = 60.0  # seconds in which Ray must have found a node
END_TIMEOUT = 30.0  # seconds in which a server must have ended


class JudgeHost:
    """Runs a server on its node; Ray has set the GPUs that it sees."""

    def __init__(self) -> None:
        self._process: ServerProcess | None = None

    async def start(self, settings: ManagedSettings, name: str, log: Path) -> tuple[str, str]:
        """Start the server; return its command and its URL."""
        host = ray.util.get_node_ip_address()
        port = free_port(settings.port or 0, host)
        command = server_command(settings, name=name, port=port, host=host)
        self._process = ServerProcess(command, server_environment(settings), log)
        return self._process.command, f"http://{host}:{port}"

    async def ended(self) -> str:
        """Return how the server ended, once it has."""
        assert self._process is not None
        while not self._process.exit_text():
            await asyncio.sleep(0.2)
        return self._process.exit_text()

    async def stop(self) -> None:
        """End the server."""
        if self._process is not None:
            await self._process.stop()


class RemoteProcess:
    """The process of a server on a node; see `HostedProcess`."""

    def __init__(self, host: Any, command: str) -> None:
        self.command = command
        self._host = host
        self._ended = host.ended.remote()
        self._text = ""

    def exit_text(self) -> str:
        """Return how it ended; "" while it runs."""
        if not self._text and ray.wait([self._ended], timeout=0)[0]:
            try:
                self._text = str(ray.get(self._ended))
            except RayError as error:
                self._text = f"was lost with its node ({type(error).__name__})"
        return self._text

    async def exits(self, within: float) -> bool:
        """Return whether it has ended, or ends within some seconds."""
        until = time.monotonic() + within
        while not self.exit_text() and time.monotonic() < until:
            await asyncio.sleep(0.02)
        return bool(self.exit_text())

    def terminate(self) -> None:
        """Let it end, and do not wait."""
        self._host.stop.remote()

    async def stop(self) -> None:
        """End it, and give its GPUs back."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        if not self._text:
            ray.wait([self._host.stop.remote()], timeout=END_TIMEOUT)
        ray.kill(self._host)


async def launch_on_cluster(
    scale: ScaleSettings, settings: ManagedSettings, name: str, log: Path
) -> tuple[HostedProcess, str]:
    """Start a server on a node with enough free GPUs; with `devices` on this machine, on the GPUs that they name."""
    if settings.devices is not None:
        return await launch_here(settings, name, log)
    gpus = gpus_to_reserve(settings, scale)
    host = ray.remote(JudgeHost).options(num_gpus=gpus, num_cpus=0, scheduling_strategy="SPREAD").remote()
    # Variables of this machine's environment are resolved here: the nodes need not have them.
    known = {"arguments": resolved(settings.arguments)[0], "environment": resolved(settings.environment)[0]}
    started = host.start.remote(settings.model_copy(update=known), name, log.absolute())
    placed, _ = await asyncio.to_thread(ray.wait, [started], timeout=PLACE_TIMEOUT)
    if not placed:
        ray.kill(host)
        free = ray.available_resources().get("GPU", 0)
        raise UserError(
            f"Ray found no node with {gpus} free GPUs for a server within {PLACE_TIMEOUT:g} s ({free:g} are free in"
            " all): lower replicas, tensor_parallel_size, scale.gpus_per_node or scale.rollout.gpus, or add nodes"
        )
    command, root = await asyncio.to_thread(ray.get, started)
    return RemoteProcess(host, command), root
