"""From a request to its reply: a slot at one of the addresses of a model, and retries with backoff.

An address has slots, one for each request in flight, and a pace. A request takes a slot at the least loaded address;
if there is none, it waits in order of arrival, retries first. A failed address cools down while others are used. An
address that refuses requests as too many (429) gets half the slots, and more again with each reply. Where even one slot
is too many, requests are spaced out in time.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rewardsmith.engines.client.replies import token_counts
from rewardsmith.engines.model_settings import ClientSettings
from rewardsmith.http.http_client import Endpoint, HttpClient
from rewardsmith.http.request_errors import RequestError, pause_before_retry
from rewardsmith.llm import ModelCallError, Usage
from rewardsmith.types import FailureKind

T = TypeVar("T")

MIN_COOLDOWN, MAX_COOLDOWN = 1.0, 30.0  # seconds for which a failed address is avoided: doubled each time
MAX_HOLD = 60.0  # seconds for which a server's Retry-After holds back requests that were not sent yet
GROWTH = 1 / 64  # share by which each reply raises the limit of an address that was overloaded: 44 replies double it
SPACING, MIN_LIMIT = 0.01, 0.01  # with a limit below 1, requests are `SPACING / limit` seconds apart: 1 s at most


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

    async def http(self) -> HttpClient:
        """Return the connections of the running event loop."""
        if self._http is None or not self._http.usable:
            self._http, self._pool = HttpClient(self._settings.connect_timeout, *self._secrets()), None
            await self._http.open()
        return self._http

    def pool(self) -> AddressPool:
        """Return the addresses of the endpoints; `http` was called in this event loop."""
        if self._pool is None or self._pool.endpoints is not self.endpoints:
            self._pool = AddressPool(self.endpoints, self._settings)
        return self._pool

    async def close(self) -> None:
        """Close the connections; it may be used again."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def call(
        self,
        path: str,
        payload: Mapping[str, Any],
        parse: Callable[[Any], T],
        *,
        deadline: float,
        root: bool = False,
    ) -> ServerReply[T]:
        """Send until there is a reply that can be parsed; raise `ModelCallError` if there is none.

        `deadline` is in seconds from the first attempt: waiting for its slot does not count. With `root`, the path is
        below the address without `/v1`.
        """
        await self.http()  # a missing key is reported before a slot is waited for
        settings, address, last = self._settings, None, None
        begun, until = 0.0, None
        attempts = retries = 0
        moves = len(self.endpoints)

        def failure(kind: FailureKind, detail: str) -> ModelCallError:
            return ModelCallError(kind, f"{detail} ({attempts} attempts)" if attempts > 1 else detail, attempts)

        while True:
            try:
                async with asyncio.timeout_at(until):
                    address = await self.pool().take(retry=attempts > 0, avoid=address)
            except TimeoutError:  # not before the first attempt
                assert last is not None
                raise failure(last.kind, f"no reply within {deadline:g} s: {last}") from None
            attempts += 1
            self._usage.retries += attempts > 1
            if until is None:
                begun = _now()
                until = begun + deadline
            try:
                value, read, written = await self._attempt(address, path, payload, parse, until, root)
                return ServerReply(value, read, written, _now() - begun, attempts)
            except RequestError as error:
                left, after = until - _now(), error.retry_after or 0.0
                if left <= 0:
                    before = "" if last is None else f"; before that: {last}"
                    kind = "unreachable" if last is not None and last.kind == "unreachable" else error.kind
                    raise failure(kind, f"no reply within {deadline:g} s: {error}{before}") from None
                last = error
                others = any(_now() >= each.avoid_until for each in self.pool().addresses if each is not address)
                if error.overloaded and (others or after < left):
                    continue  # the address itself slows all requests down; this does not count as a retry
                if (error.kind == "unreachable" or error.retry_after is not None) and others and moves > 0:
                    moves -= 1
                    continue
                limits = {"backoff": settings.backoff, "max_backoff": settings.max_backoff}
                pause = pause_before_retry(retries, after, left, **limits)
                if not error.retryable or retries >= settings.retries or pause >= left:
                    wait = f"; Retry-After is {after:.0f} s, and {left:.0f} s are left" if after >= left else ""
                    raise failure(error.kind, f"{error}{wait}") from None
                retries += 1
            await asyncio.sleep(pause)

    async def _attempt(
        self,
        address: Address,
        path: str,
        payload: Mapping[str, Any],
        parse: Callable[[Any], T],
        until: float,
        root: bool,
    ) -> tuple[T, int, int]:
        """Send once, and give the slot back in any case; return the reply with its prompt and completion tokens."""
        endpoint, usage, settings = address.endpoint, self._usage, self._settings
        begun = _now()
        read = written = 0

        def count_and_parse(body: Any) -> T:
            nonlocal read, written
            read, written = token_counts(body)
            usage.prompt_tokens += read
            usage.tokens += written
            usage.cost += (read * settings.price_in + written * settings.price_out) / 1e6
            return parse(body)

        try:
            http = await self.http()  # it may have been closed meanwhile
            url = endpoint.at(path, root=root)
            value = await http.send(endpoint, url, payload, count_and_parse, until, timeout=settings.timeout)
        except RequestError as error:
            if error.overloaded:
                address.reduce(begun, error.retry_after, _now())
            if error.unreachable:
                address.cool_down(_now())
            elif error.kind in ("refused", "unparsable"):
                address.end_cooldown()
            raise
        else:
            address.end_cooldown()
            address.grow()
            usage.calls += 1
            return value, read, written
        finally:
            usage.seconds += _now() - begun
            address.release()


