"""A model behind a server that is started when it is needed, started again when it dies, and stopped at the end."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rewardsmith.engines.client import ServedModel
from rewardsmith.engines.managed.commands import at_home, command_of, environment_of, secrets_of
from rewardsmith.engines.managed.naming import served_name
from rewardsmith.engines.managed.probe import Probe, address, free_port
from rewardsmith.engines.managed.process import TAIL, Log, Process
from rewardsmith.engines.settings import ManagedSettings
from rewardsmith.errors import UserError, listing
from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError, ProbeReply, Usage
from rewardsmith.masking import Mask, UnsetVariableError, without_secrets

PORTS = 3
"""How many ports are tried: between the moment that one is found free and that the server takes it, another may."""

TELL_EVERY = 10.0
"""Seconds between two messages while a server starts."""

DYING = 3.0
"""Seconds in which a server that does not answer may turn out to have ended."""

_NOWHERE = "http://127.0.0.1:9/v1"
"""Stands for the address of a server that was not started yet; nothing is sent there."""

_MISSING = re.compile(r"No module named '?(vllm|sglang|transformers)\b")
_TAKEN = re.compile(r"address (is )?already in use|errno (98|48)\b|EADDRINUSE|port \d+ is (already )?in use", re.I)


class _PortTakenError(Exception):
    pass


class ManagedModel:
    """Speaks to a server as `ServedModel` does, and sees to it that there is one.

    Whoever needs the model first starts the server; the others wait for the same start. A server that has died is
    started again by the next `check` or question, at most `restarts` times. A healthy server that has the model and
    listens on `port` already is used as it is, and never stopped.

    Args:
        settings: of the model.
        name: what the recipe calls it.
        folder: where the server's log goes, as `NAME.log`.
        say: tells the user something, in one or several lines.
    """

    def __init__(self, settings: ManagedSettings, *, name: str, folder: Path, say: Callable[[str], None]) -> None:
        self.name = name
        self._settings = settings = at_home(settings)
        self._say = say
        self._log = Log(folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.log")
        self._process: Process | None = None  # None also while a server of somebody else is used
        self._served = ServedModel(settings, [_NOWHERE], model=settings.model, name=name)
        self._root = ""  # of the server, once it is healthy
        self._starting: asyncio.Task[None] | None = None
        self._deaths = 0
        self._told = ""
        self._asleep = False

    @property
    def usage(self) -> Usage:
        """What was asked of it so far."""
        return self._served.usage

    # ---- what may be asked of it -----------------------------------------------------------------------------------

    async def identity(self) -> str:
        """Return what a cache knows the model by: neither the port nor the way to its folder is part of it.

        What a server of somebody else was started from may have changed since: that one is known by what it says.
        """
        settings = self._settings
        if settings.port is not None:
            async with self._running():
                if self._process is None:
                    return await self._served.identity()
        known = {"model": self._name, "version": settings.version, "body": settings.body, "serves": settings.serves}
        own = settings.command if isinstance(settings.command, list) else None
        how = json.dumps([own, settings.arguments, settings.environment, settings.max_length], sort_keys=True)
        known["started"] = hashlib.blake2b(how.encode(), digest_size=6).hexdigest()  # the environment may hold secrets
        return json.dumps(known, sort_keys=True, ensure_ascii=False, default=str)

    async def check(self) -> None:
        """Start the server if it does not run; raise if it cannot work."""
        await self.start()
        if not await self._answered(self._root):
            # It may have died a moment ago, and what it left behind is just being ended.
            if self._process is None or not await self._process.ends(within=DYING):
                raise ModelCallError("unreachable", f"the server of {self.name} at {self._root} is not healthy")
            await self.start()
        if self._settings.command != "transformers":
            await self._served.check()

    async def fingerprint(self, deadline: float) -> tuple[ProbeReply, ...]:
        """Return the server's replies to fixed probes; () where it was started from files that the identity knows."""
        async with self._running():
            if self._process is not None and Path(self._settings.model).exists():
                return ()
            return await self._served.fingerprint(deadline)

    async def chat(self, question: ChatRequest) -> ChatReply:
        """Return the model's answer; the time that the server takes to start does not count."""
        async with self._running():
            return await self._served.chat(question)

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        """Return one number for each conversation."""
        async with self._running():
            return await self._served.rate(conversations)

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector of length 1 for each text, [n, D]."""
        async with self._running():
            return await self._served.embed(texts)

    async def sleep(self) -> None:
        """Let the server give its memory back; one that does not run has none."""
        if self._up():
            await self._served.sleep()
        self._asleep = True  # only now: a server that died of it is wanted awake

    async def wake(self) -> None:
        """Let the server take its memory again; one that does not run is started."""
        self._asleep = False
        async with self._running():
            await self._served.wake()

    async def close(self) -> None:
        """Stop the server, unless somebody else has started it. A question that comes later starts it anew."""
        starting, self._starting = self._starting, None
        if starting is not None and starting.get_loop() is asyncio.get_running_loop():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        process, self._process = self._process, None
        self._root, self._deaths, self._asleep = "", 0, False
        try:
            await self._served.close()
        finally:
            if process is not None:
                await process.stop()

    # ---- the server ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the server, unless it runs; return when it is healthy.

        Raises:
            UserError: it cannot be started, has died too often, or another one has its port.
        """
        if self._up():
            return
        loop = asyncio.get_running_loop()
        if self._starting is None or self._starting.done() or self._starting.get_loop() is not loop:
            self._starting = loop.create_task(self._start())
            self._starting.add_done_callback(_noted)
        # Who waits may be cancelled, by a deadline perhaps; the others still want the server.
        await asyncio.shield(self._starting)

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        """Have a server while something is asked of it."""
        try:
            await self.start()
        except UserError as error:
            raise ModelCallError("crashed", str(error)) from None
        try:
            yield
        except ModelCallError as error:
            last = self._process if self._deaths >= self._settings.restarts else None
            if error.kind == "unreachable" and last is not None and await last.ends(within=DYING):
                # Nobody will start it again: this is no outage that could be waited for.
                why = self._error(last, f"{last.ended()}, and is not started again (restarts)")
                raise ModelCallError("crashed", str(why), error.attempts) from None
            raise

    def _up(self) -> bool:
        return bool(self._root) and (self._process is None or not self._process.ended())

    async def _start(self) -> None:
        self._root = ""
        try:
            await self._clear()
            root, called = await self._found() or await self._launch()
        except UserError as error:
            if self._deaths and str(error) != self._told:  # amid a run, it is but a failure among others
                self._told = str(error)
                self._say(self._told)
            raise
        self._served.replace_urls([f"{root}/v1"], called)
        if self._asleep:  # it died in its sleep
            await self._served.sleep()
        self._root = root

    async def _clear(self) -> None:
        """Deal with the process of the last start."""
        if self._process is not None and self._process.ended():
            self._count_death(self._process)
        elif self._process is not None:  # a start that was given up
            await self._process.stop()
        self._process = None

    def _count_death(self, process: Process) -> None:
        """Tell what has happened to the last server, and refuse to go on for ever."""
        how, most = process.ended(), self._settings.restarts
        if self._deaths >= most:
            raise self._error(process, f"{how}, and was started again {most} times before (restarts)")
        self._deaths += 1
        lines = "\n".join(f"    {line}" for line in self._tail())
        again = f"it is started again ({self._deaths} of {most}). Its last lines, kept in {self._log.file}.1"
        self._say(f"{self.name}: the server {how}; {again}:\n{lines}")

    async def _found(self) -> tuple[str, str] | None:
        """Return the address of a healthy server on the port that the recipe names, and what it calls the model."""
        if self._settings.port is None:
            return None
        root = address(self._settings.host, self._settings.port)
        async with self._probe(root) as probe:
            healthy = await probe.healthy()
            if healthy is None:
                return None
            models = await probe.models() if healthy else {}
        if called := self._match(models):
            self._process = None
            self._say(f"{self.name}: using the server at {root}, which has the model already, as {called}")
            return root, called
        has = f"a server that has {listing(models)}" if models else "something that is no healthy model server"
        raise UserError(
            f"models.{self.name}.port = {self._settings.port}: {has} answers at {root}, and not {self._name}. Stop it,"
            " choose another port, or leave port out to take any free one"
        )

    async def _launch(self) -> tuple[str, str]:
        """Start the server and wait until it is healthy; return its address, and what it calls the model."""
        try:
            secrets_of(self._settings)
        except UnsetVariableError as error:
            where = "which its arguments or its environment name"
            raise UserError(
                f"models.{self.name}: the environment variable {error}, {where}, is not set: set it"
            ) from None
        self._require_program()
        self._name = served_name(self._settings.model)  # other weights may lie there since the last start
        for _ in range(PORTS):
            port = self._settings.port or free_port(self._settings.host)
            root = address(self._settings.host, port)
            if await self._answered(root) is not None:  # who is there already would be taken for our server
                self._say(f"{self.name}: port {port} was taken meanwhile; trying another")
                continue
            command = command_of(self._settings, name=self._name, port=port)
            process = Process(command, environment_of(self._settings), self._log)
            self._process = process
            self._say(f"{self.name}: starting a server on port {port}; its log is {self._log.file}")
            try:
                called = await self._wait(process, root)
            except _PortTakenError:
                self._say(f"{self.name}: port {port} was taken meanwhile; trying another")
                continue
            except BaseException:
                process.hang_up()
                raise
            return root, called
        raise self._error(self._process, f"found its port taken, {PORTS} times")

    def _require_program(self) -> None:
        command, python = self._settings.command, self._settings.python
        setting, program = ("command", command[0]) if isinstance(command, list) else ("python", python)
        path = environment_of(self._settings).get("PATH")
        if program is not None and shutil.which(program, path=path) is None:
            raise UserError(f"models.{self.name}.{setting}: there is no program {program!r} that could be run")

    async def _wait(self, process: Process, root: str) -> str:
        """Return what the server calls the model when it is healthy; tell how it goes meanwhile."""
        begun = told = time.monotonic()
        until = begun + self._settings.ready_within
        pause = 0.05
        async with self._probe(root) as probe:
            while not (called := await self._called(probe, process, until)):
                now = time.monotonic()
                if how := process.ended():
                    if self._settings.port is None and _TAKEN.search("\n".join(self._log.tail())):
                        raise _PortTakenError
                    raise self._error(process, f"{how} before it was healthy")
                if now >= until:
                    await process.stop()
                    limit = f"{self._settings.ready_within:g} s (ready_within)"
                    raise self._error(process, f"was not healthy within {limit}, and was stopped")
                if now - told >= TELL_EVERY:
                    told = now
                    self._say(f"{self.name}: starting since {now - begun:.0f} s: {' '.join(self._tail(1))[:160]}")
                await asyncio.sleep(min(pause, until - now))
                pause = min(1.0, 1.3 * pause)
        self._say(f"{self.name}: ready after {time.monotonic() - begun:.0f} s")
        return called

    async def _called(self, probe: Probe, process: Process, until: float) -> str:
        """Return what the server calls the model, "" if it is not healthy: a look that hangs ends with the process."""
        looking = asyncio.ensure_future(self._look(probe))
        ending = asyncio.ensure_future(process.ends(within=until - time.monotonic()))
        try:
            await asyncio.wait({looking, ending}, return_when=asyncio.FIRST_COMPLETED)
            return looking.result() if looking.done() and not process.ended() else ""
        finally:
            looking.cancel()
            ending.cancel()
            await asyncio.gather(looking, ending, return_exceptions=True)

    async def _look(self, probe: Probe) -> str:
        """Return what a healthy server calls the model, "" while there is none, or it is a stranger's."""
        if not await probe.healthy():
            return ""
        models, command = await probe.models(), self._settings.command
        if command in ("vllm", "sglang"):  # they were told the name
            return self._name if not models or self._name in models else ""
        if command == "transformers" or not models:  # it lists what it could load, or nothing
            return self._settings.model
        called = self._match(models) or (next(iter(models)) if len(models) == 1 else "")
        if not called:
            raise UserError(
                f"models.{self.name}.model: the server has {len(models)} models: {listing(models)}; none of them is"
                f" {self._settings.model}: name one of them, and write what the command needs into the command"
            )
        return called

    def _match(self, models: dict[str, str]) -> str:
        """Return what a server calls our model, "" if it has it not."""
        model = self._settings.model
        ours = {self._name, model, f"{model}:latest", str(Path(model).resolve())}
        named = [name for name in models if name in ours]
        return next(iter(named or [name for name, origin in models.items() if origin in ours]), "")

    async def _answered(self, root: str) -> bool | None:
        """Return whether a server is healthy; None if nothing answers there."""
        async with self._probe(root) as probe:
            return await probe.healthy()

    def _probe(self, root: str) -> Probe:
        return Probe(root, self._served.key() or "")

    def _error(self, process: Process | None, what: str) -> UserError:
        if process is None:
            return UserError(f"models.{self.name}: the server {what}")
        tail = self._tail()
        if missing := _MISSING.search("\n".join(tail)):
            what += f". Set models.{self.name}.python to the interpreter of an environment that has {missing[1]}"
        lines = "\n".join(f"    {line}" for line in tail) or "    (nothing)"
        shown = f"  command: {self._shown(process.command)}\n  log: {self._log.file}\n  its last lines:\n{lines}"
        return UserError(f"models.{self.name}: the server {what}\n{shown}")

    def _tail(self, lines: int = TAIL) -> list[str]:
        """Return the last lines of the log, as they may be shown."""
        return [self._shown(line) for line in self._log.tail(lines)]

    def _shown(self, text: str) -> str:
        return without_secrets(Mask([self._served.key(), *secrets_of(self._settings)]).text(text))

    @cached_property
    def _name(self) -> str:
        return served_name(self._settings.model)


def _noted(task: asyncio.Task[None]) -> None:
    """Take note of how a start went: all who waited for it may be gone."""
    if not task.cancelled():
        task.exception()
