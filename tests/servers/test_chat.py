"""One vLLM server that is found, asked, killed and started again. The tests run in this order, and share it."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from rewardsmith.engines.client import ServedModel
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.managed import ManagedModel
from rewardsmith.engines.model_settings import ClientSettings, ModelSettings
from rewardsmith.engines.protocol import Row
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, ModelCallError
from rewardsmith.types import Message, Prompt
from tests.audit.audited import audited, by_name, sums
from tests.engines.processes import alive, eventually
from tests.servers.vllm import language_model, managed

SUMS = [f"{a}+{b}-{c}?" for a in (1, 5, 9) for b in (2, 7) for c in (3, 4, 8)]


@dataclass
class Running:
    model: ManagedModel
    folder: Path
    told: list[str]

    @property
    def url(self) -> str:
        return f"{self.model._root}/v1"

    def processes(self) -> list[int]:
        """Return the supervisor, the server and all that they have started."""
        assert self.model._process is not None
        found = [self.model._process._popen.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*"):
                found += map(int, (task / "children").read_text().split())
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("chat")
    language_model(folder / "judge")
    told: list[str] = []
    model = managed(folder / "judge", folder, told, backoff=0.1, retries=2)
    try:
        asyncio.run(model.check())
        yield Running(model, folder, told)
    finally:
        asyncio.run(model.close())


def chat(text: str, **settings: object) -> ChatRequest:
    return ChatRequest([Message("user", text)], **settings)  # type: ignore[arg-type]


def answers(model: ManagedModel | ServedModel, questions: list[ChatRequest]) -> list[ChatReply]:
    async def run() -> list[ChatReply]:
        return await asyncio.gather(*(model.chat(question) for question in questions))

    return asyncio.run(run())


def test_the_model_is_found_and_answers(running: Running) -> None:
    served = ServedModel(ClientSettings(), [running.url])

    async def run() -> tuple[str, ChatReply]:
        await served.check()
        identity, answer = await served.identity(), await served.chat(chat("7+5-3?", max_tokens=12))
        await served.close()
        return identity, answer

    identity, answer = asyncio.run(run())
    assert json.loads(identity)["model"].startswith("judge-")  # the name that we gave it, found
    managed = json.loads(asyncio.run(running.model.identity()))  # it also says how the server was started
    assert managed | json.loads(identity) == managed
    assert answer.prompt_tokens == len("7+5-3?") + 2  # and the markers of the two roles
    assert 1 <= answer.tokens <= 12
    assert any("ready after" in line for line in running.told)


def test_a_model_that_is_not_there_is_refused_by_its_name(running: Running) -> None:
    served = ServedModel(ClientSettings(), [running.url], model="another")

    async def run() -> None:
        try:
            await served.check()
        finally:
            await served.close()

    with pytest.raises(UserError, match="has no model 'another'"):
        asyncio.run(run())


def test_an_answer_that_was_cut_off_says_so(running: Running) -> None:
    (cut,) = answers(running.model, [chat("1+1?", max_tokens=6)])
    assert (cut.truncated, cut.tokens) == (True, 6)
    last = cut.text[-1]
    (stopped,) = answers(running.model, [chat("1+1?", max_tokens=50, stop=(last,))])
    assert not stopped.truncated
    assert stopped.text == cut.text.partition(last)[0]


def test_a_prompt_that_is_too_long_is_refused(running: Running) -> None:
    with pytest.raises(ModelCallError) as caught:
        answers(running.model, [chat("1" * 9000)])
    assert caught.value.kind == "refused"


def test_log_probabilities_are_those_of_the_embedded_engine(running: Running) -> None:
    settings = ModelSettings(init=str(running.folder / "judge"), device="cpu", dtype="float32")
    engine = EmbeddedEngine.open(settings)
    compared = 0
    for asked in (
        [chat(text, max_tokens=16, logprobs=True) for text in SUMS],
        [ChatRequest(text, max_tokens=16, logprobs=True, temperature=1.0, seed=i) for i, text in enumerate(SUMS)],
    ):
        for question, answer in zip(asked, answers(running.model, asked), strict=True):
            if isinstance(question.prompt, str):
                prompt = engine.encode_text(question.prompt)
            else:
                prompt = engine.encode(Prompt("p", question.prompt))
            response = engine.encode_response(answer.text)[: len(answer.text) + (not answer.truncated)]
            if len(response) != answer.tokens:  # it wrote a special token, which is no part of the text
                continue
            expected = engine.logprobs([Row(prompt, response)])[0].numpy()
            np.testing.assert_allclose(answer.logprobs, expected, atol=1e-3)
            compared += 1
    assert compared > len(SUMS)


def test_an_audit_measures_a_judge_that_grades_at_random(running: Running) -> None:
    grade = {"structured_outputs": {"regex": "Total Score: ([0-9]|10)/10"}}
    # Few requests at a time: their prompts are then read in one piece each (see ARGUMENTS).
    judge = {"type": "server", "urls": [running.url], "body": grade, "concurrency": 3}
    reward = {"type": "rubric", "model": "judge", "criteria": "10 points for the right number.", "cache": ""}
    reward |= {"request": {"max_tokens": 40, "temperature": 1.0}, "models": {"judge": judge}}
    require = {"separation": 0.95, "inconsistency": 0.05, "failed": 0.0}
    audit = audited(reward, sums(4), prompts=4, max_attacks=6, require=require)
    found = by_name(audit)
    assert found["failed"]["value"] == 0
    assert (found["failed"]["passed"], audit["passed"]) == (True, False)
    assert found["separation"]["value"] < 0.95
    assert found["separation"]["count"] >= 4
    # Where a right answer has no more than a wrong one, by luck, attacks are not measured.
    assert "attack" in found or any("attacks cannot be measured there" in note for note in audit["notes"])
    assert found["inconsistency"]["passed"] is False
    assert found["inconsistency"]["value"] > 0.1


def test_a_server_that_is_killed_amid_questions_is_started_again(running: Running) -> None:
    before = running.processes()
    assert len(before) > 3  # vLLM has processes of its own

    async def run() -> tuple[list[ModelCallError], list[ChatReply]]:
        model = running.model
        killed = asyncio.Event()

        async def keep_asking(text: str) -> ModelCallError | None:
            while not killed.is_set():
                try:
                    await model.chat(chat(text, max_tokens=200, temperature=1.0))
                except ModelCallError as error:
                    return error
            return None

        asking = [asyncio.create_task(keep_asking(text)) for text in SUMS]
        await asyncio.sleep(0.5)
        os.kill(before[1], signal.SIGKILL)
        killed.set()
        failed = [error for error in await asyncio.gather(*asking) if error is not None]
        await model.check()
        return failed, list(await asyncio.gather(*(model.chat(chat(text, max_tokens=8)) for text in SUMS)))

    failed, after = asyncio.run(run())
    assert failed
    assert {error.kind for error in failed} == {"unreachable"}
    assert all(answer.tokens for answer in after)
    assert any("ended by signal 9 (SIGKILL); restart 1 of 2" in line for line in running.told)
    assert not any(alive(pid) for pid in before)


def test_no_process_is_left(running: Running) -> None:
    before = running.processes()
    assert all(alive(pid) for pid in before)
    asyncio.run(running.model.close())
    eventually(lambda: not any(alive(pid) for pid in before))
