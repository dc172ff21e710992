"""One HTTP request and what comes back, within bounds of time and size. Nothing is tried twice here."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from rewardsmith import __version__
from rewardsmith.engines.client.faults import Fault, asked_to_wait, error_code, excerpt, garbage, of_error, of_status
from rewardsmith.engines.client.stream import gather_stream
from rewardsmith.engines.client.unpacking import unpacked
from rewardsmith.engines.urls import read_url, without_verb
from rewardsmith.errors import UserError
from rewardsmith.masking import Mask

MAX_BODY = 32 * 2**20
"""Bytes of an answer; whoever sends more is not talking to us."""

MAX_SHOWN = 4096
"""Bytes of an answer that are looked at for an error's text."""

# Servers close idle connections after about five seconds; a request on one that is being closed would be lost.
_KEEP_ALIVE = 4.0

_LONG = 2**18


@dataclass(frozen=True)
class Base:
    """The address of a server, in parts.

    Attributes:
        url: as the recipe gives it.
        shown: for people: without the query.
        proxy: that the environment wants for it, with its password; never for this machine itself.
    """

    url: URL
    shown: str
    proxy: URL | None = field(repr=False)

    @classmethod
    def of(cls, text: str) -> Base:
        """Return the parts of an address.

        Raises:
            UserError: it is no address, holds a secret, or needs a proxy that cannot be used.
        """
        try:
            url = read_url(text)
        except ValueError as error:
            raise UserError(f"a server's address cannot be used: {error}") from None
        return cls(url, str(url.with_query(None)).rstrip("/"), _proxy_for(url))

    @property
    def key(self) -> str:
        """By which the same address is known again."""
        return str(self.url).rstrip("/")

    def at(self, path: str, *, root: bool = False) -> URL:
        """Return where a verb is: below the address, or beside its last part `v1` if it is no part of that version."""
        base = self.url.raw_path.rstrip("/")
        if root:
            base = base.removesuffix("/v1")
        return self.url.with_path(f"{base}/{path}", encoded=True).with_query(self.url.query)


def _proxy_for(url: URL) -> URL | None:
    host = url.host or ""
    try:
        here = ip_address(host).is_loopback
    except ValueError:
        here = host == "localhost" or host.endswith(".localhost")
    given = None if here or proxy_bypass(host) else getproxies().get(url.scheme)
    if not given:
        return None
    try:
        proxy = URL(given)
        if proxy.scheme in ("http", "https") and proxy.host:
            return proxy
    except ValueError:
        pass
    raise UserError(  # what it holds is not shown: there may be a password in it
        f"the environment variable {url.scheme}_proxy cannot be used for {url.host}: it must be http://host:port, or "
        f"http://user:password@host:port. Mend it, or name the host in no_proxy"
    )


@dataclass(frozen=True)
class Patient:
    """How long is waited.

    Attributes:
        connect: seconds until a connection must stand.
        first_byte: seconds from when a connection stands until an answer must begin; None: only the deadline counts.
        until: the deadline, on the event loop's clock.
    """

    connect: float
    first_byte: float | None
    until: float


