"""One process of the reward server: load the reward, serve, and finish what was accepted before it ends.

python -m rewardsmith.integrations.server_worker TABLE NUMBER first|again      # started by the supervisor
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
from aiohttp import web

from rewardsmith.errors import UserError
from rewardsmith.integrations.serve_command import BACKLOG, ServeOptions
from rewardsmith.integrations.serve_supervisor import READY
from rewardsmith.integrations.server import RewardServer, ServerLimits
from rewardsmith.integrations.server_metrics import Snapshot
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.pool import shared
from rewardsmith.rewards.tree import check, close
from rewardsmith.runs.lookup import find_reward
from rewardsmith.runs.model_registry import ModelRegistry

FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0
"""Seconds between two checks of a reward that is not ready: doubled each time, up to the second."""

ACCEPTED_AT_ONCE = 8
"""Connections that one of several processes takes at a time, so that all get some."""

IDLE_GRACE = 1.0
"""Seconds without a request after which connections are closed while draining: one may still be on its way."""

SHUTDOWN_TIMEOUT = 0.1
"""Seconds for handlers that are cut off at the end; aiohttp takes 0 for no limit."""

CLOSE_TIMEOUT = 30.0
"""Seconds in which models, and then rewards, must close at the end."""


async def run_worker(
    options: ServeOptions, listening: socket.socket, *, number: int = 0, folder: Path | None = None, again: bool = False
) -> int:
    """Serve until a signal comes; return the exit status.

    With a `folder`, this is one of several processes: it publishes its counts there, and ends when its standard input
    does. A process that was started `again` accepts no connection before it is ready.
    """
    stop = StopSignals(watch_input=folder is not None)
    log = partial(_log, "" if folder is None else f"worker {number}: ")
    limits = ServerLimits(options.max_body * 2**20, options.max_in_flight, options.concurrency, options.deadline)
    peers = None if folder is None else PeerMetrics(folder, number)
    server = RewardServer(
        limits, token=options.token(), title=options.reward, snapshots=None if peers is None else peers.gather
    )
    async with AsyncExitStack() as stack:
        if peers is not None:
            await stack.enter_async_context(peers.published(server.metrics.snapshot))
        opening = asyncio.create_task(_open(server, options, stack, log))
        try:
            if again:
                await stop.or_done(opening)
            runner, site = await _start(server, listening, shared=folder is not None)
            await stop.or_done(opening)
            if folder is not None and server.ready:
                (folder / READY).touch()
            await stop.first.wait()
            await _drain(server, runner, site, listening, options.drain, stop, log)
        finally:
            opening.cancel()
            with suppress(asyncio.CancelledError):
                await opening
    return 1 if stop.second.is_set() else 0


class StopSignals:
    """SIGTERM and SIGINT: the first asks to drain, the second to end at once. So does the end of the supervisor."""

    def __init__(self, *, watch_input: bool) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signal)
        if watch_input:
            loop.add_reader(sys.stdin.fileno(), self._input)

    def _signal(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    def _input(self) -> None:
        if not os.read(sys.stdin.fileno(), 1024):  # the supervisor is gone
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.first.set()

    async def or_done(self, task: asyncio.Task[None]) -> None:
        """Wait for a task, or for the first signal; raise what the task raised."""
        stop = asyncio.create_task(self.first.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        if task.done():
            task.result()


async def _open(server: RewardServer, options: ServeOptions, stack: AsyncExitStack, log: Callable[[str], None]) -> None:
    """Load the reward with its models, and check it until the check passes."""
    found = find_reward(options.reward, options.overrides)
    shared(max(1, len(os.sched_getaffinity(0)) // options.processes))  # workers for rules: not more than processors
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rewardsmith-")))
    models = ModelRegistry(
        found.models, seed=found.seed, folder=folder, log=log, cache=found.cache,
        on_open=lambda engine: log(f"warning: {text}") if (text := found.warnings.get(engine.name)) else None,
    )  # fmt: skip
    stack.push_async_callback(_in_time, models.close)
    # In a thread: loading a model takes long, and liveness is asked about meanwhile.
    reward = await asyncio.to_thread(Component.root, found.reward, log, models)
    stack.push_async_callback(_in_time, partial(close, reward))
    pause = FIRST_PAUSE
    while True:
        try:
            await check(reward)
            break
        except UserError as error:
            server.problem = str(error)
            log(f"not ready, checking again in {pause:g} s: {error}")
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_PAUSE)
    server.open(reward)
    log("ready")


async def _in_time(closing: Callable[[], Awaitable[None]]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await closing()


async def _start(server: RewardServer, listening: socket.socket, *, shared: bool) -> tuple[web.AppRunner, web.SockSite]:
    runner = web.AppRunner(
        server.application(),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=SHUTDOWN_TIMEOUT,
        auto_decompress=False,
    )
    await runner.setup()
    site = web.SockSite(runner, listening, backlog=ACCEPTED_AT_ONCE if shared else BACKLOG)
    await site.start()
    listening.listen(BACKLOG)  # starting has set it to the number that is accepted at once
    return runner, site


async def _drain(
    server: RewardServer,
    runner: web.AppRunner,
    site: web.SockSite,
    listening: socket.socket,
    seconds: float,
    stop: StopSignals,
    log: Callable[[str], None],
) -> None:
    """Accept what waits, stop listening, let requests finish, and close connections that have been idle for a while."""
    server.draining = True
    log(f"draining: {server.requests} requests in progress")
    loop = asyncio.get_running_loop()
    loop.remove_reader(listening)  # asyncio would lose what it accepts while it closes
    handler = runner.server
    assert handler is not None
    while True:
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, InterruptedError):
            break
        except OSError as error:
            log(f"a connection was lost: {error}")
            break
        connection.setblocking(False)
        await loop.connect_accepted_socket(handler, connection)
    await site.stop()  # closes the socket
    until, idle_since = loop.time() + seconds, loop.time()
    while not stop.second.is_set() and loop.time() < until and handler.connections:
        if server.requests or _unsent(handler):
            idle_since = loop.time()
        elif loop.time() - idle_since >= IDLE_GRACE:
            break
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.second.wait(), 0.05)
    if cut := server.requests + _unsent(handler):
        log(f"{cut} requests were cut off")
    await runner.cleanup()
    log("stopped")


def _unsent(handler: web.Server) -> int:
    """Return how many connections have a reply that the client has not read to its end."""
    transports = (connection.transport for connection in handler.connections)
    return sum(1 for one in transports if one is not None and one.get_write_buffer_size())


class PeerMetrics:
    """The counts of all processes: each has a socket in one folder, and any of them can be asked for all."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number

    @asynccontextmanager
    async def published(self, snapshot: Callable[[], Snapshot]) -> AsyncIterator[None]:
        """Answer on this process's socket."""

        async def reply(_: web.Request) -> web.Response:
            return web.json_response(snapshot())

        app = web.Application()
        app.router.add_get("/", reply)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT)
        await runner.setup()
        path = self._folder / f"{self._number}.sock"
        path.unlink(missing_ok=True)
        await web.UnixSite(runner, str(path)).start()
        try:
            yield
        finally:
            await runner.cleanup()

    async def gather(self) -> dict[int, Snapshot]:
        """Return the counts of the processes that answer, by number."""
        paths = sorted(self._folder.glob("*.sock"))
        found = await asyncio.gather(*map(_fetch, paths), return_exceptions=True)
        pairs = zip(paths, found, strict=True)
        return {int(path.stem): one for path, one in pairs if not isinstance(one, BaseException)}


