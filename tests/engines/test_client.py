"""A model behind servers: what is sent, what is parsed, which model it is; chat, ratings and embeddings."""

import asyncio
import gc
import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import rewardsmith
from rewardsmith.engines.client import served_model
from rewardsmith.engines.client.replies import parse_completion
from rewardsmith.errors import UserError
from rewardsmith.http.http_client import Endpoint
from rewardsmith.llm import ChatRequest, ModelCallError
from rewardsmith.types import Message
from tests.engines.call_helpers import client, kind_of, outcome, question, run_async
from tests.engines.faulty import FAULTS, FaultyServer, completion, error, raw, said, status


def test_importing_the_client_loads_no_torch() -> None:
    code = "import sys, rewardsmith.engines.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- chat ------------------------------------------------------------------------------------------------------------


@run_async
async def test_a_request_is_sent_as_it_is_and_counted(server: FaultyServer) -> None:
    model = client(server, price_in=2.0, price_out=10.0, body={"chat_template_kwargs": {"thinking": False}})
    messages = [Message("system", "be brief"), Message("user", "hi é \U0001f600")]
    sampling: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 77, "seed": 5, "logprobs": True}
    reply = await model.chat(ChatRequest(messages, stop=("###",), **sampling))
    assert reply.text == "echo: hi é \U0001f600"
    assert (reply.truncated, reply.attempts, reply.prompt_tokens, reply.tokens) == (False, 1, 11, 3)
    assert reply.logprobs == (-0.5, -1.5)
    [(path, headers, body)] = server.requests
    assert path == "/v1/chat/completions"
    assert headers["User-Agent"] == f"rewardsmith/{rewardsmith.__version__}"
    assert "Authorization" not in headers
    assert body == sampling | {
        "model": "tiny",
        "messages": [{"role": message.role, "content": message.content} for message in messages],
        "stop": ["###"],
        "chat_template_kwargs": {"thinking": False},
    }
    usage = model.usage
    assert (usage.calls, usage.retries, usage.failed, usage.prompt_tokens, usage.tokens) == (1, 0, 0, 11, 3)
    assert usage.cost == pytest.approx((11 * 2.0 + 3 * 10.0) / 1e6)
    assert usage.seconds > 0


@run_async
async def test_a_text_is_continued(server: FaultyServer) -> None:
    reply = await client(server).chat(ChatRequest("once upon", logprobs=True))
    assert (reply.text, reply.logprobs) == ("echo: once upon", (-0.5, -1.5))
    [(path, _, body)] = server.requests
    assert path == "/v1/completions"
    # Greedy: a seed, a stop and a share of probability would have no effect, and some servers refuse them.
    assert body == {"model": "tiny", "prompt": "once upon", "temperature": 0.0, "max_tokens": 1024, "logprobs": 1}


CHAT = {"messages": []}


@pytest.mark.parametrize(
    ("body", "text", "thought", "truncated"),
    [
        (completion(CHAT, "yes"), "yes", "", False),
        (completion(CHAT, "ye", finish="length"), "ye", "", True),
        (completion(CHAT, "yes", message={"reasoning_content": "hm"}), "yes", "hm", False),
        (completion(CHAT, None, finish="length", message={"reasoning": "hm"}), "", "hm", True),
        (completion(CHAT, None, message={"content": [{"type": "text", "text": "a"}]}), "a", "", False),
        (json.loads('{"choices": [{"message": {"content": "\\ud800 ok"}}]}'), "? ok", "", False),
    ],
)
def test_replies_that_are_parsed(body: dict, text: str, thought: str, truncated: bool) -> None:
    found = parse_completion(body, chat=True, logprobs=False)
    assert (found.text, found.thought, found.truncated) == (text, thought, truncated)
    found.text.encode()  # whatever came, it is text now


