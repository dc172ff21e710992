"""From a request to its reply: a slot at one of the addresses, and retries with backoff."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rewardsmith.engines.client.addresses import Address, AddressPool, RateLimits
from rewardsmith.engines.client.http_client import Endpoint, HttpClient
from rewardsmith.engines.client.replies import RequestError, token_counts
from rewardsmith.engines.model_settings import ClientSettings
from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError, Usage
from rewardsmith.types import FailureKind

T = TypeVar("T")


@dataclass(frozen=True)
class ServerRequest(Generic[T]):
    """What is sent, and how the reply is parsed.

    Attributes:
        path: below the address; with `root`, below the address without `/v1`.
        payload: returns the body; called for each attempt.
        parse: from the JSON of a reply to a value; raises `RequestError`.
        deadline: seconds from the first attempt.
        tokens: expected prompt and completion tokens.
        adjust: called with a permanent error and the body that caused it; returns whether `payload` is different now.
    """

    path: str
    payload: Callable[[], Mapping[str, Any]]
    parse: Callable[[Any], T]
    deadline: float
    tokens: float = 0.0
    root: bool = False
    adjust: Callable[[RequestError, Mapping[str, Any]], bool] = lambda _error, _payload: False


@dataclass(frozen=True)
class ServerReply(Generic[T]):
    """The parsed reply, its tokens, the seconds since the first attempt, and the number of attempts."""

    value: T
    prompt_tokens: int
    tokens: int
    seconds: float = 0.0
    attempts: int = 1


class _Attempts(Generic[T]):
    """The attempts of one request so far, and the time that is left."""

    def __init__(self, request: ServerRequest[T], settings: ClientSettings, moves: int) -> None:
        self.request = request
        self.sent = 0
        self.begun = 0.0
        self.until: float | None = None
        self.address: Address | None = None
        self.payload: Mapping[str, Any] = {}
        self._settings = settings
        self._retries = 0
        self._moves = moves
        self._adjusted = False
        self._last: RequestError | None = None

    def start(self, address: Address) -> None:
        """A slot was taken; the deadline runs from the first one."""
        self.address = address
        self.sent += 1
        if self.until is None:
            self.begun = _now()
            self.until = self.begun + self.request.deadline

    def pause(self, error: RequestError, others: bool) -> float:
        """Return the seconds before the next attempt, or raise `ModelCallError` if there is none.

        Args:
            error: of the last attempt.
            others: whether another address is healthy.
        """
        assert self.until is not None
        left = self.until - _now()
        if left <= 0:
            raise self.timed_out(error)
        self._last = error
        after = error.retry_after
        if error.overloaded and (others or after is None or after < left):
            return 0.0  # the address itself slows all requests down; this does not count as a retry
        if (error.kind == "unreachable" or after is not None) and others and self._moves > 0:
            self._moves -= 1
            return 0.0
        if not error.retryable and not self._adjusted and self.request.adjust(error, self.payload):
            self._adjusted = True
            return 0.0
        if not error.retryable or self._retries >= self._settings.retries:
            raise self.failure(error.kind, str(error))
        backoff = min(self._settings.max_backoff, self._settings.backoff * 2.0 ** min(self._retries, 60))
        self._retries += 1
        jitter = random.uniform(0, backoff)
        if after is not None and after < left:
            return min(after + jitter, (after + left) / 2)
        if after is not None or jitter >= left:
            wait = "" if after is None else f"; Retry-After is {after:.0f} s"
            raise self.failure(error.kind, f"{error}{wait}; {left:.1f} s of {self.request.deadline:g} s are left")
        return jitter

    def timed_out(self, error: RequestError | None = None) -> ModelCallError:
        """Return the failure of a request whose deadline has passed, with the last errors."""
        last = self._last
        error = error or last or RequestError("timeout", "no address had a free slot")
        before = f"; before that: {last}" if last is not None and last is not error else ""
        kind = "unreachable" if last is not None and last.kind == "unreachable" else error.kind
        return self.failure(kind, f"no reply within {self.request.deadline:g} s: {error}{before}")

    def failure(self, kind: FailureKind, detail: str) -> ModelCallError:
        """Return the failure of the request."""
        attempts = f" ({self.sent} attempts)" if self.sent > 1 else ""
        return ModelCallError(kind, f"{detail}{attempts}", attempts=max(1, self.sent))


class Dispatcher:
    """Sends the requests of one model to its addresses.

    Args:
        settings: of the client.
        endpoints: of the servers; replaced by another list at any time.
        secrets: returns the API key and the other secrets in requests; raises `UserError` if one is missing.
        usage: where everything is counted.
    """

    def __init__(
        self,
        settings: ClientSettings,
        endpoints: Sequence[Endpoint],
        secrets: Callable[[], tuple[str | None, list[str]]],
        usage: Usage,
    ) -> None:
        self._settings = settings
        self.endpoints = endpoints
        self._secrets = secrets
        self._usage = usage
        self._http: HttpClient | None = None
        self._pool: AddressPool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def http(self) -> HttpClient:
        """Return the connections of the running event loop."""
        if self._http is None or not self._http.usable:
            self._http = HttpClient(self._settings.connect_timeout, *self._secrets())
            await self._http.open()
        return self._http

    def pool(self) -> AddressPool:
        """Return the addresses of the endpoints in the running event loop."""
        loop, old = asyncio.get_running_loop(), self._pool
        if old is None or self._loop is not loop or old.endpoints is not self.endpoints:
            settings = self._settings
            limits = RateLimits(settings.concurrency, settings.requests_per_minute, settings.tokens_per_minute)
            self._pool = AddressPool(self.endpoints, limits)
            if old is not None and self._loop is loop:
                old.move_to(self._pool)
            self._loop = loop
        assert self._pool is not None
        return self._pool

    async def close(self) -> None:
        """Close the connections; it may be used again."""
        http, self._http, self._pool = self._http, None, None
        if http is not None:
            await http.close()

    async def call(self, request: ServerRequest[T]) -> ServerReply[T]:
        """Send until there is a reply that can be parsed; raise `ModelCallError` if there is none."""
        try:
            await self.http()  # a missing key is reported before a slot is waited for
            return await self._retry(_Attempts(request, self._settings, moves=len(self.endpoints)))
        except ModelCallError:
            self._usage.failed += 1
            raise
        except UserError as error:
            self._usage.failed += 1
            raise ModelCallError("refused", str(error)) from None

    async def _retry(self, attempts: _Attempts[T]) -> ServerReply[T]:
        while True:
            try:
                async with asyncio.timeout_at(attempts.until):
                    address = await self.pool().take(
                        attempts.request.tokens, retry=attempts.sent > 0, avoid=attempts.address
                    )
            except TimeoutError:
                raise attempts.timed_out() from None
            attempts.start(address)
            self._usage.retries += attempts.sent > 1
            try:
                return await self._attempt(attempts, address)
            except RequestError as error:
                now = _now()
                others = any(now >= each.avoid_until for each in self.pool().addresses if each is not address)
                await asyncio.sleep(attempts.pause(error, others))

    async def _attempt(self, attempts: _Attempts[T], address: Address) -> ServerReply[T]:
        """Send once, and give the slot back in any case."""
        endpoint, request, usage, settings = address.endpoint, attempts.request, self._usage, self._settings
        assert attempts.until is not None
        begun = _now()
        used: float | None = None
        try:
            http = await self.http()  # it may have been closed meanwhile
            attempts.payload = request.payload()
            url = endpoint.at(request.path, root=request.root)
            body = await http.send(
                endpoint, url, attempts.payload, attempts.until, first_token=settings.first_token_timeout
            )
            prompt_tokens, tokens = token_counts(body)
            used = prompt_tokens + tokens or None
            usage.prompt_tokens += prompt_tokens
            usage.tokens += tokens
            usage.cost += (prompt_tokens * settings.price_in + tokens * settings.price_out) / 1e6
            value = request.parse(body)
        except RequestError as error:
            where = "" if endpoint.shown in str(error) else f"{endpoint.shown}: "
            error.detail = http.mask.text(f"{where}{error}")
            if error.overloaded:
                address.reduce(begun, error.retry_after, _now())
            if error.unreachable:
                address.cool_down(_now())
            elif error.kind in ("refused", "unparsable"):
                address.end_cooldown()
            if error.kind != "timeout" and used is None:
                used = 0.0  # the server did no work
            raise
        else:
            address.end_cooldown()
            address.grow()
            usage.calls += 1
            return ServerReply(value, prompt_tokens, tokens, _now() - attempts.begun, attempts.sent)
        finally:
            usage.seconds += _now() - begun
            address.release(request.tokens, used)


def _now() -> float:
    return asyncio.get_running_loop().time()