class Wire:
    """Connections to servers, kept alive between requests; it belongs to the event loop in which it was made.

    Args:
        key: sent with each request; None: none.
        secrets: that requests hold too; like the key, they are taken out of what comes back.
    """

    def __init__(self, key: str | None, secrets: Iterable[str] = ()) -> None:
        self._loop = asyncio.get_running_loop()
        headers = {"User-Agent": f"rewardsmith/{__version__}", "Accept-Encoding": "identity"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._mask = Mask([key, *secrets])
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[_clock_at_sending()],
            auto_decompress=False,  # see `unpacking`
        )
        self._closing = _closes(self._session)

    async def open(self) -> None:
        """See to it that the connections are closed before the event loop is, whether or not `close` is called."""
        await anext(self._closing)

    @property
    def usable(self) -> bool:
        """Whether it belongs to the running event loop, and is open."""
        return self._loop is asyncio.get_running_loop() and not self._session.closed

    async def close(self) -> None:
        """Close all connections."""
        if self._loop is asyncio.get_running_loop():
            await self._closing.aclose()

    async def send(
        self,
        base: Base,
        url: URL,
        payload: Mapping[str, Any] | None,
        patience: Patient,
        *,
        method: str = "POST",
        silent: bool = False,
    ) -> Any:
        """Return the JSON of a server's answer; that of a stream is put together.

        Args:
            base: whom to ask.
            url: where exactly.
            payload: what to send, as JSON.
            patience: how long.
            method: of HTTP.
            silent: the answer need not be JSON, and None is returned if it is not.

        Raises:
            Fault: there is none.
        """
        try:
            async with asyncio.timeout_at(patience.until):
                return await self._send(base, url, payload, patience, method, silent)
        except Fault as fault:
            fault.args = (self.without_key(str(fault)),)
            raise
        except aiohttp.ClientError as error:  # before TimeoutError: that a connection takes too long is one of them
            raise self._fault(error, base) from None
        except TimeoutError:
            raise Fault("timeout", f"{base.shown} did not finish its answer") from None
        except OSError as error:
            raise Fault("unreachable", f"{base.shown}: {type(error).__name__}: {error}", gone=True) from None

    async def _send(
        self, base: Base, url: URL, payload: Mapping[str, Any] | None, patience: Patient, method: str, silent: bool
    ) -> Any:
        data = None if payload is None else json.dumps(payload).encode()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        # A connection that does not stand before the deadline is one that cannot be made, not an answer that is late.
        connect = min(patience.connect, 0.95 * max(0.0, patience.until - self._loop.time()))
        clock = asyncio.timeout(None)  # runs from when the connection stands
        try:
            async with clock:
                response = await self._session.request(
                    method,
                    url,
                    # Written in pieces if it is long, so that others are served between them.
                    data=BytesIO(data) if data is not None and len(data) > _LONG else data,
                    headers=headers,
                    proxy=base.proxy,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, connect=connect, ceil_threshold=math.inf),
                    trace_request_ctx=(clock, patience.first_byte),
                )
        except TimeoutError:
            if clock.expired():
                what = f"{base.shown} did not begin an answer in {patience.first_byte:g} s"
                raise Fault("timeout", what, gone=True) from None
            raise
        async with response:  # leaving it early closes the connection
            return await self._read(response, base, clock.when(), silent)

    async def _read(self, response: aiohttp.ClientResponse, base: Base, begin: float | None, silent: bool) -> Any:
        content = unpacked(response.content, response.headers.get("Content-Encoding", ""), base.shown, MAX_BODY)
        if response.ok and response.status < 300 and response.content_type == "text/event-stream":
            return self._masked(await gather_stream(content, base.shown, begin))
        body = b"".join([part async for part in content])
        try:
            parsed = self._masked(json.loads(body), body)
        except (ValueError, RecursionError):
            parsed = None
        status = response.status
        if 300 <= status < 400:
            raise Fault("refused", f"{base.shown} {_redirect(response)} (status {status})", passing=False)
        shown = body[:MAX_SHOWN].decode("utf-8", "replace")
        if status >= 400:
            raise of_status(status, base.shown, shown, after=asked_to_wait(response.headers), code=error_code(parsed))
        if silent:
            return parsed
        if not isinstance(parsed, dict | list):
            raise garbage(f"{base.shown} sent no JSON", shown)
        if isinstance(parsed, dict) and parsed.get("error"):
            raise of_error(parsed["error"], base.shown)
        return parsed

    def _fault(self, error: aiohttp.ClientError, base: Base) -> Fault:
        """Return what an error of the connection means."""
        if isinstance(error, aiohttp.ClientHttpProxyError) and base.proxy is not None:
            # Not the text of the error, in which the proxy's password is.
            fault = of_status(error.status, f"{base.shown}: the proxy {base.proxy.with_user(None)}", error.message)
            fault.status = 0  # of the server nothing is known
            return fault
        what = self.without_key(f"{base.shown}: {type(error).__name__}: {excerpt(str(error))}")
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
            plain = any(sign in what for sign in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"))
            return Fault("refused", f"{what}; it does not speak https: use http://" if plain else what, passing=False)
        if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, ConnectionRefusedError):
            return Fault("unreachable", f"nobody listens at {base.shown} (connection refused)", gone=True)
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return Fault("unreachable", what, gone=True)
        if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError):
            return Fault("unreachable", what)
        return garbage(what)

    def without_key(self, text: str) -> str:
        """Return what may be shown of a server's words: some repeat the key in their errors, where it may be cut."""
        return self._mask.text(text)

    def _masked(self, parsed: Any, body: bytes | None = None) -> Any:
        """Return a reply in which the key is not repeated: it would go to rollouts, report and cache."""
        return self._mask.json(parsed, body)


def _clock_at_sending() -> aiohttp.TraceConfig:
    """Start the clock of a request's first byte when it has a connection: until then another limit counts."""
    trace = aiohttp.TraceConfig()

    async def start(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        clock, seconds = context.trace_request_ctx
        if seconds is not None:
            clock.reschedule(asyncio.get_running_loop().time() + seconds)

    trace.on_request_headers_sent.append(start)
    return trace


def _redirect(response: aiohttp.ClientResponse) -> str:
    """Return where a server sends us, and the address that would have been right."""
    try:
        to = response.url.join(URL(response.headers.get("Location", "")[:500])).with_user(None).with_query(None)
        return f"redirects to {to}: give {without_verb(to)} as the address"
    except ValueError:
        return "redirects to what is no address"


async def _closes(session: aiohttp.ClientSession) -> AsyncGenerator[None, None]:
    """Close a session when this generator is closed, which an event loop does with all of them before it ends."""
    try:
        yield
    finally:
        await session.close()
        await asyncio.sleep(0)  # the transports close in the next round of the loop


__all__ = ["Base", "Patient", "Wire"]