@run_async
async def test_a_server_that_has_another_name_for_the_token_limit(server: FaultyServer) -> None:
    async def strict(server: FaultyServer, request: Any, body: dict) -> Any:
        if "max_tokens" in body:
            return error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return await FAULTS["ok"](server, request, body)

    server.plan(*[strict] * 9)
    model = client(server, retries=0)
    await asyncio.gather(*(model.chat(question(max_tokens=9)) for _ in range(3)))
    await model.chat(question(max_tokens=9))
    assert (model.usage.calls, model.usage.failed, len(server.requests)) == (4, 0, 7)
    assert server.bodies[-1]["max_completion_tokens"] == 9
    assert "max_tokens" not in server.bodies[-1]
    stubborn = client(server, body={"max_tokens": 5})  # the recipe insists: the server's error is final
    assert kind_of(await outcome(stubborn, question())) == "refused"


@run_async
async def test_log_probabilities_that_do_not_come_are_a_failure(server: FaultyServer) -> None:
    silent = raw(json.dumps(completion({"messages": []}, "yes")).encode())
    server.plan(silent, said("yes", logprobs=(float("nan"),)))
    model = client(server, retries=0)
    assert kind_of(await outcome(model, question(logprobs=True))) == "refused"
    assert kind_of(await outcome(model, question(logprobs=True))) == "unparsable"


def test_the_model_is_used_in_one_event_loop_after_the_other() -> None:
    model = client("http://127.0.0.1:1/v1")

    async def once() -> None:
        async with FaultyServer() as server:
            model.replace_urls([server.url])
            replies = await asyncio.gather(*(model.chat(question(str(i))) for i in range(3)))
            assert [reply.text for reply in replies] == ["echo: 0", "echo: 1", "echo: 2"]

    for _ in range(3):
        asyncio.run(once())  # nothing is closed: connections end with their event loop, without a warning
        gc.collect()
    assert model.usage.calls == 9


# ---- which model, and where ------------------------------------------------------------------------------------------


async def check(*urls: FaultyServer | str, **settings: Any) -> None:
    async with client(*urls, **settings) as model:
        await model.check()


@run_async
async def test_the_only_model_is_found_once_for_all_callers() -> None:
    listed = 0

    async def list_slowly(server: FaultyServer, request: Any, body: dict) -> Any:
        nonlocal listed
        listed += 1
        await asyncio.sleep(0.05)
        return await raw(b'{"data": [{"id": "Qwen/Q-7B"}]}')(server, request, body)

    async with FaultyServer(models=["Qwen/Q-7B"]) as server:
        server.plan_models(*[list_slowly] * 99)
        model = client(server, model=None)
        await asyncio.gather(*(model.chat(question()) for _ in range(20)))
        await model.identity()
        assert {body["model"] for body in server.bodies} == {"Qwen/Q-7B"}
        assert listed == 1
        await model.check()
        assert listed == 2
        await model.close()


@pytest.mark.parametrize(
    ("served", "model", "message"),
    [
        (["a", "b"], None, r"2 models: a, b: set model"),
        ([], None, "0 models: none"),
        (["llama-8b"], "other", "no model 'other'.*It has: llama-8b"),
    ],
)
@run_async
async def test_a_wrong_model_is_an_error_before_the_first_call(
    served: list[str], model: str | None, message: str
) -> None:
    async with FaultyServer(models=served) as server, client(server, model=model) as judge:
        with pytest.raises(UserError, match=message) as raised:
            await judge.check()
        assert "models.judge.model" in str(raised.value)
        assert server.url in str(raised.value)
        assert kind_of(await outcome(judge, question())) == "refused"
        assert judge.usage.failed == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (status(404), "does not list its models: set model"),
        (raw(b"<html>Welcome</html>"), "no data: <html>"),
        (raw(b'{"data": [{"name": "x"}]}'), "without an id"),
        (status(401, "who"), "set api_key_env"),
        (status(400, "no"), "status 400"),
    ],
)
@run_async
async def test_a_list_that_a_user_must_fix(server: FaultyServer, fault: Any, message: str) -> None:
    server.plan_models(*[fault] * 3)
    with pytest.raises(UserError, match=message):
        await check(server, model=None)


