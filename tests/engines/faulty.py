"""A loopback server that speaks the OpenAI protocol, and has the faults of its plan.

    async with FaultyServer() as server:
        server.plan("500", "reset", "ok")          # the first three requests; all further ones are answered
        model = ServedModel(ClientSettings(), [server.url], model=server.model)

Only calls of the model follow the plan; the list of models follows `plan_models`, `/sleep` and `/wake_up` follow
`plan_orders`. A server that sleeps answers no call.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Body = dict[str, Any]
Behaviour = Callable[["FaultyServer", web.Request, Body], Awaitable[web.StreamResponse]]

KEY = "sk-secret-0123456789"


@dataclass
class FaultyServer:
    """The server, for use with `async with`."""

    models: list[str] = field(default_factory=lambda: ["tiny"])  # names that it lists
    say: Callable[[Body], str] = lambda body: f"echo: {last_text(body)}"  # the reply to the body of a request
    latency: float = 0.0  # seconds that a reply takes
    key: str | None = None  # that requests must bring
    deadly: float = 30.0  # seconds that a stalled request takes at most, so that a test ends

    def __post_init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Body]] = []
        self.in_flight = self.max_in_flight = self.dropped = 0
        self.asleep = False
        self.port = 0
        self.idle = asyncio.Event()
        self._plan: deque[str | Behaviour] = deque()
        self._plan_models: deque[str | Behaviour] = deque()
        self._plan_orders: deque[str | Behaviour] = deque()
        self._runner: web.AppRunner | None = None

    @property
    def model(self) -> str:
        return self.models[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def plan(self, *behaviours: str | Behaviour, clear: bool = False) -> None:
        """What the next requests meet; names are those of `FAULTS`."""
        if clear:
            self._plan.clear()
        self._plan.extend(behaviours)

    def plan_models(self, *behaviours: str | Behaviour) -> None:
        self._plan_models.extend(behaviours)

    def plan_orders(self, *behaviours: str | Behaviour) -> None:
        self._plan_orders.extend(behaviours)

    @property
    def bodies(self) -> list[Body]:
        return [body for _, _, body in self.requests]

    async def __aenter__(self) -> FaultyServer:
        app = web.Application(client_max_size=2**28)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, backlog=1024)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Go away, as a server that died: connections are refused. The port stays its own for `__aenter__`."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await close(runner)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read() or b"{}")
        path = request.path
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return error(401, f"Incorrect API key provided: {request.headers.get('Authorization')}")
        if path == "/v1/models":
            return await self._met(self._plan_models, models, request, body)
        if path in ("/sleep", "/wake_up"):
            return await self._met(self._plan_orders, obey, request, body)
        self.requests.append((path, dict(request.headers), body))
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        self.idle.clear()
        try:
            return await self._met(self._plan, asleep if self.asleep else answer, request, body)
        except asyncio.CancelledError:
            self.dropped += 1
            raise
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self.idle.set()

    async def _met(
        self, plan: deque[str | Behaviour], otherwise: Behaviour, request: web.Request, body: Body
    ) -> web.StreamResponse:
        behaviour = plan.popleft() if plan else otherwise
        if isinstance(behaviour, str):
            behaviour = FAULTS[behaviour]
        return await behaviour(self, request, body)


async def close(runner: web.AppRunner) -> None:
    """Close a server; asyncio alone loses the socket of a connection that it accepts in the turn of the closing."""
    for site in runner.sites:
        for listening in site._server.sockets:  # type: ignore[union-attr]
            asyncio.get_running_loop().remove_reader(listening)
    for _ in range(5):  # what was accepted becomes known to the runner
        await asyncio.sleep(0)
    await runner.cleanup()
    await asyncio.sleep(0)


def last_text(body: Body) -> str:
    messages = body.get("messages")
    return str(messages[-1]["content"] if messages else body.get("prompt", ""))


# What is right.


async def models(server: FaultyServer, request: web.Request, body: Body) -> web.StreamResponse:
    return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in server.models]})


async def obey(server: FaultyServer, request: web.Request, body: Body) -> web.StreamResponse:
    server.asleep = request.path == "/sleep"
    return web.json_response({"status": request.path})


async def asleep(server: FaultyServer, request: web.Request, body: Body) -> web.StreamResponse:
    return error(500, "EngineCore is sleeping")


async def answer(server: FaultyServer, request: web.Request, body: Body) -> web.StreamResponse:
    if server.latency:
        await asyncio.sleep(server.latency)
    if body.get("model") not in server.models:
        return error(404, f"The model `{body.get('model')}` does not exist.", code="model_not_found")
    path = request.path
    if path == "/v1/embeddings":
        return embeddings(body)
    if path == "/classify":
        score = float(len(body["messages"][-1]["content"]))
        data = [{"index": 0, "label": "LABEL_0", "probs": [score], "num_classes": 1}]
        return web.json_response({"data": data, "usage": {"prompt_tokens": 7, "total_tokens": 7}})
    if path == "/score":
        pairs = list(zip(body["text_1"], body["text_2"], strict=True))
        data = [{"index": i, "score": float(len(b) - len(a))} for i, (a, b) in enumerate(pairs)]
        return web.json_response({"data": data[::-1], "usage": {"prompt_tokens": 7 * len(pairs)}})
    if path not in ("/v1/chat/completions", "/v1/completions"):
        return error(404, "Not Found")
    return web.json_response(completion(body, server.say(body)))


def completion(
    body: Body,
    text: str | None,
    *,
    finish: str | None = "stop",
    message: Body | None = None,
    logprobs: tuple[float, ...] = (-0.5, -1.5),
) -> Body:
    """Return the body of an answer to a chat, or to a text if there are no messages."""
    chat = "messages" in body
    choice: Body = {"index": 0, "finish_reason": finish}
    if chat:
        choice["message"] = {"role": "assistant", "content": text} | (message or {})
    else:
        choice["text"] = text
    if body.get("logprobs"):
        choice["logprobs"] = (
            {"content": [{"token": "x", "logprob": each} for each in logprobs]}
            if chat
            else {"token_logprobs": list(logprobs)}
        )
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    return {"id": "1", "object": "chat.completion", "model": body.get("model"), "choices": [choice], "usage": usage}


def embeddings(body: Body) -> web.StreamResponse:
    data = [{"index": i, "embedding": [3.0 * (1 + len(text)), 4.0]} for i, text in enumerate(body["input"])]
    return web.json_response({"data": data[::-1], "usage": {"prompt_tokens": 5, "total_tokens": 5}})


# What is wrong.


def error(status: int, message: str, *, code: object = None, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": "Error", "param": None, "code": code}}, status=status, headers=headers
    )


def status(number: int, message: str = "no", *, code: object = None, **headers: str) -> Behaviour:
    """Return a behaviour that answers with an error; `Retry_After="1"` is a header."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def respond(server: FaultyServer, request: web.Request, body: Body) -> web.StreamResponse:
        return error(number, message, code=code, headers=named)

    return respond


