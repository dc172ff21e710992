"""Servers that the run starts: what is started, what is told, what is found wrong. The server is `small_server`."""

import asyncio
import sys
from pathlib import Path

import pytest

from rewardsmith.engines.managed import ManagedModel
from rewardsmith.engines.model_settings import ManagedSettings
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, ModelCallError
from rewardsmith.types import Message
from tests.engines.call_helpers import run_async
from tests.engines.processes import alive

SERVER = str(Path(__file__).with_name("small_server.py"))
COMMAND = [sys.executable, SERVER, "--model", "{model}", "--host", "{host}", "--port", "{port}"]


class Told(list[str]):
    """What the user was told."""

    def __contains__(self, text: object) -> bool:
        return any(str(text) in line for line in self)


def managed(folder: Path, *arguments: str, told: list[str] | None = None, **settings: object) -> ManagedModel:
    values = {"command": COMMAND, "model": "small", "backoff": 0.05, "retries": 2, "startup_timeout": 60.0, **settings}
    settings_ = ManagedSettings(arguments=list(arguments), **values)  # type: ignore[arg-type]
    say = (Told() if told is None else told).append
    return ManagedModel(settings_, name="judge", folder=folder, log=say)


def question(text: str = "hello") -> ChatRequest:
    return ChatRequest([Message("user", text)], deadline=60.0)


async def pid_of(model: ManagedModel) -> int:
    return int((await model.chat(question())).text)


# ---- a life without trouble ------------------------------------------------------------------------------------------


@run_async
async def test_the_first_question_starts_the_server_and_close_stops_it(tmp_path: Path) -> None:
    told = Told()
    model = managed(tmp_path, "--after", "0.3", told=told)
    answer = await model.chat(question())
    assert isinstance(answer, ChatReply)
    assert (model.usage.calls, model.usage.tokens) == (1, 1)
    pid = int(answer.text)
    assert alive(pid)
    assert await pid_of(model) == pid
    await model.check()
    await model.close()
    assert not alive(pid)
    await model.close()
    assert "starting a server on port" in told
    assert "ready after" in told


def test_secrets_of_a_server_come_from_the_environment_and_are_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hunter2-hunter2-hunter2"
    reference = {"env": "MY_SECRET"}

    async def run(**settings: object) -> None:
        told: list[str] = []
        model = managed(tmp_path, environment={"FLAVOUR": reference}, told=told, **settings)
        try:
            assert (await model.chat(question("variable FLAVOUR"))).text == secret
        finally:
            await model.close()
        assert secret not in "\n".join([*told, await model.identity()])

    with pytest.raises(ModelCallError, match=r"set the environment variable MY_SECRET"):
        asyncio.run(run())
    monkeypatch.setenv("MY_SECRET", secret)
    asyncio.run(run())
    failing = managed(tmp_path, "--fail", reference)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"(?s)command: .*--fail.*its last lines") as caught:
        asyncio.run(failing.check())
    assert secret not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_sleep_and_wake_reach_the_server(tmp_path: Path) -> None:
    async def run() -> None:
        model = managed(tmp_path, offload=True)
        await model.sleep()  # nothing runs yet: nothing to do
        await model.wake()
        await model.sleep()
        await model.wake()
        await model.close()

    asyncio.run(run())
    orders = [line for line in (tmp_path / "judge.log").read_text().split() if line.startswith("/")]
    assert orders == ["/wake_up", "/sleep?level=1", "/wake_up"]


# ---- what goes wrong at the start ------------------------------------------------------------------------------------


def test_a_server_that_ends_at_once_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        asyncio.run(managed(tmp_path, "--fail", "no such model: small").check())
    text = str(caught.value)
    assert "models.judge: the server ended with status 3 before it was healthy" in text
    assert "small_server.py --model small --host 127.0.0.1 --port" in text
    assert str(tmp_path / "judge.log") in text
    assert text.rstrip().endswith("no such model: small")
    assert "    line 39" in text
    assert "line 10\n" not in text  # only the last thirty lines
    assert "\x1b" not in text


def test_a_server_that_is_never_healthy_is_stopped(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    model = managed(tmp_path, "--after", "600", "--child", str(pids), startup_timeout=1.5)
    with pytest.raises(UserError, match=r"was not healthy within 1\.5 s \(startup_timeout\), and was stopped"):
        asyncio.run(model.check())
    assert not any(alive(int(pid)) for pid in pids.read_text().split())


def test_a_server_that_is_not_installed_says_where_it_may_be(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'vllm'\"\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(UserError, match=r"Set models\.judge\.python to the interpreter of .* that has vllm"):
        asyncio.run(managed(tmp_path, command="vllm", python=str(python)).check())


# ---- the log ---------------------------------------------------------------------------------------------------------


# ---- ports and names


@pytest.mark.parametrize(
    ("model", "lists", "called"),
    [("llama3", "qwen,llama3:latest", "llama3:latest"), ("a.gguf", "x", "x")],
)
def test_a_server_that_lists_several_models_is_asked_for_ours(
    tmp_path: Path, model: str, lists: str, called: str
) -> None:
    async def run() -> str:
        judge = managed(tmp_path, "--lists", lists, model=model)
        try:
            await judge.check()
            return (await judge.chat(question("model"))).text
        finally:
            await judge.close()

    assert asyncio.run(run()) == called


def test_a_server_that_lists_only_others_is_refused(tmp_path: Path) -> None:
    model = managed(tmp_path, "--lists", "qwen,mistral", model="llama3")
    with pytest.raises(
        UserError, match=r"models\.judge\.model: the server has 2 models: mistral, qwen; none .* llama3"
    ):
        asyncio.run(model.check())


def test_something_else_on_the_port_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async def bang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(bang, "127.0.0.1", 0) as other:
            await managed(tmp_path, port=other.sockets[0].getsockname()[1]).check()

    with pytest.raises(UserError, match=r"models\.judge\.port = \d+: .*Address already in use"):
        asyncio.run(run())
