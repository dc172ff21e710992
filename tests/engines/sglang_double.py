"""A loopback server with SGLang's own contract, in the version of 2026: reward models, and sleep with its dangers.

A server that gets a sleep request while another request runs, to sleep twice, or to wake while it is awake, dies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.engines.faulty import close

FLAGS = {"enable_memory_saver": True, "enable_weights_cpu_backup": True}


class SglangServer:
    """The server, for use with `async with`; `reward` is that of token ids."""

    def __init__(self, reward: Callable[[list[int]], Any], **flags: bool) -> None:
        self.reward, self.info = reward, {"version": "0.5", **FLAGS, **flags}
        self.requests: list[tuple[str, Any]] = []
        self.asleep = self.dead = False
        self.running = self.abandoned = 0  # requests of calls, and of others
        self.port = 0
        self.lose_next_reply = False
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]

    async def __aenter__(self) -> SglangServer:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await close(self._runner)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read() or b"null")
        path = request.path
        if path == "/v1/models":
            return web.json_response({"object": "list", "data": [{"id": "rm", "object": "model"}]})
        if path == "/server_info":
            return web.json_response(self.info)
        self.requests.append((path, body))
        if path == "/classify":
            return await self._classify(body)
        if path == "/flush_cache":
            busy = self.running + self.abandoned > 0
            self.abandoned = max(0, self.abandoned - 1)  # it ends some time
            return web.Response(text="Cache flushed." if not busy else "busy", status=400 if busy else 200)
        if path in ("/release_memory_occupation", "/resume_memory_occupation"):
            sleep = "release" in path
            busy = sleep and self.running + self.abandoned > 0
            self.dead = self.dead or busy or self.asleep == sleep
            self.asleep = sleep
            if self.dead or self.lose_next_reply:
                self.lose_next_reply = False
                assert request.transport is not None
                request.transport.close()
            return web.json_response(None)
        return web.json_response({"detail": "Not Found"}, status=404)

    async def _classify(self, body: Any) -> web.Response:
        if self.asleep or self.dead:
            self.dead = True
            return web.Response(status=500, text="illegal memory access")
        self.running += 1
        await asyncio.sleep(0)
        self.running -= 1
        ids = body["input_ids"]
        if not isinstance(ids, list) or not all(type(one) is int for one in ids):
            return web.json_response({"error": {"message": "input_ids"}}, status=400)
        meta = {"id": "0", "finish_reason": {"type": "length"}, "prompt_tokens": len(ids)}
        return web.json_response({"embedding": self.reward(ids), "meta_info": meta})
