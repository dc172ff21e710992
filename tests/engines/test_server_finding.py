"""Which model a server has, whether it is there, and sleeping."""

import asyncio

import pytest

from rewardsmith.engines.client import discovery
from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError
from tests.engines.asked import client, kind_of, outcome, question, run_async
from tests.engines.faulty import FaultyServer, raw, status


async def check(*urls: FaultyServer | str, **settings: object) -> None:
    async with client(*urls, **settings) as model:
        await model.check()


@run_async
async def test_the_only_model_is_found_once_for_all_who_ask() -> None:
    looked = 0

    async def listed(server: FaultyServer, request: object, body: object) -> object:
        nonlocal looked
        looked += 1
        await asyncio.sleep(0.05)
        return await raw(b'{"data": [{"id": "Qwen/Q-7B"}]}')(server, request, body)  # type: ignore[arg-type]

    async with FaultyServer(models=["Qwen/Q-7B"]) as server:
        server.plan_models(*[listed] * 99)
        model = client(server, model=None)
        assert looked == 0
        answers = await asyncio.gather(*(model.chat(question()) for _ in range(20)))
        assert {answer.text for answer in answers} == {"echo: hi"}
        assert {body["model"] for body in server.bodies} == {"Qwen/Q-7B"}
        await model.identity()
        assert looked == 1
        await model.check()
        assert looked == 2
        await model.close()


@pytest.mark.parametrize(
    ("served", "wanted", "told"),
    [
        (["a", "b"], None, r"2 models: a, b: set model"),
        ([], None, "0 models: none"),
        (["llama-8b"], "other", "no model 'other'.*It has: llama-8b"),
    ],
)
@run_async
async def test_a_wrong_model_is_told_before_anything_is_asked(served: list[str], wanted: str | None, told: str) -> None:
    async with FaultyServer(models=served) as server:
        model = client(server, model=wanted)
        with pytest.raises(UserError, match=told) as raised:
            await model.check()
        assert "models.judge.model" in str(raised.value)
        assert server.url in str(raised.value)
        assert kind_of(await outcome(model, question())) == "refused"
        assert model.usage.failed == 1
        await model.close()


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (status(404), "status 404"),
        (raw(b"<html>Welcome</html>"), "sent no JSON"),
        (raw(b'{"data": [{"name": "x"}]}'), "without an id"),
        (status(401, "who"), "set api_key_env"),
        (status(400, "no"), "status 400"),
    ],
)
@run_async
async def test_a_list_that_a_user_must_mend(server: FaultyServer, fault: object, told: str) -> None:
    server.plan_models(*[fault] * 3)  # type: ignore[list-item]
    with pytest.raises(UserError, match=told):
        await check(server, model=None)


@run_async
async def test_a_server_without_a_list_is_believed_and_a_hiccup_forgiven(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_PAUSE", 0.001)

    server.plan_models(status(404))
    await check(server, model="tiny")
    server.plan_models("500", "reset")
    await check(server)
    server.plan_models(*["500"] * 3)
    with pytest.raises(ModelCallError, match="status 500") as raised:
        await check(server)
    assert raised.value.kind == "unreachable"
    server.plan_models("503")
    with pytest.raises(ModelCallError, match="status 503"):
        await check(server)
    with pytest.raises(UserError, match=r"did you mean http://127.0.0.1:\d+/v1\?"):
        await check(server.url.removesuffix("/v1"))


@pytest.mark.parametrize(
    ("reply", "kind", "told"),
    [
        (b"HTTP/1.1 407 Who\r\n\r\n", "refused", "set the proxy's user and password"),
        (b"HTTP/1.1 502 Bad\r\n\r\n", "unreachable", "status 502"),
    ],
)
@run_async
async def test_a_server_behind_a_proxy(monkeypatch: pytest.MonkeyPatch, reply: bytes, kind: str, told: str) -> None:
    asked = 0

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    proxy = await asyncio.start_server(speak, "127.0.0.1", 0)
    monkeypatch.setenv("https_proxy", f"http://ann:hunter2@127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    monkeypatch.delenv("no_proxy", raising=False)
    model = client("https://judge.test/v1", retries=1)
    result = await outcome(model, question())
    assert (kind_of(result), asked) == (kind, 1 if kind == "refused" else 2)
    assert told in str(result)
    assert "hunter2" not in f"{result} {vars(model._dispatcher)}"
    with pytest.raises(UserError if kind == "refused" else ModelCallError, match=told) as raised:
        await model.check()
    assert "hunter2" not in str(raised.value)
    assert "api_key_env" not in str(raised.value)
    await model.close()
    proxy.close()


@run_async
async def test_a_wake_up_that_fails_is_no_mistake_in_the_recipe(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_PAUSE", 0.001)

    model = client(server)
    await model.sleep()
    server.plan_orders("500", "500")
    await model.wake()  # it passed
    assert not server.asleep
    server.plan_orders(*[status(500, "CUDA out of memory")] * 3)
    with pytest.raises(ModelCallError, match=r"/wake_up.*CUDA out of memory") as raised:
        await model.wake()
    assert "VLLM_SERVER_DEV_MODE" not in str(raised.value)
    server.plan_orders("401")
    with pytest.raises(ModelCallError, match="401"):
        await model.wake()
    server.plan_orders("404")
    with pytest.raises(UserError, match="VLLM_SERVER_DEV_MODE=1"):
        await model.wake()
    await model.close()
