"""Servers that the run starts: command, identity, messages, and errors of a start. The server is `small_server`."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from rewardsmith.engines.managed import ManagedModel, managed_model
from rewardsmith.engines.managed.managed_model import SAMPLE, SAMPLES, served_name
from rewardsmith.engines.managed.server_process import server_command, server_environment
from rewardsmith.engines.model_settings import ManagedSettings
from rewardsmith.errors import UserError
from rewardsmith.llm import ChatRequest, ModelCallError
from rewardsmith.types import Message
from tests.engines.call_helpers import run_async
from tests.engines.processes import alive

SERVER = str(Path(__file__).with_name("small_server.py"))
COMMAND = [sys.executable, SERVER, "--model", "{model}", "--host", "{host}", "--port", "{port}"]


def managed(folder: Path, *arguments: object, log: list[str] | None = None, **settings: object) -> ManagedModel:
    values = {"command": COMMAND, "model": "small", "backoff": 0.05, "retries": 2, "startup_timeout": 60.0, **settings}
    made = ManagedSettings(arguments=list(arguments), **values)  # type: ignore[arg-type]
    return ManagedModel(made, name="judge", folder=folder, log=([] if log is None else log).append)


def question(text: str = "hello") -> ChatRequest:
    return ChatRequest([Message("user", text)], deadline=60.0)


async def pid_of(model: ManagedModel) -> int:
    return int((await model.chat(question())).text)


@run_async
async def test_the_first_call_starts_the_server_and_close_stops_it(tmp_path: Path) -> None:
    log: list[str] = []
    model = managed(tmp_path, "--after", "0.3", log=log)
    pid = await pid_of(model)
    assert (model.usage.calls, model.usage.tokens) == (1, 1)
    assert alive(pid)
    assert await pid_of(model) == pid
    await model.check()
    await model.close()
    assert not alive(pid)
    await model.close()
    assert "starting a server at http://127.0.0.1:" in log[0]
    assert "ready after" in log[1]


@run_async
async def test_replicas_share_the_load_and_one_that_dies_is_replaced(tmp_path: Path) -> None:
    log: list[str] = []
    settings = ManagedSettings(command=COMMAND, model="small", replicas=3, restarts=1, retries=5, backoff=0.05)
    model = managed_model(settings, name="judge", folder=tmp_path, log=log.append)
    await model.check()
    assert sorted(file.name for file in tmp_path.glob("*.log")) == ["judge-2.log", "judge-3.log", "judge.log"]

    async def pids() -> set[int]:
        return {int(reply.text) for reply in await asyncio.gather(*(model.chat(question()) for _ in range(24)))}

    first = await pids()
    assert len(first) == 3
    assert await model.identity() == await managed(tmp_path).identity()
    victim, others = min(first), first - {min(first)}
    for given_up in (False, True):  # it is restarted once, then the others go on without it
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(120):
            while not ((now := await pids() - {victim}) > others or (given_up and any("go on" in t for t in log))):
                assert now == others
                await asyncio.sleep(0.05)
        victim = max(now - others, default=0)
    assert (now, victim) == (others, 0)
    assert model.usage.failed == 0
    assert sum("go on without it" in text for text in log) == 1
    await model.close()
    assert not any(map(alive, others))


@run_async
async def test_replicas_that_all_die_at_once_fail_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(server: ManagedModel) -> None:
        """Return as after a health check; the server is dead by now."""

    settings = ManagedSettings(command=COMMAND, model="small", replicas=2, retries=0)
    model = managed_model(settings, name="judge", folder=tmp_path, log=print)
    monkeypatch.setattr(ManagedModel, "start", start)
    with pytest.raises(ModelCallError, match=r"models\.judge: all its servers died") as found:
        await model.chat(question())
    assert found.value.kind == "crashed"
    await model.close()


def test_replicas_on_one_machine_have_gpus_of_their_own(tmp_path: Path) -> None:
    settings = ManagedSettings(command="vllm", model="small", replicas=2, tensor_parallel_size=2, devices=[4, 5, 6, 7])
    model = managed_model(settings, name="judge", folder=tmp_path, log=print)
    seen = [server_environment(server._settings)["CUDA_VISIBLE_DEVICES"] for server in model._servers]  # type: ignore[union-attr]
    assert seen == ["4,5", "6,7"]
    with pytest.raises(UserError, match="name 4 GPUs in devices"):
        managed_model(settings.model_copy(update={"devices": None}), name="judge", folder=tmp_path, log=print)
    with pytest.raises(ValidationError, match="2 of 2 replicas, and devices has 3"):
        ManagedSettings(command="vllm", model="m", replicas=2, tensor_parallel_size=2, devices=[0, 1, 2])


@run_async
async def test_sleep_and_wake_reach_the_server(tmp_path: Path) -> None:
    model = managed(tmp_path, offload=True)
    await model.sleep()  # nothing runs yet: nothing to do
    await model.wake()
    await model.sleep()
    await model.wake()
    await model.close()
    requests = [line for line in (tmp_path / "judge.log").read_text().split() if line.startswith("/")]
    assert requests == ["/wake_up", "/sleep?level=1", "/wake_up"]


def test_secrets_of_a_server_come_from_the_environment_and_are_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, reference = "hunter2-hunter2-hunter2", {"env": "MY_SECRET"}

    async def run() -> None:
        log: list[str] = []
        model = managed(tmp_path, environment={"FLAVOUR": reference}, log=log)
        try:
            assert (await model.chat(question("variable FLAVOUR"))).text == secret
        finally:
            await model.close()
        assert secret not in "\n".join([*log, await model.identity()])

    with pytest.raises(ModelCallError, match=r"set the environment variable MY_SECRET"):
        asyncio.run(run())
    monkeypatch.setenv("MY_SECRET", secret)
    asyncio.run(run())
    with pytest.raises(UserError, match=r"(?s)command: .*--fail.*its last lines") as caught:
        asyncio.run(managed(tmp_path, "--fail", reference).check())
    assert "hunter2" not in str(caught.value)


# ---- what goes wrong at the start ------------------------------------------------------------------------------------


def refusal(model: ManagedModel) -> str:
    with pytest.raises(UserError) as caught:
        asyncio.run(model.check())
    return str(caught.value)


def test_a_server_that_ends_at_once_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    text = refusal(managed(tmp_path, "--fail", "no such model: small"))
    assert "models.judge: the server ended with status 3 before it was healthy" in text
    assert "small_server.py --model small --host 127.0.0.1 --port" in text
    assert str(tmp_path / "judge.log") in text
    assert text.rstrip().endswith("no such model: small")
    assert "    line 39" in text
    assert "line 10\n" not in text  # only the last thirty lines
    assert "\x1b" not in text


def test_a_server_that_is_never_healthy_is_stopped(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    for seconds in (1.5, 20.0):  # a busy machine may need longer to start it at all
        text = refusal(managed(tmp_path, "--after", "600", "--child", str(pids), startup_timeout=seconds))
        assert f"was not healthy within {seconds:g} s (startup_timeout), and was stopped" in text
        if started := pids.read_text().split() if pids.exists() else []:
            break
    assert [alive(int(pid)) for pid in started] == [False, False]


def test_a_server_that_is_not_installed(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'vllm'\"\nexit 1\n")
    python.chmod(0o755)
    text = refusal(managed(tmp_path, command="vllm", python=str(python)))
    assert "Set models.judge.python to the interpreter of an environment that has vllm" in text
    assert "models.judge.python: there is no program" in refusal(managed(tmp_path, command="vllm", python="/no/python"))


@run_async
async def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as other:
        with pytest.raises(UserError, match=r"models\.judge\.port = \d+: .*Address already in use"):
            await managed(tmp_path, port=other.sockets[0].getsockname()[1]).check()


@run_async
async def test_the_name_of_the_model_at_the_server(tmp_path: Path) -> None:
    for model, lists, expected in (("llama3", "qwen,llama3:latest", "llama3:latest"), ("a.gguf", "x", "x")):
        judge = managed(tmp_path, "--lists", lists, model=model)
        await judge.check()
        assert (await judge.chat(question("model"))).text == expected
        await judge.close()
    with pytest.raises(UserError, match=r"models\.judge\.model: the server has 2 models: mistral, qwen.* llama3"):
        await managed(tmp_path, "--lists", "qwen,mistral", model="llama3").check()


# ---- identity --------------------------------------------------------------------------------------------------------


def identity(folder: Path, *arguments: str, **settings: object) -> str:
    return asyncio.run(managed(folder, *arguments, **settings).identity())


def test_an_identity_depends_on_the_weights_and_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(folder: str, weights: bytes) -> str:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "model.safetensors").write_bytes(weights)
        return str(tmp_path / folder)

    large = SAMPLES * SAMPLE * 2
    one, same = make("one/final", bytes(large)), make("two/final", bytes(large))
    others = [make("three/final", bytes(large - SAMPLE) + bytes([1]) * SAMPLE), make("four/final", b"a")]
    monkeypatch.chdir(tmp_path)
    assert served_name(one) == served_name(same) == served_name("one/final") == served_name("one/../one/final/")
    assert len({served_name(folder) for folder in (one, *others, make("five/final", b"b"))}) == 4
    assert served_name(one).startswith("final-")
    assert served_name("org/judge-7b") == "org/judge-7b"
    assert identity(tmp_path, model=one) == identity(tmp_path, model="one/final")


def test_all_that_changes_replies_is_part_of_the_identity(tmp_path: Path) -> None:
    different: list[dict[str, object]] = [{}, {"version": "2"}, {"body": {"reasoning_effort": "low"}}]
    different += [{"model": "other"}, {"serves": "classify"}, {"environment": {"VLLM_ATTENTION_BACKEND": "s3cret"}}]
    different += [{"command": ["serve", "--quantize", "{port}"]}, {"command": "vllm", "max_model_len": 100}]
    found = {identity(tmp_path, **settings) for settings in different}
    assert len(found | {identity(tmp_path, "--quantization", "fp8")}) == len(different) + 1
    assert "s3cret" not in "".join(found)  # it may be a key, and an identity is shown
    same: list[dict[str, object]] = [{"deadline": 3.0}, {"devices": [1]}, {"startup_timeout": 5.0}, {"restarts": 0}]
    assert {identity(tmp_path, **settings) for settings in same} == {identity(tmp_path)}


# ---- commands --------------------------------------------------------------------------------------------------------


def words(**settings: object) -> str:
    values = {"command": "vllm", "model": "org/m", "python": "/env/python", **settings}
    return " ".join(server_command(ManagedSettings(**values), name="m-1", port=8123))  # type: ignore[arg-type]


def test_the_commands_of_servers() -> None:
    assert words(offload=True, gpu_memory_utilization=0.4, max_model_len=4096, arguments=["--dtype", "float32"]) == (
        "/env/python -m vllm.entrypoints.openai.api_server --model org/m --served-model-name m-1"
        " --tensor-parallel-size 1 --uvicorn-log-level warning --gpu-memory-utilization 0.4 --max-model-len 4096"
        " --enable-sleep-mode --host 127.0.0.1 --port 8123 --dtype float32"
    )
    assert "--runner pooling --convert classify --host" in words(serves="classify")
    assert "--runner pooling --host" in words(serves="score")
    assert "--runner pooling --convert embed --host" in words(serves="embed")
    assert words(command="sglang", gpu_memory_utilization=0.5, max_model_len=99, tensor_parallel_size=2) == (
        "/env/python -m sglang.launch_server --model-path org/m --served-model-name m-1"
        " --tp-size 2 --log-level-http warning --mem-fraction-static 0.5 --context-length 99"
        " --host 127.0.0.1 --port 8123"
    )
    assert "--is-embedding --host" in words(command="sglang", serves="embed")
    sleeps = "--is-embedding --enable-memory-saver --enable-weights-cpu-backup --host"
    assert sleeps in words(command="sglang", serves="classify", offload=True)
    assert words(command="transformers") == (
        "/env/python -m transformers.cli.transformers serve org/m --continuous-batching --host 127.0.0.1 --port 8123"
    )
    own = ["serve", "{model}", "--at={host}:{port}", '{"a": 1}', "{other}"]
    filled = words(command=own, python=None, model="{port}", arguments=["{port}"])
    assert filled == 'serve {port} --at=127.0.0.1:8123 {"a": 1} {other} {port}'  # in one pass, placeholders alone


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": "vlm"}, "unknown command 'vlm'.*Did you mean \"vllm\""),
        ({"command": ["serve", "m"]}, r"must have \{port\} somewhere"),
        ({"command": ["serve", "{port}"], "python": "p"}, "does not take python: write it into the command"),
        ({"command": "sglang", "serves": "score"}, 'SGLang cannot serve "score": use serves = "classify", or vllm'),
        ({"command": "sglang", "api": "vllm"}, "'sglang' does not start a server with api = \"vllm\""),
        ({"command": "vllm", "api": "sglang"}, "'vllm' does not start a server with api = \"sglang\""),
        ({"command": "vllm", "tokenizer": "m"}, "tokenizer has no effect without api"),
        ({"command": "transformers", "offload": True}, "the command 'transformers' does not take offload"),
        ({"command": "transformers", "serves": "embed"}, "cannot serve 'embed': use vllm"),
        ({"command": "vllm", "devices": [0], "tensor_parallel_size": 2}, "tensor_parallel_size is 2, and devices"),
    ],
)
def test_settings_that_a_command_cannot_follow_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ManagedSettings(model="m", **settings)  # type: ignore[arg-type]
