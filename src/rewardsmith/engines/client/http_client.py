"""One HTTP request and its reply, within bounds of time and size. Nothing is retried here."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from rewardsmith import __version__
from rewardsmith.engines.client.replies import (
    RequestError,
    body_error,
    error_code,
    excerpt,
    malformed,
    retry_after,
    status_error,
)
from rewardsmith.engines.urls import read_url, without_verb
from rewardsmith.errors import UserError
from rewardsmith.masking import Mask

MAX_BODY = 32 * 2**20  # bytes of a reply, decompressed
_KEEP_ALIVE = 4.0  # servers close idle connections after about 5 s; a request on one that is closing would be lost
_LONG_BODY = 2**18
_STREAM_END = 1.0  # seconds in which a server may close a stream after its last event


@dataclass(frozen=True)
class Endpoint:
    """The base URL of a server; `shown` is without the query, `proxy` is what the environment sets for it."""

    url: URL
    shown: str
    proxy: URL | None = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Return the endpoint of a base URL; a `UserError` if it cannot be used."""
        try:
            url = read_url(text)
        except ValueError as error:
            raise UserError(f"a server's address cannot be used: {error}") from None
        return cls(url, str(url.with_query(None)).rstrip("/"), _proxy_for(url))

    def at(self, path: str, *, root: bool = False) -> URL:
        """Return the URL of a path: below the base URL, or below its root without `/v1`."""
        base = self.url.raw_path.rstrip("/")
        base = base.removesuffix("/v1") if root else base
        return self.url.with_path(f"{base}/{path}", encoded=True).with_query(self.url.query)


def _proxy_for(url: URL) -> URL | None:
    """Return the proxy that the environment sets for a URL; none for this machine itself."""
    host = url.host or ""
    local = re.fullmatch(r"(.*\.)?localhost|127(\.\d+){3}|::1", host)
    given = None if local or proxy_bypass(host) else getproxies().get(url.scheme)
    if not given:
        return None
    if not re.fullmatch(r"https?://[^/\s]+/?", given):  # the value is not shown: it may hold a password
        raise UserError(f"the environment variable {url.scheme}_proxy is not http://host:port: set it, or no_proxy")
    return URL(given)


