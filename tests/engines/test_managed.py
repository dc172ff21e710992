"""Servers that the run starts: what is started, what is told, what is found wrong. The server is `small_server`."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from rewardsmith.engines.managed import ManagedModel
from rewardsmith.engines.managed.server_process import ServerLog
from rewardsmith.engines.model_settings import ManagedSettings
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, ModelCallError
from rewardsmith.types import Message
from tests.engines.asked import run_async
from tests.engines.faulty import FaultyServer
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


def test_many_askers_start_one_server(tmp_path: Path) -> None:
    async def run() -> set[int]:
        told = Told()
        model = managed(tmp_path, told=told)
        try:
            pids = await asyncio.gather(*(pid_of(model) for _ in range(20)), model.check())
            assert sum("starting a server" in line for line in told) == 1
            return {pid for pid in pids if pid is not None}
        finally:
            await model.close()

    assert len(asyncio.run(run())) == 1


@run_async
async def test_an_asker_that_is_cancelled_does_not_stop_the_start(tmp_path: Path) -> None:
    told = Told()
    model = managed(tmp_path, "--after", "0.5", told=told)
    try:
        impatient = asyncio.create_task(model.check())
        other = asyncio.create_task(pid_of(model))
        await asyncio.sleep(0.2)
        impatient.cancel()
        assert await other > 0
        assert sum("starting a server" in line for line in told) == 1
    finally:
        await model.close()


@run_async
async def test_a_server_without_a_health_page_is_healthy_when_it_lists_its_models(tmp_path: Path) -> None:
    model = managed(tmp_path, "--no-health")
    try:
        await model.check()
    finally:
        await model.close()


def test_the_server_sees_the_environment_of_the_recipe(tmp_path: Path) -> None:
    async def run() -> list[str]:
        model = managed(tmp_path, environment={"FLAVOUR": "plain"}, devices=[3, 1], offload=True)
        try:
            names = ["FLAVOUR", "CUDA_VISIBLE_DEVICES", "VLLM_SERVER_DEV_MODE", "PYTHONUNBUFFERED", "PATH"]
            return [(await model.chat(question(f"variable {name}"))).text for name in names]
        finally:
            await model.close()

    assert asyncio.run(run()) == ["plain", "3,1", "1", "1", os.environ["PATH"]]


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


@run_async
async def test_a_stranger_that_repeats_the_key_in_its_list_of_models_does_not_get_it_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "hunter2-hunter2")

    async with FaultyServer(models=["hunter2-hunter2", "other"]) as stranger:
        model = managed(tmp_path, port=stranger.port, api_key_env="JUDGE_KEY")
        with pytest.raises(UserError, match="other") as caught:
            await model.check()
        assert "hunter2" not in str(caught.value)
        await model.close()


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
    model = managed(tmp_path, "--after", "600", "--child", str(pids), "--stubborn", startup_timeout=1.5)
    with pytest.raises(UserError, match=r"was not healthy within 1\.5 s \(startup_timeout\), and was stopped"):
        asyncio.run(model.check())
    assert not any(alive(int(pid)) for pid in pids.read_text().split())


def test_a_health_page_that_hangs_does_not_outlast_the_limit(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(UserError, match="was not healthy within 1 s"):
        asyncio.run(managed(tmp_path, "--hang", startup_timeout=1.0).check())
    assert time.monotonic() - begun < 8  # a look at a server may last ten seconds


@run_async
async def test_a_key_is_looked_at_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    model = managed(tmp_path, api_key_env="JUDGE_KEY", startup_timeout=30.0)
    with pytest.raises(UserError, match="JUDGE_KEY is not set"):
        await model.check()
    assert not (tmp_path / "judge.log").exists()
    monkeypatch.setenv("JUDGE_KEY", "secret\n")  # as a file that ends with a line gives it

    await model.check()
    await model.close()


def test_progress_is_told_with_the_last_line_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewardsmith.engines.managed.managed_model.PROGRESS_INTERVAL", 0.2)

    async def run() -> Told:
        told = Told()
        model = managed(tmp_path, "--after", "1", told=told)
        await model.check()
        await model.close()
        return told

    assert " s: started with" in asyncio.run(run())


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    model = managed(tmp_path, command=["no-such-program", "{port}"])
    with pytest.raises(UserError, match=r"models\.judge\.command: there is no program 'no-such-program'"):
        asyncio.run(model.check())
    model = managed(tmp_path, command="vllm", python="/nowhere/python")
    with pytest.raises(UserError, match=r"models\.judge\.python: there is no program '/nowhere/python'"):
        asyncio.run(model.check())


def test_a_server_that_is_not_installed_says_where_it_may_be(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'vllm'\"\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(UserError, match=r"Set models\.judge\.python to the interpreter of .* that has vllm"):
        asyncio.run(managed(tmp_path, command="vllm", python=str(python)).check())


def test_the_folder_of_the_user_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=f"--model {tmp_path}/weights --host"):
        asyncio.run(managed(tmp_path, "--fail", "seen", model="~/weights").check())


# ---- the log ---------------------------------------------------------------------------------------------------------


def test_the_end_of_a_log_is_readable(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "folder" / "a.log")
    assert log.tail() == []
    log.rotate()
    log.file.write_bytes(b"x" * 3_000_000 + b"\n\x1b[32mgreen\x1b[0m\n\n 10%\r 100% done\r\nbad \xff\x00 bytes\n")
    assert log.tail(3) == ["green", "100% done", "bad \ufffd  bytes"]
    assert len(log.tail(9)[0]) == 500
    log.rotate()
    assert log.tail() == []
    assert "green" in (tmp_path / "folder" / "a.log.1").read_bytes().decode("utf-8", "replace")
