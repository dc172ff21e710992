"""The addresses of servers: who may send to which, and when.

An address has places, one for each request in flight, and a pace. Both belong to the address, not to the model that
asks: all models of a process that talk to one address share them. Whoever finds no place waits at all addresses that
would do, and goes where the first place becomes free, in the order in which they came; who was sent before goes first.

An address that refuses requests because they are too many has fewer places from then on, and more again with every
answer. Where one place is too many, because answers come at once, the requests are spread in time.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from weakref import WeakKeyDictionary

FIRST_REST, LONGEST_REST = 1.0, 30.0
"""Seconds for which an address that seems dead is avoided: doubled each time, up to the second."""

LONGEST_HOLD = 60.0
"""Seconds for which a server may hold back those who were not sent yet, and whose time does not run."""

GROWTH = 1 / 64
"""Share by which each answer makes the room of an address that was overloaded larger: 44 answers double it."""

STEP, LEAST_ROOM = 0.01, 0.01
"""With a room below 1, requests are `STEP / room` seconds apart; it is never less than the second, which is 1 s."""


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

    @classmethod
    def smallest(cls, many: Iterable[Limits]) -> Limits:
        """Return what all of them allow."""
        many = list(many)
        return cls(
            min((each.concurrency for each in many), default=1),
            min((each.requests for each in many if each.requests), default=None),
            min((each.tokens for each in many if each.tokens), default=None),
        )


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
        self._limit = Limits.smallest([])
        self._busy = 0
        self._next_request = self._next_tokens = 0.0
        # Those who were sent before, and those who were not.
        self._waiting: tuple[OrderedDict[_Waiter, None], OrderedDict[_Waiter, None]] = OrderedDict(), OrderedDict()
        self._room = math.inf
        self._narrowed = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._rests = 0
        self._rests_until = 0.0

    # Who uses it.

    def join(self, owner: object, limits: Limits) -> None:
        """Count a model's limits from now on."""
        self._limits[owner] = limits
        self._limit = Limits.smallest(self._limits.values())

    def leave(self, owner: object) -> bool:
        """Forget a model; return whether there is no other. Those who wait then are sent elsewhere."""
        self._limits.pop(owner, None)
        self._limit = Limits.smallest(self._limits.values())
        if self._limits:
            self.hand_on()
            return False
        for waiter in list(self._in_line()):
            self._give(waiter)
        return True

    @property
    def _places(self) -> int:
        return max(1, int(min(self._limit.concurrency, self._room)))

    def _interval(self, tokens: float) -> tuple[float, float]:
        """Return the seconds that a request, and its tokens, take of the minute."""
        limit = self._limit
        apart = STEP / self._room if self._room < 1 else 0.0
        each = max(apart, 60 / limit.requests) if limit.requests else apart
        return each, 60 * tokens / limit.tokens if limit.tokens else 0.0

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
        self.hand_on()

    def queue(self, waiter: _Waiter, *, again: bool) -> None:
        """Let somebody wait here, who is woken when a place was taken for them."""
        self._waiting[not again][waiter] = None
        able = self._serves(waiter, _now())
        if able or self._alarm is None:
            self._set_alarm(able)

    def unqueue(self, waiter: _Waiter) -> None:
        """Forget somebody who waited."""
        for line in self._waiting:
            line.pop(waiter, None)

    def _in_line(self) -> Iterator[_Waiter]:
        return chain(*self._waiting)

    def _serves(self, waiter: _Waiter, now: float) -> bool:
        """Return whether somebody may be sent here: while it is avoided, only who has no other address."""
        return not self.avoided(now) or all(each.avoided(now) for each in waiter.addresses)

    def hand_on(self) -> None:
        """Give free places to those who wait."""
        while True:
            now = _now()  # each time: who takes a place moves the time of the next one, if only to now
            waiter = next((each for each in self._in_line() if self._serves(each, now)), None)
            if waiter is None or not self.free(now):
                break
            self._give(waiter)
        self._set_alarm(waiter is not None)

    def _give(self, waiter: _Waiter) -> None:
        self.unqueue(waiter)
        if not waiter.place.done():
            self.take(waiter.tokens)
            waiter.place.set_result(self)

    def _set_alarm(self, able: bool) -> None:
        """Come back when the pace allows the next request; a free place comes back by itself.

        Args:
            able: whether somebody waits who may be sent here now. If not, they may when the rest is over.
        """
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        when = max(self._next_request, self._next_tokens, 0.0 if able else self._rests_until)
        if any(self._waiting) and self._busy < self._places and when > _now():
            self._alarm = asyncio.get_running_loop().call_at(when, self.hand_on)

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
            self.hand_on()

    def overloaded(self, sent: float, after: float | None) -> None:
        """Slow down: it refused a request, whose place is still taken, because there are too many.

        Args:
            sent: when the request was sent. Those that were on their way when another was refused are no news.
            after: seconds that it wants to be left alone.
        """
        now = _now()
        if sent >= self._narrowed:
            self._narrowed = now
            self._room = max(LEAST_ROOM, min(self._room, self._busy) / 2)
        # What is in flight beside it was not refused: that much it can do. If nothing is, the pace is too high.
        self._room = min(self._room, max(0.5, self._busy - 1.0))
        self._next_request = max(
            self._next_request, now + self._interval(0.0)[0], now + min(after or 0.0, LONGEST_HOLD)
        )

    def eased(self) -> None:
        """Use a little more of it again: it did its work."""
        if self._room < math.inf:
            self._room *= 1 + GROWTH
            if self._room >= self._limit.concurrency:
                self._room = math.inf

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
    for each in choice:
        if each.free(now):
            each.hand_on()  # nobody overtakes those who wait
    ready = [each for each in choice if each.free(now)]
    if not ready:
        return await _wait(addresses, tokens, again)
    best = min(ready, key=lambda each: (each is but, each.load))
    best.take(tokens)
    return best


async def _wait(addresses: list[Address], tokens: float, again: bool) -> Address:
    waiter = _Waiter(asyncio.get_running_loop().create_future(), tokens, addresses)
    for each in addresses:
        each.queue(waiter, again=again)
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