class HttpClient:
    """Connections to servers, kept alive between requests; it belongs to the event loop in which it is made.

    The key is sent with each request. It and the other secrets in requests are removed from replies and errors.
    """

    def __init__(self, connect_timeout: float, key: str | None, secrets: Iterable[str] = ()) -> None:
        self._connect_timeout = connect_timeout
        self._loop = asyncio.get_running_loop()
        headers = {"User-Agent": f"rewardsmith/{__version__}", "Accept-Encoding": "identity"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self.mask = Mask([key, *secrets])
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[_start_clock_when_sent()],
        )
        self._closing = _close_with_loop(self._session)

    async def open(self) -> None:
        """Make sure that connections are closed before the event loop is, even without `close`."""
        await anext(self._closing)
        _OPEN[self._session] = self._closing

    @property
    def usable(self) -> bool:
        """Whether it is open and belongs to the running event loop."""
        return self._loop is asyncio.get_running_loop() and not self._session.closed

    async def close(self) -> None:
        """Close all connections."""
        if self._loop is asyncio.get_running_loop():
            await self._closing.aclose()

    async def send(
        self,
        endpoint: Endpoint,
        url: URL,
        payload: Mapping[str, Any] | None,
        until: float,
        *,
        first_token: float | None = None,
        any_body: bool = False,
    ) -> Any:
        """Return the JSON of a reply (a stream is assembled), or raise `RequestError`; without payload, send a GET.

        `until` is on the event loop's clock, `first_token` in seconds. With `any_body` the reply need not be JSON.
        """
        try:
            async with asyncio.timeout_at(until):
                # Below the deadline, so that a connection that is never accepted is unreachable, not slow.
                connect = min(self._connect_timeout, 0.95 * max(0.0, until - self._loop.time()))
                return await self._send(endpoint, url, payload, connect, first_token, any_body)
        except RequestError as error:
            error.detail = self.mask.text(error.detail)
            raise
        except aiohttp.ClientError as error:  # before TimeoutError: a connect timeout is both
            raise self._connection_error(error, endpoint) from None
        except TimeoutError:
            raise RequestError("timeout", f"{endpoint.shown} did not finish its reply") from None
        except OSError as error:
            what = f"{endpoint.shown}: {type(error).__name__}: {error}"
            raise RequestError("unreachable", what, unreachable=True) from None

    async def _send(
        self,
        endpoint: Endpoint,
        url: URL,
        payload: Mapping[str, Any] | None,
        connect: float,
        first_token: float | None,
        any_body: bool,
    ) -> Any:
        data = None if payload is None else json.dumps(payload).encode()
        clock = asyncio.timeout(None)  # of the first token; it starts when the request is sent
        try:
            async with clock:
                response = await self._session.request(
                    "GET" if data is None else "POST",
                    url,
                    data=BytesIO(data) if data is not None and len(data) > _LONG_BODY else data,  # written in chunks
                    headers={} if data is None else {"Content-Type": "application/json"},
                    proxy=endpoint.proxy,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, connect=connect, ceil_threshold=math.inf),
                    trace_request_ctx=(clock, first_token),
                )
        except TimeoutError:
            if not clock.expired():
                raise
            what = f"{endpoint.shown} did not begin a reply in {first_token:g} s"
            raise RequestError("timeout", what, unreachable=True) from None
        async with response:  # leaving it early closes the connection
            return await self._read(response, endpoint.shown, clock.when(), any_body)

    async def _read(self, response: aiohttp.ClientResponse, where: str, begin: float | None, any_body: bool) -> Any:
        content = _bounded(response, where)
        status = response.status
        if status < 300 and response.content_type == "text/event-stream":
            return self.mask.json(await _assemble_stream(content, where, begin))
        body = b"".join([part async for part in content])
        try:
            parsed = self.mask.json(json.loads(body), body)
        except (ValueError, RecursionError):
            parsed = None
        if 300 <= status < 400:
            raise RequestError("refused", f"{where} {_redirect(response)} (status {status})", retryable=False)
        if status >= 400:
            after = retry_after(response.headers)
            raise status_error(status, where, body, retry_after=after, code=error_code(parsed))
        if any_body:
            return parsed
        if not isinstance(parsed, dict | list):
            raise malformed(f"{where} sent no JSON", body)
        if isinstance(parsed, dict) and parsed.get("error"):
            raise body_error(parsed["error"], where)
        return parsed

    def _connection_error(self, error: aiohttp.ClientError, endpoint: Endpoint) -> RequestError:
        """Return what an error of aiohttp means."""
        if isinstance(error, aiohttp.ClientHttpProxyError) and endpoint.proxy is not None:
            # Not the text of the error: it holds the proxy's password. The status is not the server's.
            proxy = endpoint.proxy.with_user(None)
            found = status_error(error.status, f"{endpoint.shown}: the proxy {proxy}", error.message)
            found.status = 0
            return found
        what = self.mask.text(f"{endpoint.shown}: {type(error).__name__}: {excerpt(str(error))}")
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
            return RequestError("refused", f"{what}; does the server speak http:// only?", retryable=False)
        if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, ConnectionRefusedError):
            return RequestError("unreachable", f"{endpoint.shown}: connection refused", unreachable=True)
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return RequestError("unreachable", what, unreachable=True)
        if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError):
            return RequestError("unreachable", what)
        return malformed(what)


