"""Faults of servers and what becomes of requests: retries, deadlines, overload, cancelling, several addresses."""

import asyncio
import contextlib
import gzip
import json
import math
import socket
import time
import tracemalloc

import numpy as np
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.engines.client import replies
from rewardsmith.http.request_errors import RequestError, retry_after
from rewardsmith.llm import ChatReply, ModelCallError
from tests.engines.call_helpers import client, kind_of, outcome, question, run_async
from tests.engines.faulty import FAULTS, Behaviour, FaultyServer, status

ENDS = {
    "ok": ("ok", 1),
    "length": ("ok", 1),
    "429": ("refused", 0),
    "429-after": ("refused", 0),
    "quota": ("refused", 1),
    "408": ("refused", 3),
    "500": ("refused", 3),
    "502": ("unreachable", 3),
    "503": ("unreachable", 3),
    "400": ("refused", 1),
    "401": ("refused", 1),
    "404": ("refused", 1),
    "reset": ("unreachable", 3),
    "reset-midway": ("unreachable", 3),
    "stall": ("timeout", 1),
    "drip": ("timeout", 1),
    "half": ("unparsable", 3),
    "schema": ("unparsable", 3),
    "list": ("unparsable", 3),
    "number": ("unparsable", 3),
    "nothing": ("unparsable", 3),
    "deep": ("unparsable", 3),
    "empty": ("unparsable", 3),
    "odd-choice": ("unparsable", 3),
    "odd-finish": ("unparsable", 3),
    "null": ("unparsable", 3),
    "latin": ("unparsable", 3),
    "html": ("unparsable", 3),
    "html-503": ("unreachable", 3),
    "error-body": ("refused", 1),
    "error-body-503": ("unreachable", 3),
    "filtered": ("refused", 1),
    "abort": ("refused", 3),
    "huge": ("unparsable", 1),
    "redirect": ("refused", 1),
}
"""Kind, and attempts with two retries; 0: as often as the deadline and the pace of an overloaded server allow."""


@run_async
async def test_every_fault_that_stays_has_its_failure(server: FaultyServer) -> None:
    assert ENDS.keys() == FAULTS.keys()

    for name, (kind, attempts) in ENDS.items():
        model = client(server, retries=2)
        server.plan(*[name] * (attempts or 1000), clear=True)
        slow = kind == "timeout" or not attempts
        result = await outcome(model, question(deadline=0.5 if slow else 20.0))
        late = set() if attempts else {"timeout"}  # the deadline may pass while a request is on its way
        assert kind_of(result) in {kind, *late}, name
        if not attempts:
            assert 2 <= result.attempts <= 8  # after 20, 40, 80, … ms, and not as often as there are retries
            assert model.usage.failed == 1
            await model.close()
            continue
        assert (name, result.attempts) == (name, attempts)
        if isinstance(result, ModelCallError):
            assert server.url in str(result)
            assert len(str(result)) < 1000
        answered = kind == "ok"
        assert (model.usage.calls, model.usage.failed) == (answered, not answered)
        assert model.usage.retries == attempts - 1
        await model.close()
        assert not server._plan


@run_async
async def test_every_temporary_fault_is_overcome(server: FaultyServer) -> None:
    for name, (kind, attempts) in ENDS.items():
        if attempts == 1:
            continue
        model = client(server, retries=1)
        server.plan(name)
        answer = await model.chat(question(name))
        assert (answer.text, answer.attempts) == (f"echo: {name}", 2), kind
        assert (model.usage.calls, model.usage.retries, model.usage.failed) == (1, 1, 0)
        await model.close()


def test_retry_after_is_a_number_or_a_date() -> None:
    given = {"": None, "7": 7.0, " 0.25 ": 0.25, "-3": 0.0, "nan": None, "inf": None, "later": None}
    given |= {"Wed, 21 Oct 2015 07:28:00 GMT": 0.0, "Wed, 99 Foo 99999 07:28:00 GMT": None}
    assert {text: retry_after({"retry-after": text}) for text in given} == given


@run_async
async def test_retry_after_is_waited_for_but_never_beyond_the_deadline(server: FaultyServer) -> None:
    model = client(server, retries=3)
    server.plan(status(429, Retry_After="0.3"))
    answer = await model.chat(question())
    assert answer.attempts == 2
    assert answer.seconds >= 0.3
    server.plan(status(429, Retry_After="3600"))
    begun = time.monotonic()
    result = await outcome(model, question(deadline=20.0))
    assert (kind_of(result), result.attempts) == ("refused", 1)
    assert "3600 s" in str(result)
    assert time.monotonic() - begun < 10  # it did not wait