def raw(data: bytes, *, number: int = 200, kind: str = "application/json") -> Behaviour:
    """Return a behaviour that answers with these bytes."""

    async def respond(server: FaultyServer, request: web.Request, body: Body) -> web.StreamResponse:
        return web.Response(body=data, status=number, headers={"Content-Type": kind})

    return respond


def said(text: str | None, **kwargs: Any) -> Behaviour:
    """Return a behaviour that answers with this text; see `completion`."""

    async def respond(server: FaultyServer, request: web.Request, body: Body) -> web.StreamResponse:
        return web.json_response(completion(body, text, **kwargs))

    return respond


async def reset(server: FaultyServer, request: web.Request, body: Body) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def reset_midway(server: FaultyServer, request: web.Request, body: Body) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "100000", "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.abort()
    return response


async def stall(server: FaultyServer, request: web.Request, body: Body) -> web.StreamResponse:
    await asyncio.sleep(server.deadly)
    return web.Response(status=500)


async def drip(server: FaultyServer, request: web.Request, body: Body) -> web.StreamResponse:
    """Begin at once, and never end: one byte of white space after the other."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for _ in range(int(server.deadly / 0.02)):
        await response.write(b" ")
        await asyncio.sleep(0.02)
    return response


async def huge(server: FaultyServer, request: web.Request, body: Body) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for _ in range(40):
        await response.write(b" " * 2**20)
    return response


async def redirect(server: FaultyServer, request: web.Request, body: Body) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": "http://me:hush@elsewhere.test/v1/chat/completions"})


FAULTS: dict[str, Behaviour] = {
    "ok": answer,
    "429": status(429, "slow down"),
    "429-after": status(429, "slow down", Retry_After="0"),
    "quota": status(429, "you exceeded your quota", code="insufficient_quota"),
    "408": status(408),
    "500": status(500, "engine trouble"),
    "502": status(502, "bad gateway"),
    "503": status(503, "loading"),
    "400": status(400, "This model's maximum context length is 10 tokens", code="context_length_exceeded"),
    "401": status(401, "who are you"),
    "404": status(404, "The model does not exist", code="model_not_found"),
    "reset": reset,
    "reset-midway": reset_midway,
    "stall": stall,
    "drip": drip,
    "half": raw(b'{"choices": [{"message": {"content": "wh'),
    "schema": raw(b'{"result": "fine"}'),
    "list": raw(b"[1, 2, 3]"),
    "number": raw(b"17"),
    "nothing": raw(b""),
    "deep": raw(b"[" * 100_000),
    "empty": raw(b'{"choices": []}'),
    "odd-choice": raw(b'{"choices": ["text"]}'),
    "odd-finish": raw(b'{"choices": [{"finish_reason": {"a": []}, "message": {"content": 5}}]}'),
    "null": said(None),
    "latin": raw('{"choices": [{"message": {"content": "é"}}]}'.encode("latin-1")),
    "html": raw(b"<html><body>Welcome to nginx</body></html>", kind="text/html"),
    "html-503": raw(b"<html>503 Service Unavailable</html>", number=503, kind="text/html"),
    "error-body": raw(b'{"error": {"message": "no credits", "code": "credits"}}'),
    "error-body-503": raw(b'{"error": {"message": "overloaded", "code": 503}}'),
    "filtered": said(None, finish="content_filter"),
    "abort": said("the answer is", finish="abort"),
    "length": said("the answer is", finish="length"),
    "huge": huge,
    "redirect": redirect,
}
