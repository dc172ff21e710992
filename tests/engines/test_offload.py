"""Models that share a device: one party awake at a time, nobody starves, nothing is left awake by accident."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.engines.offload import DeviceScheduler
from rewardsmith.llm import ModelCallError


class Sleepers:
    """Models that note when they sleep and wake, and insist that no other is awake."""

    def __init__(self, scheduler, names):
        self.awake, self.log = set(), []
        for name in names:
            scheduler.add(name, self.act(name, wake=False), self.act(name, wake=True))

    def act(self, name, *, wake):
        async def rest():
            await asyncio.sleep(0)
            assert (name in self.awake) != wake
            (self.awake.add if wake else self.awake.remove)(name)
            self.log.append(f"{'wake' if wake else 'sleep'} {name}")

        return rest


async def used(scheduler, sleepers, work):
    """Do pieces of work, each (party, pauses before, pauses within), at the same time."""

    async def one(party, before, within):
        for _ in range(before):
            await asyncio.sleep(0)
        async with scheduler.on_device(*party):
            for _ in range(within + 1):
                assert set(party) <= sleepers.awake
                await asyncio.sleep(0)

    await asyncio.wait_for(asyncio.gather(*(one(*piece) for piece in work)), timeout=20)


PARTIES = st.sampled_from([("a",), ("b",), ("c",), ("a", "b")])


@given(st.lists(st.tuples(PARTIES, st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=20))
def test_whoever_works_is_awake_and_all_get_their_turn(work):
    async def main():
        scheduler = DeviceScheduler()
        await used(scheduler, Sleepers(scheduler, "abc"), work)

    asyncio.run(main())


def test_those_who_wait_together_are_admitted_together():
    async def main():
        scheduler = DeviceScheduler()
        sleepers = Sleepers(scheduler, ["policy", "judge"])
        work = [(("policy",), 0, 9), *[(("judge",), 1, random.Random(i).randrange(5)) for i in range(50)]]
        await used(scheduler, sleepers, work)
        return sleepers.log

    assert asyncio.run(main()) == ["wake policy", "sleep policy", "wake judge"]


def test_an_interrupted_turn_ends_and_one_that_was_waited_for_is_given_up():
    async def main():
        scheduler = DeviceScheduler()
        sleepers = Sleepers(scheduler, ["policy", "judge"])

        async def hold(name):
            async with scheduler.on_device(name):
                await asyncio.sleep(60)

        holder = asyncio.create_task(hold("policy"))
        await asyncio.sleep(0.01)
        waiter = asyncio.create_task(hold("judge"))
        await asyncio.sleep(0.01)
        for task in (waiter, holder):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await used(scheduler, sleepers, [(("judge",), 0, 1), (("policy",), 0, 1)])

    asyncio.run(main())


def test_a_server_that_dies_when_it_is_to_sleep_holds_up_nobody():
    async def main():
        scheduler = DeviceScheduler()
        sleepers = Sleepers(scheduler, ["policy"])
        woken = []

        async def sleep():
            raise ModelCallError("unreachable", "it is gone")

        scheduler.add("judge", sleep, lambda: woken.append("judge"))
        for _ in range(2):
            await used(scheduler, sleepers, [(("policy",), 0, 1)])
            async with scheduler.on_device("judge"):
                pass
        await used(scheduler, sleepers, [(("policy",), 0, 1)])
        return woken

    assert asyncio.run(main()) == ["judge", "judge"]  # it is woken when it is asked again


@pytest.mark.parametrize("interrupted", ["wake", "sleep"])
def test_who_was_interrupted_on_the_way_is_moved_again(interrupted):
    async def main():
        scheduler, log = DeviceScheduler(), []

        def act(name, deed):
            async def rest():
                log.append(f"{name} {deed}")
                if (name, deed) == ("judge", interrupted) and log.count(f"judge {deed}") == 1:
                    await asyncio.sleep(60)

            return rest

        async def work(name):
            async with scheduler.on_device(name):
                log.append(f"{name} works")

        for name in ("judge", "policy"):
            scheduler.add(name, act(name, "sleep"), act(name, "wake"))
        if interrupted == "sleep":
            await work("judge")
        task = asyncio.create_task(work("policy" if interrupted == "sleep" else "judge"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        log.append("-")
        await work("judge" if interrupted == "sleep" else "policy")
        return log[log.index("-") + 1 :]

    expected = {
        "wake": ["judge sleep", "policy wake", "policy works"],  # it may be half awake
        "sleep": ["judge wake", "judge works"],  # it may be half asleep
    }
    assert asyncio.run(main()) == expected[interrupted]
