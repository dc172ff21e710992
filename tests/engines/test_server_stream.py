"""Answers that come in pieces, as they do where their beginning has a deadline."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.llm import ChatRequest
from tests.engines.asked import client, kind_of, outcome, question, run_async
from tests.engines.faulty import FaultyServer, pieces, raw


def sent(*events: Any, kind: str = "text/event-stream") -> Any:
    lines = [event if isinstance(event, bytes) else f"data: {json.dumps(event)}\n\n".encode() for event in events]
    return raw(b"".join(lines), kind=kind)


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


DONE = b"data: [DONE]\n\n"


@run_async
async def test_a_streamed_answer_is_the_same_answer(server: FaultyServer) -> None:
    plain, streaming = client(server), client(server, first_token_timeout=10.0)
    for prompt in (question("an é and a \U0001f600").prompt, "once upon"):
        asked = ChatRequest(prompt)
        one, other = await plain.chat(asked), await streaming.chat(asked)
        assert (one.text, one.prompt_tokens, one.tokens) == (other.text, other.prompt_tokens, other.tokens)
    assert [body.get("stream") for body in server.bodies] == [None, True, None, True]
    assert server.bodies[1]["stream_options"] == {"include_usage": True}
    await plain.close()
    await streaming.close()


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([delta(content="ye"), delta(content="s"), delta("stop"), DONE], ("yes", "", False)),
        ([b": hello\r\n\r\n", delta(content="yes"), b"event: ping\n\n", delta("stop")], ("yes", "", False)),
        ([delta(reasoning_content="h"), delta(reasoning_content="m"), delta("stop", content="y")], ("y", "hm", False)),
        ([delta(content="ye"), delta("length")], ("ye", "", True)),
        ([delta(content="ye")], "unreachable"),
        ([DONE], "unparsable"),
        ([delta(content="ye"), b"data: {half\n\n", delta("stop")], "unparsable"),
        ([delta(content="ye"), {"error": {"message": "out of memory", "code": 500}}], "refused"),
        ([delta(content="ye"), delta("content_filter"), DONE], "refused"),
    ],
)
@run_async
async def test_streams(server: FaultyServer, events: list[Any], end: Any) -> None:
    server.plan(sent(*events))
    model = client(server, first_token_timeout=10.0, retries=0)
    result = await outcome(model, question())
    if isinstance(end, str):
        assert kind_of(result) == end
    else:
        assert (result.text, result.thought, result.truncated) == end
    await model.close()


@pytest.mark.parametrize("fault", ["stall", "drip-events"])
@run_async
async def test_an_answer_that_does_not_begin(server: FaultyServer, fault: str) -> None:
    server.plan(fault)
    model = client(server, first_token_timeout=0.5, retries=1)
    answer = await model.chat(question())  # signs of life are no beginning
    assert answer.attempts == 2
    server.plan(fault)
    assert kind_of(await outcome(client(server, first_token_timeout=0.5, retries=0), question())) == "timeout"
    await model.close()


@settings(max_examples=40)
@given(text=st.text(max_size=60), cuts=st.lists(st.integers(1, 200), max_size=30))
def test_the_pieces_may_be_cut_anywhere(text: str, cuts: list[int]) -> None:
    text = text.encode("utf-8", "ignore").decode()

    async def cut(server: FaultyServer, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        whole, at = b"".join(pieces(body, text)), 0
        for size in [*cuts, len(whole)]:
            if whole[at : at + size]:
                await response.write(whole[at : at + size])
                await asyncio.sleep(0)
            at += size
        return response

    async def main() -> None:
        async with FaultyServer() as server:
            server.plan(cut)
            model = client(server, first_token_timeout=10.0, retries=0)
            assert (await model.chat(question())).text == text
            await model.close()

    asyncio.run(main())
