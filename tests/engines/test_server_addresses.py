"""Places, pace and health of addresses: how many, how fast, and where to."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.engines.client.addresses import LONGEST_REST, Limits, address_of, forget, take_place
from tests.engines.leaping import hold, joined, now, virtually


def test_places_are_never_more_than_the_smallest_limit() -> None:
    async def main() -> None:
        address = joined(Limits(3), Limits(5))
        begun = await asyncio.gather(*(hold([address], 10.0) for _ in range(8)))
        assert [t - begun[0] for t in begun] == pytest.approx([0, 0, 0, 10, 10, 10, 20, 20])
        assert address.load == 0

    virtually(main)


def test_a_limit_goes_with_the_model_that_had_it() -> None:
    async def main() -> None:
        narrow, wide = object(), object()
        address = address_of("http://a")
        address.join(narrow, Limits(1))
        address.join(wide, Limits(4))
        waiting = [asyncio.ensure_future(hold([address], 10.0)) for _ in range(4)]
        await asyncio.sleep(1)
        assert not address.leave(narrow)  # there is another one
        begun = await asyncio.gather(*waiting)
        assert [t - begun[0] for t in begun] == pytest.approx([0, 1, 1, 1])
        assert address.leave(wide)
        forget(address)
        assert address_of("http://a") is not address

    virtually(main)


def test_requests_are_spread_over_the_minute() -> None:
    async def main() -> None:
        address = joined(Limits(100, requests=30), Limits(100, requests=600))
        begun = await asyncio.gather(*(hold([address], 0.0) for _ in range(7)))
        assert [t - begun[0] for t in begun] == pytest.approx([2.0 * i for i in range(7)])
        await asyncio.sleep(600)  # time that was not used is not saved up
        begun = await asyncio.gather(*(hold([address], 0.0) for _ in range(3)))
        assert [t - begun[0] for t in begun] == pytest.approx([0, 2, 4])

    virtually(main)


def test_tokens_are_spread_over_the_minute_and_corrected() -> None:
    async def main() -> None:
        address = joined(Limits(100, tokens=6000))  # 100 a second
        begun = await asyncio.gather(*(hold([address], 0.0, tokens=t) for t in (500, 100, 100)))
        assert [t - begun[0] for t in begun] == pytest.approx([0, 5, 6])
        await asyncio.sleep(100)
        # 1000 were expected, 200 were used, which is known after a second: the next one goes after two, not after ten.
        begun = await asyncio.gather(hold([address], 1.0, tokens=1000, used=200), hold([address], 0.0, tokens=100))
        assert begun[1] - begun[0] == pytest.approx(2)
        await asyncio.sleep(100)
        begun = await asyncio.gather(
            hold([address], 1.0, tokens=100, used=900), hold([address], 0.0), hold([address], 0)
        )
        assert begun[1] - begun[0] == pytest.approx(1)  # what was sent is sent; the one after it pays
        assert begun[2] - begun[0] == pytest.approx(1)

    virtually(main)


@given(
    jobs=st.lists(st.tuples(st.floats(0, 30), st.floats(0, 20), st.integers(0, 500)), min_size=1, max_size=25),
    places=st.integers(1, 4),
    rate=st.sampled_from([None, 20.0, 120.0]),
)
def test_no_minute_holds_more_than_the_limit(
    jobs: list[tuple[float, float, int]], places: int, rate: float | None
) -> None:
    async def main() -> None:
        address = joined(Limits(places, requests=rate))
        begun: list[float] = []
        busy = most = 0

        async def one(start: float, seconds: float, tokens: int) -> None:
            nonlocal busy, most
            await asyncio.sleep(start)
            await take_place([address], tokens)
            begun.append(now())
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(seconds)
            busy -= 1
            address.release(tokens, tokens)

        await asyncio.gather(*(one(*job) for job in jobs))
        assert most <= places
        assert address.load == 0
        for t in begun:
            assert rate is None or sum(t <= other < t + 60 - 1e-6 for other in begun) <= rate

    virtually(main)


def test_the_least_loaded_address_is_asked() -> None:
    async def main() -> None:
        small, large = joined(Limits(2), url="http://small"), joined(Limits(6), url="http://large")
        taken = [await take_place([small, large], 0) for _ in range(8)]
        assert (taken.count(small), taken.count(large)) == (2, 6)
        waiter = asyncio.ensure_future(take_place([small, large], 0))
        await asyncio.sleep(0)
        large.release()  # wherever the first place is free
        assert await waiter is large

    virtually(main)


def test_who_was_sent_before_goes_first() -> None:
    async def main() -> None:
        address = joined(Limits(1))
        await take_place([address], 0)
        order: list[str] = []

        async def wait(name: str, again: bool) -> None:
            await take_place([address], 0, again=again)
            order.append(name)
            address.release()

        tasks = [asyncio.ensure_future(wait(name, name == "again")) for name in ("first", "second", "again")]
        await asyncio.sleep(0)
        address.release()
        await asyncio.gather(*tasks)
        assert order == ["again", "first", "second"]

    virtually(main)


def test_a_waiter_who_gives_up_leaves_nothing_behind() -> None:
    async def main() -> None:
        address = joined(Limits(1))
        await take_place([address], 0)
        waiters = [asyncio.ensure_future(take_place([address], 0)) for _ in range(3)]
        await asyncio.sleep(0)
        waiters[0].cancel()
        address.release()  # goes to the second one, who is cancelled at the same moment
        waiters[1].cancel()
        assert await waiters[2] is address
        with contextlib.suppress(asyncio.CancelledError):
            await waiters[1]
        address.release()
        assert address.load == 0

    virtually(main)


def test_a_dead_address_rests_is_probed_and_comes_back() -> None:
    async def main() -> None:
        dead, alive = joined(Limits(50), url="http://dead"), joined(Limits(50), url="http://alive")

        async def chosen(count: int) -> int:
            """How many of some requests go to the dead one."""
            taken = [await take_place([dead, alive], 0) for _ in range(count)]
            for each in taken:
                each.release()
            return taken.count(dead)

        dead.failed()
        assert await chosen(20) == 0
        rests = []
        for _ in range(7):
            begun = now()
            while await chosen(20) == 0:
                await asyncio.sleep(0.5)
            rests.append(now() - begun)  # one went to see
            assert await chosen(20) == 0
            dead.failed()
        assert rests == sorted(rests)
        assert rests[-1] == pytest.approx(LONGEST_REST, abs=1)
        dead.answered()
        assert await chosen(20) > 0
        dead.failed()
        alive.failed()
        assert 0 < await chosen(20) < 20  # all rest: then all are asked

    virtually(main)


def test_those_who_wait_use_an_address_that_comes_back() -> None:
    async def main() -> None:
        one, two = joined(Limits(1), url="http://one"), joined(Limits(1), url="http://two")
        two.failed()
        jobs = [asyncio.ensure_future(hold([one, two], 10.0)) for _ in range(5)]
        await asyncio.sleep(5)  # its rest is over after a second: one of those who wait went to see
        assert (one.load, two.load) == (1, 1)
        two.answered()
        begun = await asyncio.gather(*jobs)
        assert [t - begun[0] for t in begun] == pytest.approx([0, 1, 10, 11, 20])

    virtually(main)


def test_those_who_wait_go_at_once_where_a_check_found_life() -> None:
    async def main() -> None:
        one, two = joined(Limits(1), url="http://one"), joined(Limits(3), url="http://two")
        two.failed()
        jobs = [asyncio.ensure_future(hold([one, two], 10.0)) for _ in range(4)]
        await asyncio.sleep(0.5)
        two.answered()
        begun = await asyncio.gather(*jobs)
        assert [t - begun[0] for t in begun] == pytest.approx([0, 0.5, 0.5, 0.5])

    virtually(main)


def test_those_who_wait_do_not_go_to_an_address_that_died_unless_all_did() -> None:
    async def main() -> None:
        one, two = joined(Limits(1), url="http://one"), joined(Limits(1), url="http://two")
        held = [await take_place([one, two], 0) for _ in range(2)]
        assert held == [one, two]
        waiters = [asyncio.ensure_future(take_place([one, two], 0)) for _ in range(3)]
        lonely = asyncio.ensure_future(take_place([two], 0))
        await asyncio.sleep(0)
        two.failed()
        two.release()
        assert await lonely is two  # it has no other, and may as well find out now
        two.release()
        await asyncio.sleep(0)
        assert not any(waiter.done() for waiter in waiters)
        one.release()
        assert await waiters[0] is one
        one.failed()
        one.release()
        assert await waiters[1] is one
        one.release()
        assert await waiters[2] is one

    virtually(main)


def test_newcomers_do_not_overtake_those_who_wait_while_an_address_rests() -> None:
    async def main() -> None:
        address = joined(Limits(64, requests=600))
        for _ in range(6):
            address._rest()  # as after six vain looks: it is avoided for 30 s
        first = [asyncio.ensure_future(hold([address], 0.0)) for _ in range(3)]
        await asyncio.sleep(0.15)
        late = [asyncio.ensure_future(hold([address], 0.0)) for _ in range(3)]
        begun = await asyncio.gather(*first, *late)
        assert [t - begun[0] for t in begun] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])

    virtually(main)


def test_a_newcomer_does_not_take_the_place_that_has_just_become_free_for_another() -> None:
    async def main() -> None:
        address = joined(Limits(64, requests=60))
        await hold([address], 0.0)
        waiting = asyncio.ensure_future(hold([address], 0.0))
        await asyncio.sleep(0)
        asyncio.get_running_loop().selector.waited += 1.5  # type: ignore[attr-defined] others keep the loop busy
        newcomer = await hold([address], 0.0)
        assert waiting.done()
        assert newcomer - await waiting == pytest.approx(1)

    virtually(main)


def test_those_who_were_sent_before_go_in_the_order_in_which_they_came() -> None:
    async def main() -> None:
        address = joined(Limits(1))
        await take_place([address], 0)
        order: list[int] = []

        async def wait(name: int) -> None:
            await take_place([address], 0, again=name > 0)
            order.append(name)
            address.release()

        tasks = [asyncio.ensure_future(wait(name)) for name in range(4)]
        await asyncio.sleep(0)
        address.release()
        await asyncio.gather(*tasks)
        assert order == [1, 2, 3, 0]

    virtually(main)


def test_all_places_that_become_free_at_once_are_used() -> None:
    async def main() -> None:
        narrow = object()
        address = joined(Limits(8))
        address.join(narrow, Limits(1))
        await take_place([address], 0)
        waiting = [asyncio.ensure_future(take_place([address], 0)) for _ in range(7)]
        await asyncio.sleep(0)
        address.leave(narrow)
        await asyncio.wait_for(asyncio.gather(*waiting), 20)

    asyncio.run(main())  # with a clock that runs
