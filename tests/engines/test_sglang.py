"""Reward models and sleep on SGLang servers, by its documented contract."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rewardsmith.engines import ModelSettings
from rewardsmith.engines.client import ServedModel
from rewardsmith.engines.conversation_rows import conversation_rows, ratings
from rewardsmith.engines.embedded.chat_model import EmbeddedRater
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.managed.server_process import server_environment
from rewardsmith.engines.model_settings import ManagedSettings, ServerSettings
from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError
from rewardsmith.types import Message
from tests.engines.call_helpers import run_async
from tests.engines.sglang_double import SglangServer
from tests.engines.test_rater import ANSWERS, write_folder


def talk(answer: str) -> list[Message]:
    return [Message("system", "be brief"), Message("user", "why?"), Message("assistant", answer)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder("tiny-qwen3", tmp_path_factory.mktemp("rm") / "rm")


def served(*servers: SglangServer, **settings: Any) -> ServedModel:
    urls = [server.url for server in servers]
    table = {"urls": urls, "api": "sglang", "serves": "classify", "backoff": 0.001, "retries": 0} | settings
    return ServedModel(ServerSettings(**table), urls, name="rm")


@run_async
async def test_ratings_are_those_of_the_same_weights_in_this_process(folder: Path) -> None:
    engine = EmbeddedEngine.open(ModelSettings(init=str(folder), head="scalar", device="cpu"), name="rm")
    rater = EmbeddedRater(engine)

    def reward(ids: list[int]) -> list[float]:
        rows = conversation_rows([talk("")], [np.array(ids, dtype=np.int32)])
        return [float(ratings(engine.values(rows), rows)[0])]

    conversations = [talk(text) for text in (*ANSWERS, "<|im_end|> not a token")]
    async with SglangServer(reward) as server, served(server, tokenizer=str(folder)) as model:
        await model.check()
        assert await model.rate(conversations) == pytest.approx(await rater.rate(conversations), abs=1e-5)
        sent = [body for path, body in server.requests if path == "/classify"]
        assert {frozenset(body) for body in sent} == {frozenset({"model", "input_ids"})}
        assert model.usage.prompt_tokens == sum(len(body["input_ids"]) for body in sent)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ([0.1, 0.2], "refused", "2 outputs: a reward needs a single one"),
        ([], "unparsable", "not a finite number"),
        ([True], "unparsable", "not a finite number"),
        ("1.0", "unparsable", "no embedding"),
        ([[0.5]], "unparsable", "not a finite number"),
    ],
)
def test_what_is_no_reward_is_a_failure(folder: Path, value: object, kind: str, message: str) -> None:
    async def main() -> None:
        async with SglangServer(lambda ids: value) as server, served(server, tokenizer=str(folder)) as model:
            with pytest.raises(ModelCallError, match=message) as raised:
                await model.rate([talk("a")])
            assert raised.value.kind == kind
            assert model.usage.failed == 1

    asyncio.run(main())


def test_a_reward_model_needs_a_tokenizer_with_a_chat_template(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="set tokenizer to its folder or Hugging Face id"):
        ServerSettings(urls=["http://localhost:1/v1"], api="sglang", serves="classify")

    async def main() -> None:
        async with SglangServer(lambda ids: [1.0]) as server, served(server, tokenizer=str(tmp_path)) as model:
            with pytest.raises(UserError, match=r"models.rm.*models.rm.tokenizer: .*config.json"):
                await model.check()

    asyncio.run(main())


# ---- sleep -----------------------------------------------------------------------------------------------------------


@run_async
async def test_a_server_is_never_told_what_would_end_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewardsmith.engines.client.server_sleep.IDLE_PAUSE", 0.001)
    async with SglangServer(lambda ids: [1.5]) as a, SglangServer(lambda ids: [1.5]) as b:
        model = served(a, b, tokenizer=str(folder), offload=True)
        await model.check()
        await model.wake()  # both are awake
        a.abandoned = 3
        await model.sleep()
        await model.sleep()
        await model.check()  # and no call while they sleep
        assert (a.asleep, b.asleep) == (True, True)
        assert a.paths.count("/flush_cache") == 4
        await model.wake()
        await model.wake()
        assert await model.rate([talk("a"), talk("b")]) == [1.5, 1.5]
        await model.sleep()
        await model.close()  # the next run finds them awake
        assert [a.asleep, b.asleep, a.dead, b.dead] == [False] * 4
        assert a.paths.count("/release_memory_occupation") == a.paths.count("/resume_memory_occupation") == 2


@run_async
async def test_a_lost_reply_is_not_repeated_and_the_other_server_keeps_its_state(folder: Path) -> None:
    async with SglangServer(lambda ids: [1.5]) as a, SglangServer(lambda ids: [1.5]) as b:
        model = served(a, b, tokenizer=str(folder), offload=True)
        a.lose_next_reply = True
        with pytest.raises(
            ModelCallError, match=r"/release_memory_occupation: .* unknown whether .*: restart it"
        ) as error:
            await model.sleep()
        assert error.value.kind == "crashed"  # not unreachable: it may hold device memory
        assert a.paths.count("/release_memory_occupation") == 1
        await model.close()
        assert [a.dead, b.dead] == [False, False]


@pytest.mark.parametrize(
    ("flag", "why"),
    [("enable_memory_saver", "could not sleep"), ("enable_weights_cpu_backup", "would wake without weights")],
)
def test_a_server_without_the_flags_of_sleep_is_refused_before_the_run(folder: Path, flag: str, why: str) -> None:
    async def main() -> None:
        async with SglangServer(lambda ids: [1.5], **{flag: False}) as server:
            async with served(server, tokenizer=str(folder)) as model:
                await model.check()
            async with served(server, tokenizer=str(folder), offload=True) as model:
                with pytest.raises(UserError, match=f"{why}: start SGLang with --enable-memory-saver --enable-weights"):
                    await model.check()

    asyncio.run(main())


def test_the_environment_of_a_managed_server_that_sleeps() -> None:
    table = {"command": "sglang", "model": "m", "offload": True}
    found = server_environment(ManagedSettings(**table))  # type: ignore[arg-type]
    assert found["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false"
    assert "VLLM_SERVER_DEV_MODE" not in found
