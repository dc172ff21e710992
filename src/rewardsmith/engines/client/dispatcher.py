"""From a request to its reply: a slot at one of the addresses of a model, and retries with backoff.

An address has slots, one for each request in flight, and a pace. A request takes a slot at the least loaded address;
if there is none, it waits in order of arrival, retries first. A failed address cools down while others are used. An
address that refuses requests as too many (429) gets half the slots, and more again with each reply. Where even one slot
is too many, requests are spaced out in time.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rewardsmith.engines.client.http_client import Endpoint, HttpClient
from rewardsmith.engines.client.replies import RequestError, token_counts
from rewardsmith.engines.model_settings import ClientSettings
from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError, Usage
from rewardsmith.types import FailureKind

T = TypeVar("T")

MIN_COOLDOWN, MAX_COOLDOWN = 1.0, 30.0  # seconds for which a failed address is avoided: doubled each time
MAX_HOLD = 60.0  # seconds for which a server's Retry-After holds back requests that were not sent yet
GROWTH = 1 / 64  # share by which each reply raises the limit of an address that was overloaded: 44 replies double it
SPACING, MIN_LIMIT = 0.01, 0.01  # with a limit below 1, requests are `SPACING / limit` seconds apart: 1 s at most


@dataclass(frozen=True)
class ServerRequest(Generic[T]):
    """What is sent, and how the reply is parsed."""

    path: str  # below the address; with `root`, below the address without `/v1`
    payload: Callable[[], Mapping[str, Any]]  # returns the body; called for each attempt
    parse: Callable[[Any], T]  # from the JSON of a reply to a value; raises `RequestError`
    deadline: float  # seconds from the first attempt
    tokens: float = 0.0  # expected prompt and completion tokens
    root: bool = False
    # Called with a permanent error and the body that caused it; returns whether `payload` is different now.
    adjust: Callable[[RequestError, Mapping[str, Any]], bool] = lambda _error, _payload: False


@dataclass(frozen=True)
class ServerReply(Generic[T]):
    """The parsed reply, its tokens, the seconds since the first attempt, and the number of attempts."""

    value: T
    prompt_tokens: int
    tokens: int
    seconds: float = 0.0
    attempts: int = 1


class Dispatcher:
    """Sends the requests of one model to its endpoints, which may be replaced by another list at any time.

    `secrets` returns the API key and the other secrets in requests, or raises `UserError` if one is missing.
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
            self._pool = AddressPool(self.endpoints, self._settings)
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
        """Return the seconds before the next attempt, or raise; `others`: another address is healthy."""
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


@dataclass(eq=False)
class Address:
    """The slots and the pace of one server.

    Requests and tokens are spread evenly over the minute: each request delays the next one by its share.
    """

    endpoint: Endpoint
    limits: ClientSettings
    pool: AddressPool
    busy: int = 0
    adaptive: float = math.inf  # limit of the slots, after an overload
    next_request: float = 0.0
    next_tokens: float = 0.0
    avoid_until: float = 0.0
    _reduced_at: float = 0.0
    _failures: int = 0

    @property
    def slots(self) -> int:
        """Requests that may be in flight now."""
        return max(1, int(min(self.limits.concurrency, self.adaptive)))

    def request_interval(self) -> float:
        """Return the seconds between two requests."""
        spacing = SPACING / self.adaptive if self.adaptive < 1 else 0.0
        return max(spacing, 60 / (self.limits.requests_per_minute or math.inf))

    def token_interval(self, tokens: float) -> float:
        """Return the seconds that tokens take of the minute."""
        return 60 * tokens / (self.limits.tokens_per_minute or math.inf)

    def take(self, tokens: float, now: float) -> None:
        """Take a slot, and the share of the minute for the expected tokens."""
        self.busy += 1
        self.next_request = max(now, self.next_request) + self.request_interval()
        self.next_tokens = max(now, self.next_tokens) + self.token_interval(tokens)
        if self._failures and now >= self.avoid_until:
            self.cool_down(now)  # one request probes whether it is back; the others still avoid it

    def release(self, expected: float = 0.0, used: float | None = None) -> None:
        """Give a slot back; `used` tokens replace the expected ones, if they are known."""
        self.busy -= 1
        if used is not None:
            self.next_tokens += self.token_interval(used - expected)
        self.pool.serve()

    def cool_down(self, now: float) -> None:
        """Avoid it for a while, unless it is avoided already."""
        if now >= self.avoid_until:
            self.avoid_until = now + min(MAX_COOLDOWN, MIN_COOLDOWN * 2.0 ** min(self._failures, 10))
            self._failures += 1

    def end_cooldown(self) -> None:
        """Avoid it no longer: it replied."""
        self._failures, self.avoid_until = 0, 0.0

    def reduce(self, sent: float, retry_after: float | None, now: float) -> None:
        """Slow down: it refused a request, whose slot is still taken, as one too many."""
        if sent >= self._reduced_at:  # else it was under way at the last reduction, and does not count again
            self._reduced_at = now
            self.adaptive = max(MIN_LIMIT, min(self.adaptive, self.busy) / 2)
        # The other requests in flight were not refused, so that many are possible. Without any, the pace is too high.
        self.adaptive = min(self.adaptive, max(0.5, self.busy - 1.0))
        hold = max(self.request_interval(), min(retry_after or 0.0, MAX_HOLD))
        self.next_request = max(self.next_request, now + hold)

    def grow(self) -> None:
        """Raise the limit after a reply, if it was reduced."""
        self.adaptive *= 1 + GROWTH
        if self.adaptive >= self.limits.concurrency:
            self.adaptive = math.inf


