"""Reward servers for tests: the application in this process, or `rewardsmith serve` in processes of its own."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from rewardsmith.integrations.server import RewardServer, ServerLimits
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.tree import check

LIMIT = 60.0
"""Seconds after which a test fails because what should happen has not."""

MATH = {"type": "rule", "rule": "math"}


@dataclass
class Served:
    """A server in this process."""

    server: RewardServer
    session: aiohttp.ClientSession
    url: str

    async def post(self, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str) -> tuple[int, Any]:
        """Return status and JSON of a reply."""
        data = json.dumps(body).encode() if raw is None else raw
        given = {"Content-Type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
        async with self.session.post(f"{self.url}{path}", data=data, headers=given) as reply:
            return reply.status, json.loads(await reply.read())

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.session.get(f"{self.url}{path}", headers=headers) as reply:
            return reply.status, await reply.text()


@asynccontextmanager
async def serving(
    table: dict[str, Any] | None, *, token: str | None = None, models: dict[str, Any] | None = None, **limits: Any
) -> AsyncIterator[Served]:
    """Serve a reward on a free port; without one, the server never becomes ready."""
    server = RewardServer(ServerLimits(**limits), token=token)
    if table is not None:
        reward = make_reward(table, models)
        await check(reward)
        server.open(reward)
    runner = web.AppRunner(
        server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1, auto_decompress=False
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Served(server, session, f"http://127.0.0.1:{runner.addresses[0][1]}")
        await asyncio.sleep(0)
    finally:
        await runner.cleanup()


@dataclass
class Command:
    """`rewardsmith serve` as a process."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def logged(self, pattern: str, times: int = 1) -> list[str]:
        """Wait until the log has the pattern so many times; return what it captured."""
        until = time.monotonic() + LIMIT
        while len(found := re.findall(pattern, self.log.read_text(encoding="utf-8"))) < times:
            assert self.process.poll() is None, self.log.read_text(encoding="utf-8")
            assert time.monotonic() < until, self.log.read_text(encoding="utf-8")
            time.sleep(0.02)
        return found

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=LIMIT) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@contextmanager
def command(folder: Path, reward: str, *arguments: str, processes: int = 1, ready: bool = True) -> Iterator[Command]:
    """Run `rewardsmith serve` on a free port until the end of the block, at which it is killed if it still runs."""
    file, log = folder / "reward.toml", folder / "serve.log"
    file.write_text(reward, encoding="utf-8")
    root = Path(__file__).parents[2]
    paths = [str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")]
    line = [sys.executable, "-m", "rewardsmith", "serve", str(file), "--port", "0", "--processes", str(processes)]
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [*line, *arguments], stderr=out, stdout=out, text=True, cwd=root,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )  # fmt: skip
    served = Command(process, "", log)
    try:
        served.url = served.logged(r"listening on (\S+)")[0]
        if ready:
            served.logged(r"(?m)ready$", processes)
        yield served
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait(LIMIT)
