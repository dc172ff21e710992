"""Several requests at several servers: shared limits, shared load, and servers that go and come."""

import asyncio

import pytest
from aiohttp import web

from tests.engines.asked import client, question, run_async
from tests.engines.faulty import FAULTS, Behaviour, FaultyServer, status


@run_async
async def test_the_load_is_shared_and_a_dead_replica_costs_nothing() -> None:
    async with FaultyServer(latency=0.002) as one, FaultyServer(latency=0.002) as two:
        model = client(one, two, concurrency=4, retries=0)
        await asyncio.gather(*(model.chat(question()) for _ in range(100)))
        assert min(len(one.requests), len(two.requests)) > 30
        await two.stop()
        before = len(one.requests)
        answers = await asyncio.gather(*(model.chat(question()) for _ in range(100)))
        assert len(one.requests) == before + 100
        # Only those who found out were sent twice: not more than there are places.
        assert sum(answer.attempts - 1 for answer in answers) <= 4
        await model.check()
        assert model.away == (two.url,)
        async with two:
            await model.check()
            assert model.away == ()
            before = len(two.requests)
            await asyncio.gather(*(model.chat(question()) for _ in range(100)))
            assert len(two.requests) > before + 30
        await model.close()


@run_async
async def test_what_is_in_flight_goes_to_the_new_address() -> None:
    async with FaultyServer() as old, FaultyServer() as new:
        old.plan(*["stall"] * 3)
        model = client(old, concurrency=2, retries=3)
        asked = [asyncio.ensure_future(model.chat(question(str(i)))) for i in range(3)]  # the third one waits
        while old.in_flight < 2:
            await asyncio.sleep(0.01)
        model.replace_urls([new.url])
        await old.stop()
        assert [answer.text for answer in await asyncio.gather(*asked)] == ["echo: 0", "echo: 1", "echo: 2"]
        assert len(new.requests) == 3
        await model.close()


@run_async
async def test_cancelling_closes_the_connection_and_frees_the_place(server: FaultyServer) -> None:
    server.plan(*["stall"] * 4)
    model = client(server, concurrency=4)
    asked = [asyncio.ensure_future(model.chat(question())) for _ in range(6)]
    while server.in_flight < 4:
        await asyncio.sleep(0.01)
    for task in asked:
        task.cancel()
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    await asyncio.wait_for(server.idle.wait(), 20)  # the server saw them go
    assert (server.dropped, len(server.requests)) == (4, 4)
    answers = await asyncio.gather(*(model.chat(question()) for _ in range(8)))  # all places are free
    assert len(answers) == 8
    assert server.most == 4
    assert model.usage.failed == 0
    await model.close()


@pytest.mark.parametrize("refusal", [status(429), status(429, Retry_After="0.2"), status(503, Retry_After="0.2")])
@run_async
async def test_an_overload_slows_all_down_and_fails_nobody(server: FaultyServer, refusal: Behaviour) -> None:
    refused = taken = 0
    begun = asyncio.get_running_loop().time()

    async def limited(server: FaultyServer, request: web.Request, body: dict) -> web.StreamResponse:
        """Take 100 a second, and refuse what is more."""
        nonlocal refused, taken
        if taken < 10 + 100 * (asyncio.get_running_loop().time() - begun):
            taken += 1
            return await FAULTS["ok"](server, request, body)
        refused += 1
        return await refusal(server, request, body)

    server.plan(*[limited] * 10_000)
    model = client(server, retries=0)
    await asyncio.gather(*(model.chat(question()) for _ in range(200)))
    assert (model.usage.calls, model.usage.failed) == (200, 0)
    assert model.usage.retries == refused < 120  # 64 were sent before anybody knew
    await model.close()