def _start_clock_when_sent() -> aiohttp.TraceConfig:
    """Start the clock of the first token when the request has a connection."""
    trace = aiohttp.TraceConfig()

    async def start(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        clock, seconds = context.trace_request_ctx
        if seconds is not None:
            clock.reschedule(asyncio.get_running_loop().time() + seconds)

    trace.on_request_headers_sent.append(start)
    return trace


_OPEN: dict[aiohttp.ClientSession, AsyncGenerator[None, None]] = {}  # so that none is garbage before it is closed


async def _close_with_loop(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    """Close a session when this generator is closed, which an event loop does before it ends."""
    try:
        yield
    finally:
        _OPEN.pop(session, None)
        await session.close()
        await asyncio.sleep(0)  # transports close in the next iteration of the loop


def _redirect(response: aiohttp.ClientResponse) -> str:
    try:
        to = response.url.join(URL(response.headers.get("Location", "")[:500])).with_user(None).with_query(None)
        return f"redirects to {to}: set the address to {without_verb(to)}"
    except ValueError:
        return "redirects to an invalid address"


async def _bounded(response: aiohttp.ClientResponse, where: str) -> AsyncIterator[bytes]:
    """Yield a reply, at most `MAX_BODY` bytes: aiohttp decompresses in chunks, and 1 MB of gzip can hold 1 GB."""
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_BODY:
            raise RequestError("unparsable", f"{where} sent more than {MAX_BODY >> 20} MiB", retryable=False)
        yield part


# ---- streaming -----------------------------------------------------------------------------------------------------


async def _assemble_stream(content: AsyncIterator[bytes], where: str, begin: float | None) -> dict[str, Any]:
    """Return the body that the server would have sent without streaming; the first token must come until `begin`."""
    stream = _Stream(where)
    line: list[bytes] = []
    clock = asyncio.timeout_at(begin)
    try:
        async with clock:
            async for part in content:
                first, *others = part.split(b"\n")
                line.append(first)
                if not others:
                    continue
                complete = [b"".join(line), *others[:-1]]
                line = [others[-1]]
                if sum(stream.add(each) for each in complete):
                    now = asyncio.get_running_loop().time()
                    clock.reschedule(now + _STREAM_END if stream.done else None)
    except TimeoutError:
        if not clock.expired():
            raise
        if not stream.done:
            raise RequestError("timeout", f"{where} did not begin its reply in time", unreachable=True) from None
    stream.add(b"".join(line))
    return stream.body()


@dataclass
class _Stream:
    """The events of one reply so far; `chat` is False for a text completion."""

    where: str
    texts: dict[str, list[str]] = field(default_factory=dict)
    logprobs: list[Any] = field(default_factory=list)
    usage: Any = None
    finish: Any = None
    done: bool = False
    chat: bool = True

    def add(self, line: bytes) -> bool:
        """Add a line; return whether it holds a part of the reply."""
        if not line.startswith(b"data:"):
            return False  # blank lines, comments and names of events
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return True
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            raise malformed(f"{self.where} sent an event that is not a JSON object", data)
        if event.get("error"):
            raise body_error(event["error"], self.where)
        self.usage = event.get("usage") or self.usage
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return False
        return self._add_choice(choices[0])

    def _add_choice(self, choice: dict[str, Any]) -> bool:
        self.finish = choice.get("finish_reason") or self.finish
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            self.chat, delta = False, {"content": choice.get("text")}
        texts = {name: delta.get(name) for name in ("content", "reasoning_content", "reasoning", "refusal")}
        for name, text in texts.items():
            if isinstance(text, str):
                self.texts.setdefault(name, []).append(text)
        if isinstance(choice.get("logprobs"), dict):
            tokens = choice["logprobs"].get("content" if self.chat else "token_logprobs")
            self.logprobs.extend(tokens if isinstance(tokens, list) else [])
        return any(text and isinstance(text, str) for text in texts.values())

    def body(self) -> dict[str, Any]:
        if self.finish is None and not self.done:
            raise RequestError("unreachable", f"{self.where} closed the stream before the end of its reply")
        if self.finish is None and not self.texts:
            return {"choices": [], "usage": self.usage}
        message = {name: "".join(parts) for name, parts in self.texts.items()}
        choice: dict[str, Any] = {"finish_reason": self.finish, "message": message}
        if not self.chat:
            choice["text"] = message.pop("content", None)
        if self.logprobs:
            choice["logprobs"] = {"content" if self.chat else "token_logprobs": self.logprobs}
        return {"choices": [choice], "usage": self.usage}