@dataclass(eq=False)
class _SlotWaiter:
    tokens: float
    avoid: Address | None
    slot: asyncio.Future[Address] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class AddressPool:
    """The addresses of one model in one event loop, and the requests that wait for a slot."""

    def __init__(self, endpoints: Sequence[Endpoint], limits: ClientSettings) -> None:
        self.endpoints = endpoints
        self.addresses = [Address(endpoint, limits, self) for endpoint in endpoints]
        self._queues: tuple[deque[_SlotWaiter], deque[_SlotWaiter]] = deque(), deque()  # retries, and first attempts
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, tokens: float, *, retry: bool = False, avoid: Address | None = None) -> Address:
        """Take a slot at the least loaded address, as soon as one is free; `tokens` are the expected ones.

        A retry goes first, because its deadline is running, and takes a slot at the address to avoid only if no other
        one has one.
        """
        waiter = _SlotWaiter(tokens, avoid)
        self._queues[not retry].append(waiter)
        self.serve()
        try:
            return await waiter.slot
        except asyncio.CancelledError:
            if waiter.slot.done() and not waiter.slot.cancelled():
                waiter.slot.result().release(tokens, 0.0)
            raise

    def move_to(self, other: AddressPool) -> None:
        """Let the requests that wait here wait at other addresses."""
        for queue, target in zip(self._queues, other._queues, strict=True):
            target.extend(queue)
            queue.clear()
        other.serve()

    def usable(self) -> list[Address]:
        """Return the addresses that did not fail lately; all if all did."""
        now = _now()
        return [each for each in self.addresses if now >= each.avoid_until] or self.addresses

    def serve(self) -> None:
        """Give free slots to those that wait, and come back when the next slot is free by the clock."""
        for queue in self._queues:
            while queue:
                if queue[0].slot.done():  # it was cancelled
                    queue.popleft()
                    continue
                now = _now()
                ready = [
                    each
                    for each in self.usable()
                    if each.busy < each.slots and now >= max(each.next_request, each.next_tokens)
                ]
                if not ready:
                    self._set_timer(now)
                    return
                waiter = queue.popleft()
                best = min(ready, key=lambda each: (each is waiter.avoid, each.busy / each.slots))
                best.take(waiter.tokens, now)
                waiter.slot.set_result(best)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        usable = self.usable()
        times = [
            max(each.next_request, each.next_tokens, 0.0 if each in usable else each.avoid_until)
            for each in self.addresses
            if each.busy < each.slots
        ]
        when = min((time for time in times if time > now), default=None)
        self._timer = None if when is None else asyncio.get_running_loop().call_at(when, self.serve)


def _now() -> float:
    return asyncio.get_running_loop().time()