@run_async
async def test_temporary_errors_of_the_list_are_retried(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_model, "PAUSE", 0.001)
    server.plan_models(status(404))
    await check(server, model="tiny")  # a server without a list is believed
    server.plan_models("500", "reset")
    await check(server)
    for faults in (["500"] * 3, ["503"]):  # the second one is gone, and not queried again
        server.plan_models(*faults)
        with pytest.raises(ModelCallError, match=f"status {faults[0]}") as raised:
            await check(server)
        assert raised.value.kind == "unreachable"
    with pytest.raises(UserError, match=r"did you mean http://127.0.0.1:\d+/v1\?"):
        await check(server.url.removesuffix("/v1"))
    with pytest.raises(UserError, match="leave /chat/completions out"):
        client(f"{server.url}/chat/completions")


def test_proxies_are_not_used_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.test:3128")
    monkeypatch.setenv("https_proxy", "ann:hunter2@proxy.test:3128")
    monkeypatch.setenv("no_proxy", "inside.test")
    assert str(Endpoint.parse("http://api.test/v1").proxy) == "http://proxy.test:3128"
    for url in ("http://localhost:1/v1", "http://127.0.0.1:1/v1", "http://[::1]:1/v1", "http://a.inside.test/v1"):
        assert Endpoint.parse(url).proxy is None
    with pytest.raises(UserError, match="https_proxy is not http://host:port") as raised:
        Endpoint.parse("https://api.test/v1")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (b"HTTP/1.1 407 Who\r\n\r\n", "refused", "set the proxy's user and password"),
        (b"HTTP/1.1 502 Bad\r\n\r\n", "unreachable", "status 502"),
    ],
)
@run_async
async def test_a_proxy_that_refuses(monkeypatch: pytest.MonkeyPatch, reply: bytes, kind: str, message: str) -> None:
    connections = 0

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    proxy = await asyncio.start_server(speak, "127.0.0.1", 0)
    monkeypatch.setenv("https_proxy", f"http://ann:hunter2@127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    monkeypatch.delenv("no_proxy", raising=False)
    model = client("https://judge.test/v1", retries=1)
    result = await outcome(model, question())
    assert (kind_of(result), connections) == (kind, 1 if kind == "refused" else 2)
    assert message in str(result)
    assert "hunter2" not in f"{result} {vars(model._dispatcher)}"
    with pytest.raises(UserError if kind == "refused" else ModelCallError, match=message) as raised:
        await model.check()
    assert "hunter2" not in str(raised.value)
    assert "api_key_env" not in str(raised.value)
    await model.close()
    proxy.close()


@run_async
async def test_a_wake_up_that_fails(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_model, "PAUSE", 0.001)
    model = client(server)
    await model.sleep()
    server.plan_orders("500", "500")
    await model.wake()  # it passed
    assert not server.asleep
    for fault in ([status(500, "CUDA out of memory")] * 3, ["401"]):
        server.plan_orders(*fault)
        with pytest.raises(ModelCallError, match=r"/wake_up.*(CUDA out of memory|401)") as raised:
            await model.wake()
        assert "VLLM_SERVER_DEV_MODE" not in str(raised.value)
    server.plan_orders("404")
    with pytest.raises(UserError, match="VLLM_SERVER_DEV_MODE=1"):  # a mistake of the user
        await model.wake()
    await model.close()


# ---- ratings and embeddings ------------------------------------------------------------------------------------------


def talk(answer: str, prompt: str = "why?") -> list[Message]:
    return [Message("system", "be brief"), Message("user", prompt), Message("assistant", answer)]


@run_async
async def test_a_classifier_rates_conversations(server: FaultyServer) -> None:
    model = client(server, serves="classify")
    await model.check()
    server.requests.clear()
    assert await model.rate([talk("a" * n) for n in (5, 1, 3)]) == [5.0, 1.0, 3.0]
    assert {path for path, _, _ in server.requests} == {"/classify"}
    messages = [{"role": message.role, "content": message.content} for message in talk("aaaaa")]
    assert server.bodies[0] == {"model": "tiny", "messages": messages, "use_activation": False}
    assert model.usage.prompt_tokens == 7 * 5  # with two requests of the check
    assert await model.rate([]) == []
    await model.close()


@run_async
async def test_a_cross_encoder_rates_pairs_in_batches(server: FaultyServer) -> None:
    model = client(server, serves="score", batch=2, body={"use_activation": True})
    await model.check()
    server.requests.clear()
    # The pair is all messages before, and the response: len("be brief\n\nb") == 11.
    assert await model.rate([talk("a" * n, "b") for n in (20, 30, 40)]) == [9.0, 19.0, 29.0]
    assert [len(body["text_2"]) for body in server.bodies] == [2, 1]
    assert server.bodies[1]["text_1"] == ["be brief\n\nb"]
    assert server.bodies[1]["use_activation"] is True
    server.requests.clear()
    with pytest.raises(ModelCallError, match='serves = "classify"') as raised:  # it would rate the reviewer
        await model.rate([talk("a"), [*talk("a"), Message("user", "a reviewer wrote: wrong")]])
    assert raised.value.kind == "refused"
    assert not server.requests
    assert model.usage.failed == 2
    await model.close()


@run_async
async def test_vectors_are_in_order_and_of_length_one(server: FaultyServer) -> None:
    model = client(server, serves="embed", batch=2)
    await model.check()
    texts = ["", "a", "bb", "ccc", "dddd"]
    found = await model.embed(texts)
    expected = np.array([[3.0 * (1 + len(text)), 4.0] for text in texts])
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=1e-6)
    assert found.dtype == np.float32
    assert [len(body["input"]) for body in server.bodies] == [1, 2, 2, 1]
    assert (await model.embed([])).shape[0] == 0
    await model.close()


