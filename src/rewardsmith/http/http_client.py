"""One HTTP request and its reply, within bounds of time and size. Nothing is retried here."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeVar
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from rewardsmith import __version__
from rewardsmith.errors import UserError
from rewardsmith.http.request_errors import (
    MAX_EXCERPT,
    RequestError,
    body_error,
    excerpt,
    malformed,
    retry_after,
    status_error,
)
from rewardsmith.http.urls import read_url
from rewardsmith.masking import Mask

T = TypeVar("T")

MAX_BODY = 32 * 2**20  # default limit of a reply in bytes, decompressed
_KEEP_ALIVE = 4.0  # servers close idle connections after about 5 s; a request on one that is closing would be lost


@dataclass(frozen=True)
class Endpoint:
    """The base URL of a server; `shown` is without the query, `proxy` is what the environment sets for it."""

    url: URL
    shown: str
    proxy: URL | None = field(repr=False)

    @classmethod
    def parse(cls, text: str, *, base: bool = True) -> Endpoint:
        """Return the endpoint of a base URL, or of any (`base=False`); a `UserError` if it cannot be used."""
        try:
            url = read_url(text, base=base)
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

    The key is sent with each request. It and the other secrets in requests are removed from replies and errors. A
    reply with a field `error` is an error, whatever its status, unless `body_errors` is off. `read_json` raises a
    ValueError for a reply that is no JSON.
    """

    def __init__(
        self,
        connect_timeout: float,
        key: str | None,
        secrets: Iterable[str] = (),
        *,
        max_body: int = MAX_BODY,
        body_errors: bool = True,
        read_json: Callable[[bytes], Any] = json.loads,
    ) -> None:
        self._connect_timeout, self._max_body, self._body_errors = connect_timeout, max_body, body_errors
        self._read_json, self._loop = read_json, asyncio.get_running_loop()
        self._mask = Mask([key, *secrets])
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),
            headers={"User-Agent": f"rewardsmith/{__version__}", "Accept-Encoding": "identity"}
            | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
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
        payload: Any,
        parse: Callable[[Any], T],
        until: float,
        *,
        timeout: float | None = None,
    ) -> T:
        """Return the parsed reply, or raise `RequestError`; without payload, send a GET.

        `until`, on the event loop's clock, and `timeout`, in seconds, limit the request. `parse` gets JSON, or the text
        of a reply that is none.
        """
        begun = self._loop.time()
        limit = until if timeout is None else min(until, begun + timeout)
        # Below the deadline, so that a connection that is never accepted is unreachable, not slow.
        connect = min(self._connect_timeout, 0.95 * max(0.0, limit - begun))
        try:
            async with (
                asyncio.timeout_at(limit),
                self._session.request(
                    "GET" if payload is None else "POST",
                    url,
                    data=None if payload is None else BytesIO(json.dumps(payload).encode()),
                    headers={} if payload is None else {"Content-Type": "application/json"},
                    proxy=endpoint.proxy,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, connect=connect, ceil_threshold=math.inf),
                ) as response,
            ):
                return parse(self._checked(response, await _read(response, self._max_body)))
        except RequestError as error:
            found = error
        except aiohttp.ClientError as error:  # before TimeoutError: a connect timeout is both
            found = _connection_error(error)
        except TimeoutError:
            detail = f"no reply within {limit - begun:.3g} s"
            found = RequestError("timeout", detail, unreachable=limit < until)
        except OSError as error:
            found = RequestError("unreachable", f"{type(error).__name__}: {error}", unreachable=True)
        found.detail = self._mask.text(f"{endpoint.shown}: {found.detail}")
        raise found from None

    def _checked(self, response: aiohttp.ClientResponse, body: bytes) -> Any:
        """Return the JSON of a reply, or its text, without the secrets in it."""
        try:
            parsed = self._mask.json(self._read_json(body), body)
        except (ValueError, RecursionError):
            parsed = body[: 4 * MAX_EXCERPT].decode("utf-8", "replace")
        status, error = response.status, parsed.get("error") if isinstance(parsed, dict) else None
        if 300 <= status < 400:
            detail = f"it redirects (status {status}), which is not followed: use the server's own address"
            raise RequestError("refused", detail, retryable=False)
        if status >= 400:
            code = error.get("code") if isinstance(error, dict) else None
            raise status_error(status, body, retry_after=retry_after(response.headers), code=code)
        if error and self._body_errors:
            raise body_error(error)
        return parsed


_OPEN: dict[aiohttp.ClientSession, AsyncGenerator[None, None]] = {}  # so that none is garbage before it is closed


async def _close_with_loop(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    """Close a session when this generator is closed, which an event loop does before it ends."""
    try:
        yield
    finally:
        _OPEN.pop(session, None)
        await session.close()
        await asyncio.sleep(0)  # transports close in the next iteration of the loop


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return a reply of at most `limit` bytes: aiohttp decompresses in chunks, and 1 MB of gzip can hold 1 GB."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > limit:
            raise RequestError("unparsable", f"it sent more than {limit / 2**20:.3g} MiB", retryable=False)
    return bytes(body)


def _connection_error(error: aiohttp.ClientError) -> RequestError:
    """Return what an error of aiohttp means."""
    if isinstance(error, aiohttp.ClientHttpProxyError):  # its own text holds the proxy's password
        found = status_error(error.status, f"the proxy replied: {error.message}")
        if error.status == 407:
            found.detail += "; set the proxy's user and password in the environment: http://user:password@host:port"
        found.status = 0  # it is not the server's
        return found
    what = f"{type(error).__name__}: {excerpt(str(error))}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        return RequestError("refused", f"{what}; does the server speak http:// only?", retryable=False)
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return RequestError("unreachable", what, unreachable=True)
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError):
        return RequestError("unreachable", what)
    return malformed(what)