async def _fetch(path: Path) -> Any:
    timeout = aiohttp.ClientTimeout(total=2.0)
    connector = aiohttp.UnixConnector(str(path))
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        session.get("http://peer/") as reply,
    ):
        return await reply.json()


def _log(before: str, text: str) -> None:
    sys.stderr.write(f"{before}{text}\n")
    sys.stderr.flush()


def run_and_exit(worker: Coroutine[Any, Any, int], before: str = "") -> NoReturn:
    """Run a worker, clean up and end the process: a thread of a function that hangs keeps it from ending otherwise."""
    try:
        status = asyncio.Runner().run(worker)  # it is not closed, because that waits for the thread
    except UserError as error:
        _log(before, f"error: {error}")
        status = 2
    except BaseException:  # noqa: BLE001 whatever it is, this process ends
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def main(table: str, number: str, mode: str) -> NoReturn:
    """Run a worker that the supervisor has started."""
    given = json.loads(table)
    sys.path[:] = given["path"]
    options = ServeOptions(**{**given["options"], "overrides": tuple(given["options"]["overrides"])})
    listening = socket.socket(fileno=given["socket"])
    listening.setblocking(False)
    worker = run_worker(options, listening, number=int(number), folder=Path(given["folder"]), again=mode == "again")
    run_and_exit(worker, f"worker {number}: ")


if __name__ == "__main__":
    main(*sys.argv[1:])