@run_async
async def test_one_deadline_for_all_attempts(server: FaultyServer) -> None:
    server.plan(*["500"] * 10_000)
    model = client(server, retries=1_000_000, backoff=0.05, max_backoff=0.05)
    begun = time.monotonic()
    result = await outcome(model, question(deadline=1.0))
    assert time.monotonic() - begun < 10
    assert kind_of(result) in ("refused", "timeout")  # the deadline may pass while a request is on its way
    assert len(server.requests) > 2
    assert model.usage.retries == result.attempts - 1


@run_async
async def test_waiting_for_a_slot_does_not_count(server: FaultyServer) -> None:
    async def slow(server: FaultyServer, request: web.Request, body: dict) -> web.StreamResponse:
        await asyncio.sleep(0.8)
        return await FAULTS["ok"](server, request, body)

    server.plan(slow)
    model = client(server, concurrency=1)
    first = asyncio.ensure_future(model.chat(question("first")))
    await asyncio.sleep(0)
    second = await model.chat(question("second", deadline=0.6))  # waits longer than it may take
    assert second.seconds < 0.6
    assert (await first).seconds >= 0.8
    await model.close()


@run_async
async def test_an_attempt_that_takes_too_long_is_retried(server: FaultyServer) -> None:
    server.plan("stall", "ok", "drip")
    model = client(server, timeout=0.5, retries=1)
    assert (await model.chat(question())).attempts == 2
    assert kind_of(await outcome(client(server, timeout=0.5, retries=0), question())) == "timeout"
    await model.close()


def test_a_host_that_never_accepts_is_unreachable() -> None:
    async def main(port: int) -> None:
        for limit, deadline in [(0.2, 20.0), (10.0, 1.0)]:
            model = client(f"http://127.0.0.1:{port}/v1", retries=1, connect_timeout=limit)
            assert kind_of(await outcome(model, question(deadline=deadline))) == "unreachable"
            await model.close()

    with contextlib.ExitStack() as stack:
        # A listener whose queue is full: further connections are neither accepted nor refused.
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(16):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        asyncio.run(main(listener.getsockname()[1]))


@settings(max_examples=25)
@given(
    plans=st.lists(
        st.lists(st.sampled_from([n for n, (k, _) in ENDS.items() if k != "timeout" and n != "huge"]), max_size=5),
        min_size=1,
        max_size=5,
    ),
    retries=st.integers(0, 3),
)
def test_whatever_happens_ends_in_an_answer_or_a_failure_and_adds_up(plans: list[list[str]], retries: int) -> None:
    async def main() -> None:
        async with FaultyServer() as server:
            model = client(server, retries=retries)
            results = []
            for plan in plans:
                server.plan(*plan)
                results.append(await outcome(model, question()))
            ends = [kind_of(result) for result in results]
            usage = model.usage
            assert usage.calls == ends.count("ok")
            assert usage.failed == len(ends) - usage.calls
            assert sum(result.attempts for result in results) == len(ends) + usage.retries == len(server.requests)
            assert server.in_flight == 0
            await model.close()

    asyncio.run(main())


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400)
_NAMES = ["choices", "message", "content", "text", "type", "finish_reason", "logprobs", "logprob", "token_logprobs"]
_NAMES += ["usage", "prompt_tokens", "data", "index", "probs", "score", "embedding", "id", "refusal", "reasoning"]
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4),
    max_leaves=12,
)
_CHOICE = st.fixed_dictionaries({}, optional=dict.fromkeys(["message", "text", "finish_reason", "logprobs"], _JSON))
_ROW = st.fixed_dictionaries({}, optional=dict.fromkeys(["index", "probs", "score", "embedding", "id"], _JSON))
_BODY = st.fixed_dictionaries({"choices": st.lists(_CHOICE, max_size=2), "data": st.lists(_ROW, max_size=2)})


@given(body=_JSON | _BODY, logprobs=st.booleans(), chat=st.booleans(), count=st.integers(1, 2))
def test_any_json_is_read_or_is_a_fault(body: object, logprobs: bool, chat: bool, count: int) -> None:
    read, wrote = replies.token_counts(body)
    assert read >= 0
    assert wrote >= 0
    with contextlib.suppress(RequestError):
        found = replies.parse_completion(body, chat=chat, logprobs=logprobs)
        (found.text + found.thought).encode()
        assert all(math.isfinite(value) for value in found.logprobs)
    for read_numbers in (lambda b: [replies.parse_class(b)], lambda b: replies.parse_scores(b, count)):
        with contextlib.suppress(RequestError):
            assert all(math.isfinite(value) for value in read_numbers(body))
    with contextlib.suppress(RequestError):
        vectors = replies.parse_embeddings(body, count)
        assert len(vectors) == count
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    with contextlib.suppress(RequestError):
        assert all(replies.parse_models(body))


