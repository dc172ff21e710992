"""Slots, pace, cooldown and overload of addresses, with a clock that jumps to the next event."""

import asyncio
import contextlib
import functools
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rewardsmith.engines.client.dispatcher import MAX_COOLDOWN, MAX_HOLD, AddressPool
from rewardsmith.engines.model_settings import ClientSettings
from rewardsmith.http.http_client import Endpoint


class JumpingSelector(selectors.SelectSelector):
    waited = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.waited += timeout or 0.0
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = JumpingSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return 1000.0 + self.selector.waited


def jumping(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test with the clock that jumps."""

    @functools.wraps(test)
    def in_loop(**arguments: Any) -> None:
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            runner.run(test(**arguments))

    return in_loop


def now() -> float:
    return asyncio.get_running_loop().time()


def make_pool(concurrency: int, *urls: str, **limits: float) -> AddressPool:
    endpoints = [Endpoint.parse(url) for url in urls or ("http://a",)]
    return AddressPool(endpoints, ClientSettings(concurrency=concurrency, **limits))


async def hold(pool: AddressPool, seconds: float) -> float:
    """Take a slot for a while; return when it was taken."""
    taken = await pool.take()
    begun = now()
    await asyncio.sleep(seconds)
    taken.release()
    return begun


async def begins(*jobs: Coroutine[Any, Any, float]) -> list[float]:
    times = await asyncio.gather(*jobs)
    return [t - times[0] for t in times]


@jumping
async def test_slots_and_pace() -> None:
    pool = make_pool(3)
    assert await begins(*(hold(pool, 10.0) for _ in range(8))) == pytest.approx([0, 0, 0, 10, 10, 10, 20, 20])
    assert pool.addresses[0].busy == 0
    slow = make_pool(100, requests_per_minute=30)
    assert await begins(*(hold(slow, 0.0) for _ in range(7))) == pytest.approx([2.0 * i for i in range(7)])
    await asyncio.sleep(600)  # unused time is not saved up
    assert await begins(*(hold(slow, 0.0) for _ in range(3))) == pytest.approx([0, 2, 4])


@jumping
async def test_the_least_loaded_address_is_used() -> None:
    pool = make_pool(6, "http://one", "http://two")
    one, two = pool.addresses
    two.adaptive = 2.0
    taken = [await pool.take() for _ in range(8)]
    assert (taken.count(one), taken.count(two)) == (6, 2)
    waiter = asyncio.ensure_future(pool.take())
    await asyncio.sleep(0)
    one.release()
    assert await waiter is one
    one.release()
    two.release()
    assert await pool.take(avoid=one) is two


@jumping
async def test_retries_go_first_and_otherwise_the_order_is_that_of_arrival() -> None:
    pool = make_pool(1)
    held = await pool.take()
    order: list[str] = []

    async def wait(name: str) -> None:
        slot = await pool.take(retry=name.startswith("retry"))
        order.append(name)
        slot.release()

    tasks = [asyncio.ensure_future(wait(name)) for name in ("first", "second", "retry 1", "retry 2")]
    await asyncio.sleep(0)
    held.release()
    await asyncio.gather(*tasks)
    assert order == ["retry 1", "retry 2", "first", "second"]


@jumping
async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    pool = make_pool(1)
    held = await pool.take()
    waiters = [asyncio.ensure_future(pool.take()) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    held.release()  # goes to the second one, which is cancelled at the same moment
    waiters[1].cancel()
    last = await waiters[2]
    with contextlib.suppress(asyncio.CancelledError):
        await waiters[1]
    last.release()
    assert held.busy == 0


@jumping
async def test_a_failed_address_cools_down_is_probed_and_comes_back() -> None:
    pool = make_pool(50, "http://dead", "http://alive")
    dead, alive = pool.addresses

    async def sent_to_dead() -> int:
        taken = [await pool.take() for _ in range(20)]
        for each in taken:
            each.release()
        return taken.count(dead)

    dead.cool_down(now())
    assert await sent_to_dead() == 0
    cooldowns = []
    for _ in range(7):
        begun = now()
        while await sent_to_dead() == 0:
            await asyncio.sleep(0.5)
        cooldowns.append(now() - begun)  # one request probed it
        assert await sent_to_dead() == 0
        dead.cool_down(now())
    assert cooldowns == sorted(cooldowns)
    assert cooldowns[-1] == pytest.approx(MAX_COOLDOWN, abs=1)
    dead.end_cooldown()
    assert await sent_to_dead() > 0
    dead.cool_down(now())
    alive.cool_down(now())
    assert 0 < await sent_to_dead() < 20  # if all failed, all are used


class Overloaded:
    """A server that refuses more than so many requests at a time, or more than a token bucket holds."""

    def __init__(self, *, slots: float = math.inf, rate: float = math.inf, seconds: float, after: float | None = None):
        self.slots, self.rate, self.seconds, self.after = slots, rate, seconds, after
        self.tokens, self.filled, self.busy, self.refused = 20.0, now(), 0, 0

    def accepts(self) -> bool:
        self.tokens, self.filled = min(20.0, self.tokens + (now() - self.filled) * self.rate), now()
        if self.tokens < 1 or self.busy >= self.slots:
            self.refused += 1
            return False
        self.tokens -= self.rate < math.inf
        return True

    async def call(self, pool: AddressPool) -> None:
        retry = False
        while True:
            used = await pool.take(retry=retry)
            begun, retry = now(), True
            await asyncio.sleep(0.002)
            if self.accepts():
                self.busy += 1
                await asyncio.sleep(self.seconds)
                self.busy -= 1
                used.grow()
                used.release()
                return
            used.reduce(begun, self.after, now())
            used.release()


OVERLOADS: list[tuple[dict[str, float], float]] = [  # and the seconds that 800 requests take at best
    ({"rate": 20.0, "seconds": 0.002}, 39),
    ({"rate": 20.0, "seconds": 0.002, "after": 1.0}, 39),
    ({"rate": 20.0, "seconds": 1.0}, 40),
    ({"slots": 8, "seconds": 0.5}, 50),
    ({"slots": 8, "seconds": 0.5, "after": 1.0}, 50),
    ({"slots": 1, "seconds": 0.05}, 40),
    ({"seconds": 0.5}, 6.5),
]


@jumping
async def test_an_overloaded_address_is_used_about_as_much_as_it_can_bear() -> None:
    for server, best in OVERLOADS:
        used, overloaded = make_pool(64), Overloaded(**server)
        begun = now()
        await asyncio.gather(*(overloaded.call(used) for _ in range(800)))
        assert overloaded.refused <= (130 if len(server) > 1 else 0)  # of 64 that were sent at once
        assert now() - begun < 1.6 * best
        assert used.addresses[0].busy == 0


@jumping
async def test_the_full_concurrency_comes_back_after_an_overload() -> None:
    used, server = make_pool(64), Overloaded(slots=0, seconds=0.01)
    jobs = [asyncio.ensure_future(server.call(used)) for _ in range(600)]
    await asyncio.sleep(30)
    refused = server.refused
    assert refused < 64 + 8 + 30  # one a second in the end
    server.slots = math.inf
    await asyncio.gather(*jobs)
    begun = now()
    await asyncio.gather(*(server.call(used) for _ in range(640)))
    assert now() - begun < 1
    assert server.refused == refused


@jumping
async def test_retry_after_holds_all_requests_back_up_to_a_limit() -> None:
    pool = make_pool(4)
    for given, held in ((7.0, 7.0), (3600.0, MAX_HOLD)):
        slot = await pool.take()
        slot.reduce(now(), given, now())
        slot.release()
        begun = now()
        assert await hold(pool, 0.0) - begun == pytest.approx(held)
