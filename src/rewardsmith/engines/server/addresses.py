"""The addresses of servers: who may send to which, and when.

An address has places, one for each request in flight, and a pace. Both belong to the address, not to the model that
asks: all models of a process that talk to one address share them. Whoever finds no place waits at all addresses that
would do, and goes where the first place becomes free.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

FIRST_REST, LONGEST_REST = 1.0, 30.0
"""Seconds for which an address that seems dead is avoided: doubled each time, up to the second."""


@dataclass(frozen=True)
class Limits:
    """What one model allows itself at an address; of several models the smallest counts.

    Attributes:
        concurrency: requests in flight.
        requests: a minute.
        tokens: a minute.
    """

    concurrency: int
    requests: float | None = None
    tokens: float | None = None


@dataclass(eq=False)
class _Waiter:
    """Somebody who waits for a place.

    Attributes:
        place: becomes the address at which one was taken.
        tokens: expected to be read and written.
        addresses: at which this one waits.
    """

    place: asyncio.Future[Address]
    tokens: float
    addresses: list[Address]


class Address:
    """The places and the pace of one server, within one event loop.

    Requests and tokens are spread evenly over the minute: each request pushes the time of the next one back by its
    share, so there is never a burst.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._limits: dict[object, Limits] = {}
        self._busy = 0
        self._next_request = self._next_tokens = 0.0
        self._waiting: OrderedDict[_Waiter, None] = OrderedDict()
        self._alarm: asyncio.TimerHandle | None = None
        self._rests = 0
        self._rests_until = 0.0

    # Who uses it.

    def join(self, owner: object, limits: Limits) -> None:
        """Count a model's limits from now on."""
        self._limits[owner] = limits

    def leave(self, owner: object) -> bool:
        """Forget a model; return whether there is no other. Those who wait then are sent elsewhere."""
        self._limits.pop(owner, None)
        if self._limits:
            self._hand_on()
            return False
        while self._waiting:
            self._give(next(iter(self._waiting)))
        return True

    @property
    def _places(self) -> int:
        return min((each.concurrency for each in self._limits.values()), default=1)

    def _interval(self, tokens: float) -> tuple[float, float]:
        """Return the seconds that a request, and its tokens, take of the minute."""
        requests = min((each.requests for each in self._limits.values() if each.requests), default=None)
        allowed = min((each.tokens for each in self._limits.values() if each.tokens), default=None)
        return 60 / requests if requests else 0.0, 60 * tokens / allowed if allowed else 0.0

    # Places.

    @property
    def load(self) -> float:
        """The share of its places that is taken."""
        return self._busy / self._places

    def free(self, now: float) -> bool:
        """Return whether a request may be sent now."""
        return self._busy < self._places and now >= max(self._next_request, self._next_tokens)

    def take(self, tokens: float) -> None:
        """Take a place, and the share of the minute that is expected to be needed."""
        now = _now()
        each, all_tokens = self._interval(tokens)
        self._busy += 1
        self._next_request = max(now, self._next_request) + each
        self._next_tokens = max(now, self._next_tokens) + all_tokens
        if self._rests and not self.avoided(now):
            self._rest()  # one request goes to see whether it is back; the others avoid it until that is known

    def release(self, expected: float = 0.0, used: float | None = None) -> None:
        """Give a place back.

        Args:
            expected: tokens for which it was taken.
            used: tokens that it took; None if that is not known, and the expected ones stay counted.
        """
        self._busy -= 1
        if used is not None:
            self._next_tokens += self._interval(used - expected)[1]
        self._hand_on()

    def queue(self, waiter: _Waiter, *, first: bool) -> None:
        """Let somebody wait here, who is woken when a place was taken for them."""
        self._waiting[waiter] = None
        if first:
            self._waiting.move_to_end(waiter, last=False)
        self._set_alarm()

    def unqueue(self, waiter: _Waiter) -> None:
        """Forget somebody who waited."""
        self._waiting.pop(waiter, None)

    def _hand_on(self) -> None:
        """Give free places to those who wait; while it is avoided, only to those who have no other address."""
        now = _now()
        while self.free(now):
            avoided = self.avoided(now)
            able = (each for each in self._waiting if not avoided or all(a.avoided(now) for a in each.addresses))
            waiter = next(able, None)
            if waiter is None:
                break
            self._give(waiter)
        self._set_alarm()

    def _give(self, waiter: _Waiter) -> None:
        del self._waiting[waiter]
        if not waiter.place.done():
            self.take(waiter.tokens)
            waiter.place.set_result(self)

    def _set_alarm(self) -> None:
        """Come back when the pace or the rest allows the next request; a free place comes back by itself."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        when = max(self._next_request, self._next_tokens, self._rests_until)
        if self._waiting and self._busy < self._places and when > _now():
            self._alarm = asyncio.get_running_loop().call_at(when, self._hand_on)

    # Health.

    def avoided(self, now: float) -> bool:
        """Return whether others should be asked instead."""
        return now < self._rests_until

    def failed(self) -> None:
        """Avoid it for a while."""
        if not self.avoided(_now()):
            self._rest()

    def answered(self) -> None:
        """Avoid it no longer."""
        if self._rests:
            self._rests, self._rests_until = 0, 0.0
            self._hand_on()

    def _rest(self) -> None:
        self._rests_until = _now() + min(LONGEST_REST, FIRST_REST * 2.0 ** min(self._rests, 10))
        self._rests += 1


_KNOWN: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Address]] = WeakKeyDictionary()


def address_of(url: str) -> Address:
    """Return the address of a URL in the running event loop: the same one for everybody who asks."""
    for loop in [loop for loop in _KNOWN if loop.is_closed()]:
        del _KNOWN[loop]
    return _KNOWN.setdefault(asyncio.get_running_loop(), {}).setdefault(url, Address(url))


def forget(address: Address) -> None:
    """Drop an address that nobody uses any more."""
    known = _KNOWN.get(asyncio.get_running_loop(), {})
    if known.get(address.url) is address:
        del known[address.url]


async def take_place(
    addresses: Iterable[Address], tokens: float, *, again: bool = False, but: Address | None = None
) -> Address:
    """Return the address with the least load, once it has a place, which is taken.

    Args:
        addresses: those that would do.
        tokens: expected to be read and written.
        again: whether this request was sent before; it goes first, because its time is running.
        but: go there only if no other has a place.
    """
    addresses = list(addresses)
    now = _now()
    choice = [each for each in addresses if not each.avoided(now)] or addresses
    ready = [each for each in choice if each.free(now)]
    if not ready:
        return await _wait(addresses, tokens, again)
    best = min(ready, key=lambda each: (each is but, each.load))
    best.take(tokens)
    return best


async def _wait(addresses: list[Address], tokens: float, again: bool) -> Address:
    waiter = _Waiter(asyncio.get_running_loop().create_future(), tokens, addresses)
    for each in addresses:
        each.queue(waiter, first=again)
    try:
        return await waiter.place
    except asyncio.CancelledError:
        if waiter.place.done() and not waiter.place.cancelled():
            waiter.place.result().release(tokens, 0.0)
        raise
    finally:
        for each in addresses:
            each.unqueue(waiter)


def _now() -> float:
    return asyncio.get_running_loop().time()


__all__ = ["Address", "Limits", "address_of", "forget", "take_place"]