@dataclass(eq=False)
class Address:
    """The slots and the pace of one server; `requests_per_minute` are spread evenly over the minute."""

    endpoint: Endpoint
    limits: ClientSettings
    pool: AddressPool
    busy: int = 0
    adaptive: float = math.inf  # limit of the slots, after an overload
    next_request: float = 0.0
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

    def take(self, now: float) -> None:
        """Take a slot, and a share of the minute."""
        self.busy += 1
        self.next_request = max(now, self.next_request) + self.request_interval()
        if self._failures and now >= self.avoid_until:
            self.cool_down(now)  # one request probes whether it is back; the others still avoid it

    def release(self) -> None:
        """Give a slot back."""
        self.busy -= 1
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
    avoid: Address | None
    slot: asyncio.Future[Address] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class AddressPool:
    """The addresses of one model in one event loop, and the requests that wait for a slot."""

    def __init__(self, endpoints: Sequence[Endpoint], limits: ClientSettings) -> None:
        self.endpoints = endpoints
        self.addresses = [Address(endpoint, limits, self) for endpoint in endpoints]
        self._queues: tuple[deque[_SlotWaiter], deque[_SlotWaiter]] = deque(), deque()  # retries, and first attempts
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, *, retry: bool = False, avoid: Address | None = None) -> Address:
        """Take a slot at the least loaded address, as soon as one is free.

        A retry goes first, because its deadline is running, and takes a slot at the address to avoid only if no other
        one has one.
        """
        waiter = _SlotWaiter(avoid)
        self._queues[not retry].append(waiter)
        self.serve()
        try:
            return await waiter.slot
        except asyncio.CancelledError:
            if waiter.slot.done() and not waiter.slot.cancelled():
                waiter.slot.result().release()
            raise

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
                ready = [each for each in self.usable() if each.busy < each.slots and now >= each.next_request]
                if not ready:
                    self._set_timer(now)
                    return
                waiter = queue.popleft()
                best = min(ready, key=lambda each: (each is waiter.avoid, each.busy / each.slots))
                best.take(now)
                waiter.slot.set_result(best)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        usable = self.usable()
        times = [
            max(each.next_request, 0.0 if each in usable else each.avoid_until)
            for each in self.addresses
            if each.busy < each.slots
        ]
        when = min((time for time in times if time > now), default=None)
        self._timer = None if when is None else asyncio.get_running_loop().call_at(when, self.serve)


def _now() -> float:
    return asyncio.get_running_loop().time()
