"""What a managed server is called, how it is started, and which settings a command cannot follow."""

import asyncio
from pathlib import Path

import pytest
from pydantic import ValidationError

from rewardsmith.engines.managed.commands import command_of, environment_of
from rewardsmith.engines.managed.naming import PIECE, PIECES, served_name
from rewardsmith.engines.settings import ManagedSettings
from tests.engines.test_managed import managed


def test_an_identity_depends_on_the_weights_and_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(folder: str, weights: bytes) -> str:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "model.safetensors").write_bytes(weights)
        return str(tmp_path / folder)

    large = PIECES * PIECE * 2
    one, same = make("one/final", bytes(large)), make("two/final", bytes(large))
    other = make("three/final", bytes(large - PIECE) + bytes([1]) * PIECE)
    small = make("four/final", b"a")
    monkeypatch.chdir(tmp_path)
    assert served_name(one) == served_name(same) == served_name("one/final") == served_name("one/../one/final/")
    assert len({served_name(folder) for folder in (one, other, small, make("five/final", b"b"))}) == 4
    assert served_name(one).startswith("final-")
    assert served_name("org/judge-7b") == "org/judge-7b"

    def identity(**settings: object) -> str:
        return asyncio.run(managed(tmp_path, **settings).identity())

    assert identity(model=one, port=1234) == identity(model="one/final")
    different = [{}, {"version": "2"}, {"body": {"reasoning_effort": "low"}}, {"model": small}]
    assert len({identity(**{"model": one, **settings}) for settings in different}) == 4


def words(**settings: object) -> str:
    values = {"command": "vllm", "model": "org/m", "python": "/env/python", **settings}
    return " ".join(command_of(ManagedSettings(**values), name="m-1", port=8123))  # type: ignore[arg-type]


def test_the_command_of_vllm() -> None:
    plain = words()
    assert plain.startswith("/env/python -m vllm.entrypoints.openai.api_server --model org/m --served-model-name m-1 ")
    assert "--host 127.0.0.1 --port 8123 --tensor-parallel-size 1" in plain
    for absent in ("--gpu-memory", "--max-model-len", "--enable-sleep", "--runner"):
        assert absent not in plain
    more = words(tensor_parallel=2, memory=0.4, max_length=4096, sleeps=True, arguments=["--dtype", "float32"])
    assert "--tensor-parallel-size 2" in more
    assert "--gpu-memory-utilization 0.4 --max-model-len 4096 --enable-sleep-mode" in more
    assert more.endswith("--dtype float32")
    assert words(serves="classify").endswith("--runner pooling --convert classify")
    assert words(serves="score").endswith("--runner pooling")
    assert words(serves="embed").endswith("--runner pooling --convert embed")


def test_the_commands_of_the_others() -> None:
    assert words(command="sglang", memory=0.5, max_length=99, tensor_parallel=2) == (
        "/env/python -m sglang.launch_server --model-path org/m --served-model-name m-1 --host 127.0.0.1 --port 8123"
        " --tp-size 2 --log-level-http warning --mem-fraction-static 0.5 --context-length 99"
    )
    assert words(command="sglang", serves="embed").endswith("--is-embedding")
    assert words(command="transformers") == (
        "/env/python -m transformers.cli.transformers serve org/m --host 127.0.0.1 --port 8123 --continuous-batching"
    )
    own = ["serve", "{model}", "--at={host}:{port}", '{"a": 1}', "{other}"]
    filled = words(command=own, python=None, model="{port}", arguments=["{port}"])
    assert filled == 'serve {port} --at=127.0.0.1:8123 {"a": 1} {other} {port}'  # in one pass, placeholders alone


def test_variables_of_the_user_win(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ManagedSettings(command="vllm", model="m", environment={"PYTHONUNBUFFERED": "0"})
    monkeypatch.delenv("VLLM_NO_USAGE_STATS", raising=False)
    assert environment_of(settings)["VLLM_NO_USAGE_STATS"] == "1"
    assert environment_of(settings)["PYTHONUNBUFFERED"] == "0"
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "0")
    assert environment_of(settings)["VLLM_NO_USAGE_STATS"] == "0"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": "vlm"}, "unknown command 'vlm'.*Did you mean \"vllm\""),
        ({"command": "vllm serve m"}, "write a command of your own as a list"),
        ({"command": []}, "the command is empty"),
        ({"command": ["serve", "m"]}, r"must say \{port\} somewhere"),
        ({"command": ["serve", "{port}"], "memory": 0.5}, "a command of your own cannot be told memory"),
        ({"command": ["serve", "{port}"], "python": "p"}, "cannot be told python: write it into the command"),
        ({"command": "sglang", "sleeps": True}, "the command 'sglang' cannot be told sleeps: use vllm"),
        ({"command": "transformers", "max_length": 9}, "cannot be told max_length"),
        ({"command": "transformers", "serves": "embed"}, "cannot serve 'embed': use vllm"),
        ({"command": "sglang", "serves": "classify"}, "the command 'sglang' cannot serve 'classify': use vllm"),
        ({"command": "vllm", "devices": [0], "tensor_parallel": 2}, "tensor_parallel is 2, and devices names 1"),
    ],
)
def test_settings_that_a_command_cannot_follow_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ManagedSettings(model="m", **settings)  # type: ignore[arg-type]


def test_settings_that_go_together_are_accepted() -> None:
    ManagedSettings(model="m", command=["serve"], port=8000)
    ManagedSettings(model="m", command="vllm", devices=[0, 1], tensor_parallel=2, sleeps=True, memory=0.5)