@run_async
async def test_a_gzip_bomb_is_not_unpacked_beyond_the_limit_of_a_reply(server: FaultyServer) -> None:
    bomb = gzip.compress(b" " * 2**27)  # 128 MiB in 128 KiB
    reply = json.dumps({"choices": [{"finish_reason": "stop", "message": {"content": "packed"}}]}).encode()
    served = []

    async def respond(server: FaultyServer, request: web.Request, body: dict) -> web.StreamResponse:
        served.append(request.headers["Accept-Encoding"])
        packed = bomb if len(served) == 1 else gzip.compress(reply)
        return web.Response(body=packed, headers={"Content-Type": "application/json", "Content-Encoding": "gzip"})

    server.plan(respond, respond)
    model = client(server, retries=3)
    tracemalloc.start()
    result = await outcome(model, question())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (kind_of(result), served) == ("unparsable", ["identity"])  # sent once, and not again
    assert peak < 100 * 2**20
    assert (await model.chat(question())).text == "packed"
    await model.close()


OK = b"HTTP/1.1 200 OK\r\n"
BAD_HTTP = {
    OK + b"Content-Length: abc\r\n\r\n{}": "unparsable",
    OK + b"Content-Length: 100\r\n\r\n{}": "unreachable",
    OK + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello": "unreachable",
    OK + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nhello": "unparsable",
    OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel": "unreachable",
    OK + b"X: " + b"y" * 20_000 + b"\r\n\r\n{}": "unparsable",
    OK + b"Content-Type: \xff;;=\r\n\r\n{}": "unparsable",
    b"HTTP/1.1 100 Continue\r\n\r\n": "unreachable",
    b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n{}": "unparsable",
    b"HTTP/1.1 204 No Content\r\n\r\n": "unparsable",
    b"HTTP/1.1 302 Found\r\nLocation: ://[\r\n\r\n": "refused",
    b"HTTP/1.1 999 Odd\r\n\r\n": "refused",
}


async def reply_to_bytes(response: bytes, *, drain: bool = True) -> ChatReply | ModelCallError:
    """Return what a client makes of a server that replies to every connection with these bytes."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        if drain:
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server, client(url, retries=0) as model:
        return await outcome(model, question(deadline=5.0))


@run_async
async def test_a_server_that_speaks_http_badly() -> None:
    for response, kind in BAD_HTTP.items():
        result = await reply_to_bytes(response)
        assert (kind_of(result), len(str(result)) < 1000) == (kind, True), response


@settings(max_examples=25)
@given(noise=st.binary(max_size=300), head=st.booleans(), drain=st.booleans())
def test_a_server_that_speaks_no_http(noise: bytes, head: bool, drain: bool) -> None:
    result = asyncio.run(reply_to_bytes((OK if head else b"") + noise, drain=drain))
    assert kind_of(result) in ("unparsable", "unreachable", "refused")


# ---- several requests, several addresses -----------------------------------------------------------------------------


@run_async
async def test_the_load_is_shared_and_a_dead_replica_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewardsmith.engines.client.dispatcher.MIN_COOLDOWN", 30.0)  # no probe meanwhile, however slow
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
        calls = [asyncio.ensure_future(model.chat(question(str(i)))) for i in range(3)]  # the third one waits
        while old.in_flight < 2:
            await asyncio.sleep(0.01)
        model.replace_urls([new.url])
        await old.stop()
        assert [answer.text for answer in await asyncio.gather(*calls)] == ["echo: 0", "echo: 1", "echo: 2"]
        assert len(new.requests) == 3
        await model.close()


@run_async
async def test_cancelling_closes_the_connection_and_frees_the_place(server: FaultyServer) -> None:
    server.plan(*["stall"] * 4)
    model = client(server, concurrency=4)
    calls = [asyncio.ensure_future(model.chat(question())) for _ in range(6)]
    while server.in_flight < 4:
        await asyncio.sleep(0.01)
    for task in calls:
        task.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    await asyncio.wait_for(server.idle.wait(), 20)  # the server saw them go
    assert (server.dropped, len(server.requests)) == (4, 4)
    answers = await asyncio.gather(*(model.chat(question()) for _ in range(8)))  # all places are free
    assert len(answers) == 8
    assert server.max_in_flight == 4
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
