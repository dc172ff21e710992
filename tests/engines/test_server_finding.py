"""Which model a server has, whether it is there, and sleeping."""

import asyncio

import pytest

from rewardsmith.asking import CannotAnswer
from rewardsmith.engines.server import finding
from rewardsmith.engines.server.wire import Base
from rewardsmith.errors import UserError
from tests.engines.asked import client, kind_of, outcome, question
from tests.engines.faulty import FaultyServer, raw, status


def test_the_only_model_is_found_once_for_all_who_ask() -> None:
    looked = 0

    async def listed(server: FaultyServer, request: object, body: object) -> object:
        nonlocal looked
        looked += 1
        await asyncio.sleep(0.05)
        return await raw(b'{"data": [{"id": "Qwen/Q-7B"}]}')(server, request, body)  # type: ignore[arg-type]

    async def main() -> None:
        async with FaultyServer(models=["Qwen/Q-7B"]) as server:
            server.plan_models(*[listed] * 99)
            model = client(server, model=None)
            assert looked == 0
            answers = await asyncio.gather(*(model.ask(question()) for _ in range(20)))
            assert {answer.text for answer in answers} == {"echo: hi"}
            assert {body["model"] for body in server.bodies} == {"Qwen/Q-7B"}
            await model.identity()
            assert looked == 1
            await model.check()
            assert looked == 2
            await model.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("served", "wanted", "told"),
    [
        (["a", "b"], None, r"2 models: a, b\. Name one"),
        ([], None, "0 models: none"),
        (["llama-8b", "qwen-7b"], "qwen-7B-chat", 'Did you mean "qwen-7b".* It has: llama-8b, qwen-7b'),
        (["llama-8b"], "other", "no model 'other'.*It has: llama-8b"),
    ],
)
def test_a_wrong_model_is_told_before_anything_is_asked(served: list[str], wanted: str | None, told: str) -> None:
    async def main() -> None:
        async with FaultyServer(models=served) as server:
            model = client(server, model=wanted)
            with pytest.raises(UserError, match=told) as raised:
                await model.check()
            assert "models.judge.model" in str(raised.value)
            assert server.url in str(raised.value)
            assert kind_of(await outcome(model, question())) == "refused"
            assert model.usage.failed == 1
            await model.close()

    asyncio.run(main())


def test_all_addresses_must_have_the_model() -> None:
    async def main() -> None:
        async with FaultyServer(models=["a", "b"]) as one, FaultyServer(models=["a"]) as two:
            await client(one, two, model="a").check()
            with pytest.raises(UserError, match=rf"{two.url} has no model 'b'"):
                await client(one, two, model="b").check()
        async with FaultyServer(models=["a"]) as one, FaultyServer(models=["b"]) as two:
            with pytest.raises(UserError, match=r"different models.*'a'.*'b'"):
                await client(one, two, model=None).check()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (status(404), "status 404"),
        (raw(b"<html>Welcome</html>"), "sent no JSON"),
        (raw(b'{"data": [{"name": "x"}]}'), "without a name"),
        (status(401, "who"), "set key_from"),
        (status(400, "no"), "status 400"),
    ],
)
def test_a_list_that_a_user_must_mend(fault: object, told: str) -> None:
    async def main() -> None:
        async with FaultyServer() as server:
            server.plan_models(*[fault] * 3)  # type: ignore[list-item]
            with pytest.raises(UserError, match=told):
                await client(server, model=None).check()

    asyncio.run(main())


def test_a_server_without_a_list_is_believed_and_a_hiccup_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "_PAUSE", 0.001)

    async def main() -> None:
        async with FaultyServer() as server:
            server.plan_models(status(404))
            await client(server, model="tiny").check()
            server.plan_models("500", "reset")
            await client(server).check()
            server.plan_models(*["500"] * 3)
            with pytest.raises(CannotAnswer, match="status 500") as raised:
                await client(server).check()
            assert raised.value.kind == "unreachable"
            server.plan_models("503")
            with pytest.raises(CannotAnswer, match="status 503"):
                await client(server).check()
            with pytest.raises(UserError, match=r"is http://127.0.0.1:\d+/v1 meant\?"):
                await client(server.url.removesuffix("/v1")).check()

    asyncio.run(main())


def test_another_address_may_have_another_model() -> None:
    async def main() -> None:
        async with FaultyServer(models=["a"]) as one, FaultyServer(models=["b"]) as two:
            model = client(one, model=None)
            await model.ask(question())
            model.replace_urls([two.url])
            await model.ask(question())
            assert [body["model"] for body in one.bodies + two.bodies] == ["a", "b"]
            await model.close()

    asyncio.run(main())


def test_the_identity_is_of_the_weights_not_of_the_address() -> None:
    async def main() -> None:
        async with FaultyServer() as one, FaultyServer() as two:
            base = await client(one, model=None).identity()
            assert await client(two, model="tiny", concurrency=3).identity() == base
            others = [
                await client(one, model="other").identity(),  # it does not even have to be there
                await client(one, version="2").identity(),
                await client(one, body={"reasoning_effort": "low"}).identity(),
            ]
            assert len({base, *others}) == 4

    asyncio.run(main())


def test_sleeping_and_waking() -> None:
    async def main() -> None:
        async with FaultyServer() as one, FaultyServer() as two:
            model = client(one, two)
            await model.sleep()
            assert one.asleep
            assert two.asleep
            await model.wake()
            assert not one.asleep
            assert not two.asleep
            await two.stop()
            with pytest.raises(CannotAnswer):
                await model.sleep()
            await model.close()

    asyncio.run(main())


def test_a_server_that_cannot_sleep() -> None:
    async def main() -> None:
        async with FaultyServer() as server:
            server.sleepless = True
            with pytest.raises(UserError, match="VLLM_SERVER_DEV_MODE=1"):
                await client(server).sleep()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "chat", "classify"),
    [
        ("http://h:1/v1", "http://h:1/v1/chat", "http://h:1/classify"),
        ("http://h:1/v1/", "http://h:1/v1/chat", "http://h:1/classify"),
        ("http://h:1", "http://h:1/chat", "http://h:1/classify"),
        ("https://h/proxy/a%20b/v1", "https://h/proxy/a%20b/v1/chat", "https://h/proxy/a%20b/classify"),
        ("https://u:p@h/v1?version=2#x", "https://h/v1/chat?version=2", "https://h/classify?version=2"),
    ],
)
def test_where_the_verbs_are(url: str, chat: str, classify: str) -> None:
    base = Base.of(url)
    assert str(base.at("chat")) == chat
    assert str(base.at("classify", root=True)) == classify
    assert "version" not in base.shown
    assert "u:p" not in repr(base)


def test_proxies_are_for_others_than_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.test:3128")
    monkeypatch.setenv("https_proxy", "http://proxy.test:3129")
    monkeypatch.setenv("no_proxy", "inside.test")
    assert Base.of("http://api.test/v1").proxy == "http://proxy.test:3128"
    assert Base.of("https://api.test/v1").proxy == "http://proxy.test:3129"
    for url in ("http://localhost:1/v1", "http://127.0.0.1:1/v1", "http://[::1]:1/v1", "http://a.inside.test/v1"):
        assert Base.of(url).proxy is None
