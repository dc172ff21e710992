"""What a managed server is called, how it is started, and which settings a command cannot follow."""

import asyncio
from pathlib import Path

import pytest
from pydantic import ValidationError

from rewardsmith.engines.managed.managed_model import SAMPLE, SAMPLES, served_name
from rewardsmith.engines.managed.server_process import server_command
from rewardsmith.engines.model_settings import ManagedSettings
from tests.engines.test_managed import managed


def test_an_identity_depends_on_the_weights_and_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(folder: str, weights: bytes) -> str:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "model.safetensors").write_bytes(weights)
        return str(tmp_path / folder)

    large = SAMPLES * SAMPLE * 2
    one, same = make("one/final", bytes(large)), make("two/final", bytes(large))
    other = make("three/final", bytes(large - SAMPLE) + bytes([1]) * SAMPLE)
    small = make("four/final", b"a")
    monkeypatch.chdir(tmp_path)
    assert served_name(one) == served_name(same) == served_name("one/final") == served_name("one/../one/final/")
    assert len({served_name(folder) for folder in (one, other, small, make("five/final", b"b"))}) == 4
    assert served_name(one).startswith("final-")
    assert served_name("org/judge-7b") == "org/judge-7b"

    assert identity(tmp_path, model=one) == identity(tmp_path, model="one/final")


def identity(folder: Path, *arguments: str, **settings: object) -> str:
    return asyncio.run(managed(folder, *arguments, **settings).identity())


def test_all_that_changes_answers_is_part_of_the_identity(tmp_path: Path) -> None:
    different: list[dict[str, object]] = [{}, {"version": "2"}, {"body": {"reasoning_effort": "low"}}]
    different += [{"model": "other"}, {"serves": "classify"}, {"environment": {"VLLM_ATTENTION_BACKEND": "s3cret"}}]
    different += [{"command": ["serve", "--quantize", "{port}"]}, {"command": "vllm", "max_model_len": 100}]
    found = {identity(tmp_path, **settings) for settings in different}
    assert len(found | {identity(tmp_path, "--quantization", "fp8")}) == len(different) + 1
    assert "s3cret" not in "".join(found)  # it may be a key, and an identity is shown
    same: list[dict[str, object]] = [{"deadline": 3.0}, {"devices": [1]}, {"startup_timeout": 5.0}, {"restarts": 0}]
    assert {identity(tmp_path, **settings) for settings in same} == {identity(tmp_path)}


def words(**settings: object) -> str:
    values = {"command": "vllm", "model": "org/m", "python": "/env/python", **settings}
    return " ".join(server_command(ManagedSettings(**values), name="m-1", port=8123))  # type: ignore[arg-type]


def test_the_server_command_vllm() -> None:
    assert words(offload=True, gpu_memory_utilization=0.4, max_model_len=4096, arguments=["--dtype", "float32"]) == (
        "/env/python -m vllm.entrypoints.openai.api_server --model org/m --served-model-name m-1"
        " --tensor-parallel-size 1 --uvicorn-log-level warning --gpu-memory-utilization 0.4 --max-model-len 4096"
        " --enable-sleep-mode --host 127.0.0.1 --port 8123 --dtype float32"
    )
    assert "--runner pooling --convert classify --host" in words(serves="classify")
    assert "--runner pooling --host" in words(serves="score")
    assert "--runner pooling --convert embed --host" in words(serves="embed")


def test_the_commands_of_the_others() -> None:
    assert words(command="sglang", gpu_memory_utilization=0.5, max_model_len=99, tensor_parallel_size=2) == (
        "/env/python -m sglang.launch_server --model-path org/m --served-model-name m-1"
        " --tp-size 2 --log-level-http warning --mem-fraction-static 0.5 --context-length 99"
        " --host 127.0.0.1 --port 8123"
    )
    assert "--is-embedding" in words(command="sglang", serves="embed")
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
        ({"command": "vllm serve m"}, "write a command of your own as a list"),
        ({"command": ["serve", "m"]}, r"must have \{port\} somewhere"),
        ({"command": ["serve", "{port}"], "python": "p"}, "does not take python: write it into the command"),
        ({"command": "sglang", "offload": True}, "the command 'sglang' does not take offload: use vllm"),
        ({"command": "transformers", "serves": "embed"}, "cannot serve 'embed': use vllm"),
        ({"command": "vllm", "devices": [0], "tensor_parallel_size": 2}, "tensor_parallel_size is 2, and devices"),
    ],
)
def test_settings_that_a_command_cannot_follow_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ManagedSettings(model="m", **settings)  # type: ignore[arg-type]
