"""Which model a server has, whether it is there, and sleeping."""

import asyncio

import pytest

from rewardsmith.engines.client import ServedModel, discovery
from rewardsmith.engines.client.http_client import Endpoint
from rewardsmith.engines.model_settings import ServerSettings
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
        (["llama-8b", "qwen-7b"], "qwen-7B-chat", 'Did you mean "qwen-7b".* It has: llama-8b, qwen-7b'),
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


@run_async
async def test_all_addresses_must_have_the_model() -> None:
    async with FaultyServer(models=["a", "b"]) as one, FaultyServer(models=["a"]) as two:
        await check(one, two, model="a")
        with pytest.raises(UserError, match=rf"{two.url} has no model 'b'"):
            await check(one, two, model="b")
    async with FaultyServer(models=["a"]) as one, FaultyServer(models=["b"]) as two:
        with pytest.raises(UserError, match=r"different models.*'a'.*'b'"):
            await check(one, two, model=None)


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


@run_async
async def test_the_identity_is_of_the_weights_not_of_the_address() -> None:
    async with FaultyServer() as one, FaultyServer() as two:
        base = await client(one, model=None).identity()
        assert await client(two, model="tiny", concurrency=3).identity() == base
        others = [
            await client(one, model="other").identity(),  # it does not even have to be there
            await client(one, version="2").identity(),
            await client(one, body={"reasoning_effort": "low"}).identity(),
        ]
        assert len({base, *others}) == 4


@pytest.mark.parametrize(
    ("url", "chat", "classify"),
    [
        ("http://h:1/v1", "http://h:1/v1/chat", "http://h:1/classify"),
        ("http://h:1/v1/", "http://h:1/v1/chat", "http://h:1/classify"),
        ("http://h:1", "http://h:1/chat", "http://h:1/classify"),
        ("https://h/proxy/a%20b/v1", "https://h/proxy/a%20b/v1/chat", "https://h/proxy/a%20b/classify"),
        ("https://h/v1?version=2", "https://h/v1/chat?version=2", "https://h/classify?version=2"),
    ],
)
def test_where_the_verbs_are(url: str, chat: str, classify: str) -> None:
    base = Endpoint.parse(url)
    assert str(base.at("chat")) == chat
    assert str(base.at("classify", root=True)) == classify
    assert "version" not in base.shown


def test_proxies_are_for_others_than_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.test:3128")
    monkeypatch.setenv("https_proxy", "http://proxy.test:3129")
    monkeypatch.setenv("no_proxy", "inside.test")
    assert str(Endpoint.parse("http://api.test/v1").proxy) == "http://proxy.test:3128"
    assert str(Endpoint.parse("https://api.test/v1").proxy) == "http://proxy.test:3129"
    for url in ("http://localhost:1/v1", "http://127.0.0.1:1/v1", "http://[::1]:1/v1", "http://a.inside.test/v1"):
        assert Endpoint.parse(url).proxy is None


@pytest.mark.parametrize(
    "proxy", ["ann:hunter2@proxy.test:3128", "proxy.test", "socks5://ann:hunter2@h", "http://[::1"]
)
def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(UserError, match=r"https_proxy cannot be used for api\.test.*http://host:port") as raised:
        Endpoint.parse("https://api.test/v1")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("reply", "kind", "told"),
    [
        (b"HTTP/1.1 407 Who\r\n\r\n", "refused", "set the proxy's user and password"),
        (b"HTTP/1.1 403 No\r\n\r\n", "refused", "status 403"),
        (b"HTTP/1.1 404 No\r\n\r\n", "refused", "status 404"),
        (b"HTTP/1.1 502 Bad\r\n\r\n", "unreachable", "status 502"),
        (b"HTTP/1.1 503 Bad\r\n\r\n", "unreachable", "status 503"),
        (b"", "unreachable", "judge.test"),
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
async def test_https_to_a_server_that_speaks_http(server: FaultyServer) -> None:
    result = await outcome(client(server.url.replace("http:", "https:")), question())
    assert (kind_of(result), result.attempts) == ("refused", 1)
    assert "use http://" in str(result)


@run_async
async def test_services_without_a_list_have_paths_of_their_own() -> None:
    """Most do not end in /v1; only where /v1 has a list is it known to be meant."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        found = path == b"/listed/v1/models"
        body = b'{"data": [{"id": "tiny"}]}' if found else b"{}"
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (200 if found else 404, len(body)) + body)
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    root = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await check(f"{root}/api/paas/v4")
    for url, meant in [
        (f"{root}/listed", f"{root}/listed/v1"),
        (f"{root}/v1/chat/completions", f"{root}/v1"),
        (f"{root}/v4/embeddings/", f"{root}/v4"),
    ]:
        for model in ("tiny", None):
            with pytest.raises(UserError, match=rf"did you mean {meant}\?"):
                await check(url, model=model)
    with pytest.raises(UserError, match="status 404"):
        await check(f"{root}/v1", model=None)
    server.close()


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


@pytest.mark.parametrize("serves", ["classify", "score", "embed"])
@run_async
async def test_a_server_that_a_run_before_left_asleep_is_woken_before_it_is_tried(
    server: FaultyServer, serves: str
) -> None:
    for _ in range(2):
        model = ServedModel(ServerSettings(urls=[server.url], serves=serves, offload=True, retries=0), [server.url])
        await model.check()
        await model.sleep()
        asked = len(server.requests)
        await model.check()  # nobody wakes it for this
        assert (server.asleep, len(server.requests)) == (True, asked)
        await model.close()