def body(**fields: Any) -> Any:
    return raw(json.dumps(fields).encode())


def row(index: int, **fields: Any) -> dict[str, Any]:
    return {"index": index, **fields}


@run_async
async def test_numbers_that_are_not_believed(server: FaultyServer) -> None:
    cases: list[tuple[str, Any, str]] = [
        ("classify", body(data=[]), "unparsable"),
        ("classify", body(data=[row(0, probs=[0.4, 0.6])]), "refused"),
        ("classify", body(data=[row(0, probs=[math.nan])]), "unparsable"),
        ("classify", body(data=[row(0, probs=[True])]), "unparsable"),
        ("classify", body(data=[row(0, probs=[10**400])]), "unparsable"),
        ("score", body(data=[row(0, score=1.0)]), "unparsable"),
        ("score", body(data=[row(0, score=1.0), row(0, score=2.0)]), "unparsable"),
        ("score", body(data=[row(0, score=1.0), row(1, score=None)]), "unparsable"),
        ("embed", body(data=[row(0, embedding=[1.0]), row(1, embedding=[1.0, 2.0])]), "unparsable"),
        ("embed", body(data=[row(0, embedding=[1.0]), row(1, embedding=[0.0])]), "unparsable"),
        ("embed", body(data=[row(0, embedding=[1.0]), row(1, embedding=["x"])]), "unparsable"),
        ("embed", FAULTS["503"], "unreachable"),
    ]
    for serves, reply, kind in cases:
        server.plan(reply)
        async with client(server, serves=serves, retries=0) as model:
            conversations = [talk("a")] if serves == "classify" else [talk("a"), talk("b")]
            with pytest.raises(ModelCallError) as raised:
                await (model.embed(["a", "b"]) if serves == "embed" else model.rate(conversations))
            assert raised.value.kind == kind


@pytest.mark.parametrize(
    ("serves", "reply", "message"),
    [
        ("classify", status(404, "Not Found"), "does not rate conversations"),
        ("classify", body(data=[row(0, probs=[0.4, 0.6])]), "2 classes"),
        ("classify", body(data=[row(0, probs=[1.0])]), "rates everything 1"),
        ("score", status(404, "Not Found"), "does not score pairs"),
        ("embed", status(400, "no embeddings here"), "does not embed texts"),
    ],
)
@run_async
async def test_the_check_finds_a_server_that_does_something_else(
    server: FaultyServer, serves: str, reply: Any, message: str
) -> None:
    server.plan(reply, reply)
    with pytest.raises(UserError, match=message):
        await client(server, serves=serves).check()
