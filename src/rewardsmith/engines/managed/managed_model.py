"""A model behind a server that is started when it is needed, restarted when it dies, and stopped at the end."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path

from rewardsmith.engines.client import ServedModel
from rewardsmith.engines.client.replies import ABSENT, parse_models
from rewardsmith.engines.managed.server_process import (
    TAIL,
    HostedProcess,
    Launch,
    launch_here,
    log_tail,
    server_environment,
)
from rewardsmith.engines.model_settings import ManagedSettings
from rewardsmith.errors import UserError, listing
from rewardsmith.http.http_client import Endpoint
from rewardsmith.http.request_errors import RequestError
from rewardsmith.llm import ModelCallError, ProbeReply, WrappedModel
from rewardsmith.masking import Mask, UnsetVariableError, resolved, without_secrets

PROGRESS_INTERVAL = 10.0  # seconds between two messages while a server starts
HEALTH_TIMEOUT = 10.0  # seconds for one health check
EXIT_DELAY = 3.0  # seconds in which a server that does not reply may turn out to have ended
SAMPLES, SAMPLE = 64, 1 << 16  # of a large file, so many samples of so many bytes are hashed

_UNSTARTED = "http://127.0.0.1:9/v1"  # stands for the URL of a server that was not started yet
_MISSING = re.compile(r"No module named '?(vllm|sglang|transformers)\b")


class StartedByCalls(WrappedModel):
    """A model whose servers are started when it is called."""

    async def start(self) -> None:
        """Return when there is a healthy server, or raise `UserError`."""
        raise NotImplementedError

    @asynccontextmanager
    async def during_call(self) -> AsyncIterator[None]:
        """Have a server; its start does not count for the deadline of a call."""
        try:
            await self.start()
        except UserError as error:
            raise ModelCallError("crashed", str(error)) from None
        yield


class ManagedModel(StartedByCalls):
    """A `ServedModel` with a server of its own.

    The first call starts the server; all others wait for the same start. A server that has died is restarted by the
    next call, at most `restarts` times. Its log is `NAME.log` in `folder`; `log` shows a message to the user, and
    `launch` starts the process of the server.
    """

    model: ServedModel

    def __init__(
        self,
        settings: ManagedSettings,
        *,
        name: str,
        folder: Path,
        log: Callable[[str], None],
        launch: Launch = launch_here,
    ) -> None:
        paths = {"model": settings.model, "python": settings.python}
        settings = settings.model_copy(update={k: v and os.path.expanduser(v) for k, v in paths.items()})
        super().__init__(ServedModel(settings, [_UNSTARTED], model=settings.model, name=name))
        self._settings = settings
        self._message = log
        self._log = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.log"
        self._launch_process = launch
        self._process: HostedProcess | None = None
        self._root = ""  # URL of the server, once it is healthy
        self.called = settings.model  # the server's name of the model
        self._starting: asyncio.Task[None] | None = None
        self._deaths = 0
        self._asleep = False

    # ---- calls -----------------------------------------------------------------------------------------------------

    async def identity(self) -> str:
        """Return the model's identity in the cache, which depends neither on the port nor on the folder's path."""
        settings = self._settings
        known = {"model": self._served_name, "version": settings.version, "body": settings.body}
        own = settings.command if isinstance(settings.command, list) else None
        start = json.dumps([own, settings.arguments, settings.environment, settings.max_model_len], sort_keys=True)
        digest = hashlib.blake2b(start.encode(), digest_size=6).hexdigest()  # the environment may hold secrets
        known |= {"serves": settings.serves, "started": digest}
        return json.dumps(known, sort_keys=True, ensure_ascii=False, default=str)

    async def check(self) -> None:
        """Start the server if it does not run; raise if it cannot work."""
        await self.start()
        if await self._models(self._root, HEALTH_TIMEOUT) is None:
            assert self._process is not None
            if not await self._process.exits(within=EXIT_DELAY):  # it may have died a moment ago
                raise ModelCallError("unreachable", f"the server of {self.name} at {self._root} is not healthy")
            await self.start()
        if self._settings.command != "transformers":
            await self.model.check()

    async def fingerprint(self, deadline: float) -> tuple[ProbeReply, ...]:
        """Return replies to fixed probes; () for a server that was started from hashed files."""
        return () if Path(self._settings.model).exists() else await super().fingerprint(deadline)

    async def sleep(self) -> None:
        """Let the server release its device memory; one that does not run has none."""
        if self.is_up:
            await self.model.sleep()
        self._asleep = True  # only now: a server that died of it starts awake

    async def wake(self) -> None:
        """Let the server take its device memory again; one that does not run is started."""
        self._asleep = False
        async with self.during_call():
            await self.model.wake()

    async def close(self) -> None:
        """Stop the server. A later call starts it again."""
        starting, self._starting = self._starting, None
        if starting is not None and starting.get_loop() is asyncio.get_running_loop():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        process, self._process = self._process, None
        self._root, self._deaths, self._asleep = "", 0, False
        self.model.forget_sleep()
        try:
            await self.model.close()
        finally:
            if process is not None:
                await process.stop()

    # ---- the server ------------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether the server is healthy, as far as is known."""
        return bool(self._root) and self._process is not None and not self._process.exit_text()

    @property
    def url(self) -> str:
        """The base URL of the server."""
        return f"{self._root}/v1" if self._root else _UNSTARTED

    async def start(self) -> None:
        """Start the server, unless it runs; return when it is healthy, or raise `UserError`."""
        if self.is_up:
            return
        loop = asyncio.get_running_loop()
        if self._starting is None or self._starting.done() or self._starting.get_loop() is not loop:
            self._starting = loop.create_task(self._start())
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())  # it was retrieved
        await asyncio.shield(self._starting)  # a caller may be cancelled; the others still need the server

    async def _start(self) -> None:
        self._root = ""
        if self._process is not None and self._process.exit_text():
            self._count_death(self._process)
        if self._process is not None:  # one whose start was cancelled, or that still holds its GPUs
            await self._process.stop()
        self._process = None
        root, self.called = await self._launch()
        self.model.replace_urls([f"{root}/v1"], self.called)
        if self._asleep:  # it died asleep
            await self.model.sleep()
        self._root = root

    def _count_death(self, process: HostedProcess) -> None:
        how, limit = process.exit_text(), self._settings.restarts
        if self._deaths >= limit:
            raise self._error(process, f"{how}, after {limit} restarts (restarts)")
        self._deaths += 1
        again = f"restart {self._deaths} of {limit}. Its last lines, from {self._log}.1"
        self._message(f"{self.name}: the server {how}; {again}:\n{self._tail()}")

    async def _launch(self) -> tuple[str, str]:
        """Start the server and wait until it is healthy; return its URL, and its name of the model."""
        settings = self._settings
        try:
            environment = server_environment(settings)
            self._secrets()
        except UnsetVariableError as error:
            where = "which its arguments or its environment name"
            raise UserError(f"models.{self.name}: set the environment variable {error}, {where}") from None
        setting, program = ("command", settings.command[0]) if isinstance(settings.command, list) else ("python", None)
        program = program or settings.python
        if program is not None and shutil.which(program, path=environment.get("PATH")) is None:
            raise UserError(f"models.{self.name}.{setting}: there is no program {program!r}")
        self._served_name = served_name(settings.model)  # the files may have changed since the last start
        try:
            process, root = await self._launch_process(settings, self._served_name, self._log)
        except OSError as error:
            remedy = 'leave port out, or use the server that listens there: type = "server"'
            raise UserError(f"models.{self.name}.port = {settings.port}: {error}: {remedy}") from None
        except UserError as error:
            raise UserError(f"models.{self.name}: {error}") from None
        self._process = process
        self._message(f"{self.name}: starting a server at {root}; its log is {self._log}")
        try:
            return root, await self._wait(process, root)
        except BaseException:
            process.terminate()
            raise

    async def _wait(self, process: HostedProcess, root: str) -> str:
        """Return the server's name of the model when it is healthy; log the progress meanwhile."""
        begun = logged = time.monotonic()
        until = begun + self._settings.startup_timeout
        pause = 0.05
        while True:
            models = await self._models(root, min(HEALTH_TIMEOUT, max(0.05, until - time.monotonic())))
            now = time.monotonic()
            if how := process.exit_text():
                raise self._error(process, f"{how} before it was healthy")
            if models is not None:
                self._message(f"{self.name}: ready after {now - begun:.0f} s")
                return self._called(models)
            if now >= until:
                await process.stop()
                limit = f"{self._settings.startup_timeout:g} s (startup_timeout)"
                raise self._error(process, f"was not healthy within {limit}, and was stopped")
            if now - logged >= PROGRESS_INTERVAL:
                logged = now
                self._message(f"{self.name}: starting for {now - begun:.0f} s: {self._tail(1).strip()[:160]}")
            await asyncio.sleep(min(pause, until - now))
            pause = min(1.0, 1.3 * pause)

    def _called(self, models: list[str]) -> str:
        """Return the server's name of the model."""
        model = self._settings.model
        if self._settings.command in ("vllm", "sglang"):  # their served model name was set
            return self._served_name
        if self._settings.command == "transformers" or not models:  # it lists what it could load, or nothing
            return model
        ours = {model, f"{model}:latest", self._served_name}
        if len(models) > 1 and not ours & {*models}:
            raise UserError(
                f"models.{self.name}.model: the server has {len(models)} models: {listing(models)}; none of them is"
                f" {model}: name one of them, and write what the command needs into the command"
            )
        return next((name for name in models if name in ours), models[0])

    async def _models(self, root: str, timeout: float) -> list[str] | None:
        """Return the models that a healthy server lists; None if it is not healthy."""
        endpoint, healthy = Endpoint.parse(f"{root}/v1"), True
        try:
            await self.model.request(endpoint, endpoint.at("health", root=True), bool, timeout)
        except RequestError as error:
            if error.status not in ABSENT:
                return None
            healthy = False  # not every server has /health
        try:
            return await self.model.request(endpoint, endpoint.at("models"), parse_models, timeout)
        except RequestError:
            return [] if healthy else None

    def _error(self, process: HostedProcess, what: str) -> UserError:
        tail = self._tail()
        if missing := _MISSING.search(tail):
            what += f". Set models.{self.name}.python to the interpreter of an environment that has {missing[1]}"
        shown = f"  command: {self._masked(process.command)}\n  log: {self._log}\n  its last lines:\n{tail}"
        return UserError(f"models.{self.name}: the server {what}\n{shown}")

    def _tail(self, lines: int = TAIL) -> str:
        return "\n".join(f"    {self._masked(line)}" for line in log_tail(self._log, lines))

    def _masked(self, text: str) -> str:
        return without_secrets(Mask([self.model.key(), *self._secrets()]).text(text))

    def _secrets(self) -> list[str]:
        return resolved([self._settings.arguments, self._settings.environment])[1]

    @cached_property
    def _served_name(self) -> str:
        return served_name(self._settings.model)


def served_name(model: str) -> str:
    """Return a Hugging Face id as it is; for a folder or a file, its name with a hash of its content.

    Two folders called `final` are two models, and a folder is one model by whatever path it is reached.
    """
    if not os.path.exists(model):
        return model
    path = Path(model)
    digest = hashlib.blake2b(digest_size=6)
    found = {str(file.relative_to(path)): file for file in ([path] if path.is_file() else path.rglob("*"))}
    for name, file in sorted(found.items()):
        if not file.is_file() or any(part[0] == "." for part in Path(name).parts):
            continue
        size = file.stat().st_size
        digest.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
        with file.open("rb", buffering=0) as handle:
            if size <= SAMPLES * SAMPLE:
                digest.update(handle.read())
                continue
            for number in range(SAMPLES):
                handle.seek(number * (size - SAMPLE) // (SAMPLES - 1))
                digest.update(handle.read(SAMPLE))
    return f"{path.resolve().name}-{digest.hexdigest()}"
