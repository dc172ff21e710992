"""A clock that leaps, so that hours of waiting take no time, and addresses that are waited for by it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from rewardsmith.engines.client.addresses import Address, Limits, address_of, take_place


class _Leaping(selectors.SelectSelector):
    """A selector that does not wait: it tells the clock how long it would have waited."""

    waited = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.waited += timeout or 0.0
        return super().select(0)


class _Virtual(asyncio.SelectorEventLoop):
    """An event loop in which nobody waits: its clock leaps to the next thing that happens."""

    def __init__(self) -> None:
        self.selector = _Leaping()
        super().__init__(self.selector)

    def time(self) -> float:
        return 1000.0 + self.selector.waited


def virtually(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=_Virtual) as runner:
        runner.run(main())


def now() -> float:
    return asyncio.get_running_loop().time()


def joined(*limits: Limits, url: str = "http://a") -> Address:
    address = address_of(url)
    for each in limits:
        address.join(object(), each)
    return address


async def hold(addresses: list[Address], seconds: float, tokens: float = 0.0, used: float | None = None) -> float:
    """Take a place for a while; return when it was taken."""
    address = await take_place(addresses, tokens)
    begun = now()
    await asyncio.sleep(seconds)
    address.release(tokens, used)
    return begun
