"""The addresses of one model's servers: which request may be sent where, and when.

An address has slots, one for each request in flight, and a pace. A request takes a slot at the least loaded address;
if there is none, it waits in order of arrival, retries first. A failed address cools down while others are used.

An address that refuses requests as too many (429) gets half the slots, and more again with each reply. Where even one
slot is too many, requests are spaced out in time.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rewardsmith.engines.client.http_client import Endpoint

MIN_COOLDOWN, MAX_COOLDOWN = 1.0, 30.0
"""Seconds for which a failed address is avoided: doubled each time, up to the second."""

MAX_HOLD = 60.0
"""Seconds for which a server's Retry-After holds back requests that were not sent yet."""

GROWTH = 1 / 64
"""Share by which each reply raises the limit of an address that was overloaded: 44 replies double it."""

SPACING, MIN_LIMIT = 0.01, 0.01
"""With a limit below 1, requests are `SPACING / limit` seconds apart: 1 s at most."""


@dataclass(frozen=True)
class RateLimits:
    """Limits of each address: requests in flight, requests a minute, tokens a minute."""

    concurrency: int
    requests: float | None = None
    tokens: float | None = None


@dataclass(eq=False)
class Address:
    """The slots and the pace of one server.

    Requests and tokens are spread evenly over the minute: each request delays the next one by its share.
    """

    endpoint: Endpoint
    limits: RateLimits
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
        return max(spacing, 60 / self.limits.requests) if self.limits.requests else spacing

    def token_interval(self, tokens: float) -> float:
        """Return the seconds that tokens take of the minute."""
        return 60 * tokens / self.limits.tokens if self.limits.tokens else 0.0

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

    def __init__(self, endpoints: Sequence[Endpoint], limits: RateLimits) -> None:
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
