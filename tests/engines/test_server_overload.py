"""Servers that refuse what is too much: all who ask them slow down, and none the less they are used."""

import asyncio
import math

import pytest

from rewardsmith.engines.client.addresses import LONGEST_HOLD, Address, Limits, take_place
from tests.engines.leaping import hold, joined, now, virtually


class Overloaded:
    """A server that refuses what is too much: more than so many at a time, or more than a bucket of tokens holds."""

    def __init__(self, *, places: float = math.inf, rate: float = math.inf, seconds: float, after: float | None = None):
        self.places, self.rate, self.seconds, self.after = places, rate, seconds, after
        self.tokens, self.filled, self.busy, self.refused = 20.0, now(), 0, 0

    def takes(self) -> bool:
        self.tokens, self.filled = min(20.0, self.tokens + (now() - self.filled) * self.rate), now()
        if self.tokens < 1 or self.busy >= self.places:
            self.refused += 1
            return False
        self.tokens -= self.rate < math.inf
        return True

    async def chat(self, address: Address) -> None:
        again = False
        while True:
            await take_place([address], 0, again=again)
            begun, again = now(), True
            await asyncio.sleep(0.002)
            if self.takes():
                self.busy += 1
                await asyncio.sleep(self.seconds)
                self.busy -= 1
                address.eased()
                address.release()
                return
            address.overloaded(begun, self.after)
            address.release()


@pytest.mark.parametrize(
    ("how", "ideal"),
    [
        ({"rate": 20.0, "seconds": 0.002}, 39),
        ({"rate": 20.0, "seconds": 0.002, "after": 1.0}, 39),
        ({"rate": 20.0, "seconds": 1.0}, 40),
        ({"places": 8, "seconds": 0.5}, 50),
        ({"places": 8, "seconds": 0.5, "after": 1.0}, 50),
        ({"places": 1, "seconds": 0.05}, 40),
        ({"seconds": 0.5}, 6.5),
    ],
)
def test_an_overloaded_address_is_used_about_as_much_as_it_can_bear(how: dict[str, float], ideal: float) -> None:
    async def main() -> None:
        address, server = joined(Limits(64)), Overloaded(**how)
        begun = now()
        await asyncio.gather(*(server.chat(address) for _ in range(800)))
        assert server.refused <= (130 if len(how) > 1 else 0)  # of 64 that were sent before anything was known
        assert now() - begun < 1.6 * ideal
        assert address.load == 0

    virtually(main)


def test_an_overload_that_is_over_is_forgotten() -> None:
    async def main() -> None:
        address = joined(Limits(64))
        server = Overloaded(places=0, seconds=0.01)
        jobs = [asyncio.ensure_future(server.chat(address)) for _ in range(600)]
        await asyncio.sleep(30)
        refused = server.refused
        assert refused < 64 + 8 + 30  # one a second in the end
        server.places = math.inf
        await asyncio.gather(*jobs)
        begun = now()
        await asyncio.gather(*(server.chat(address) for _ in range(640)))
        assert now() - begun < 1
        assert server.refused == refused

    virtually(main)


def test_who_asks_to_be_left_alone_is_left_alone_by_all_but_not_for_ever() -> None:
    async def main() -> None:
        address = joined(Limits(4))
        await take_place([address], 0)
        address.overloaded(now(), 7.0)
        address.release()
        begun = now()
        assert await hold([address], 0.0) - begun == pytest.approx(7)
        await take_place([address], 0)
        address.overloaded(now(), 3600.0)
        address.release()
        begun = now()
        assert await hold([address], 0.0) - begun == pytest.approx(LONGEST_HOLD)

    virtually(main)
