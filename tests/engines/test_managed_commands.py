"""What a managed server is called, how it is started, and which settings a command cannot follow."""

import asyncio
from pathlib import Path

import pytest
from pydantic import ValidationError

from rewardsmith.engines.client import ServedModel
from rewardsmith.engines.managed.managed_model import SAMPLE, SAMPLES, served_name
from rewardsmith.engines.managed.server_process import server_command, server_environment
from rewardsmith.engines.model_settings import ClientSettings, ManagedSettings
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
    different: list[dict[str, object]] = [
        {},
        {"version": "2"},
        {"body": {"reasoning_effort": "low"}},
        {"model": "other"},
        {"serves": "classify"},
        {"serves": "score"},
        {"environment": {"VLLM_ATTENTION_BACKEND": "s3cret"}},
        {"command": ["serve", "--quantize", "{port}"]},
        {"command": "vllm"},
        {"command": "vllm", "max_model_len": 100},
    ]
    found = {identity(tmp_path, **settings) for settings in different}
    assert len(found | {identity(tmp_path, "--quantization", "fp8")}) == len(different) + 1
    assert "s3cret" not in "".join(found)  # it may be a key, and an identity is shown
    same: list[dict[str, object]] = [{"deadline": 3.0}, {"devices": [1]}, {"startup_timeout": 5.0}, {"restarts": 0}]
    assert {identity(tmp_path, **settings) for settings in same} == {identity(tmp_path)}


@pytest.mark.parametrize("file", ["judge.gguf", "m/config.json", "m/1_Pooling/config.json", "m/linked/config.json"])
def test_the_name_of_a_model_follows_its_files(tmp_path: Path, file: str) -> None:
    for name in ("judge.gguf", "m/config.json", "m/1_Pooling/config.json", "elsewhere/config.json", "m/.git/HEAD"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one")
    (tmp_path / "m" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "m" / "back").symlink_to(tmp_path / "m")
    model = str(tmp_path / Path(file).parts[0])
    before = served_name(model)
    (tmp_path / "m/.git/HEAD").write_text("two")
    assert served_name(model) == before
    assert before.startswith(f"{Path(model).name}-")
    (tmp_path / file).write_text("two")
    assert served_name(model) != before


def test_what_is_asked_of_a_server_is_part_of_its_identity() -> None:
    def of(serves: str) -> str:
        settings = ClientSettings(serves=serves)  # type: ignore[arg-type]
        return asyncio.run(ServedModel(settings, ["http://127.0.0.1:9/v1"], model="m").identity())

    assert len({of(serves) for serves in ("chat", "classify", "score", "embed")}) == 4


def words(**settings: object) -> str:
    values = {"command": "vllm", "model": "org/m", "python": "/env/python", **settings}
    return " ".join(server_command(ManagedSettings(**values), name="m-1", port=8123))  # type: ignore[arg-type]


def test_the_server_command_vllm() -> None:
    plain = words()
    assert plain.startswith("/env/python -m vllm.entrypoints.openai.api_server --model org/m --served-model-name m-1 ")
    assert plain.endswith("--host 127.0.0.1 --port 8123")
    assert "--tensor-parallel-size 1" in plain
    for absent in ("--gpu-memory", "--max-model-len", "--enable-sleep", "--runner"):
        assert absent not in plain
    more = words(
        tensor_parallel_size=2,
        gpu_memory_utilization=0.4,
        max_model_len=4096,
        offload=True,
        arguments=["--dtype", "float32"],
    )
    assert "--tensor-parallel-size 2" in more
    assert "--gpu-memory-utilization 0.4 --max-model-len 4096 --enable-sleep-mode" in more
    assert more.endswith("--dtype float32")
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


def test_variables_of_the_user_win(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ManagedSettings(command="vllm", model="m", environment={"PYTHONUNBUFFERED": "0"})
    monkeypatch.delenv("VLLM_NO_USAGE_STATS", raising=False)
    assert server_environment(settings)["VLLM_NO_USAGE_STATS"] == "1"
    assert server_environment(settings)["PYTHONUNBUFFERED"] == "0"
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "0")
    assert server_environment(settings)["VLLM_NO_USAGE_STATS"] == "0"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": "vlm"}, "unknown command 'vlm'.*Did you mean \"vllm\""),
        ({"command": "vllm serve m"}, "write a command of your own as a list"),
        ({"command": []}, "the command is empty"),
        ({"command": ["serve", "m"]}, r"must have \{port\} somewhere"),
        (
            {"command": ["serve", "{port}"], "gpu_memory_utilization": 0.5},
            "a command of your own does not take gpu_memory_utilization",
        ),
        ({"command": ["serve", "{port}"], "python": "p"}, "does not take python: write it into the command"),
        ({"command": "sglang", "offload": True}, "the command 'sglang' does not take offload: use vllm"),
        ({"command": "transformers", "max_model_len": 9}, "does not take max_model_len"),
        ({"command": "transformers", "serves": "embed"}, "cannot serve 'embed': use vllm"),
        ({"command": "sglang", "serves": "classify"}, "the command 'sglang' cannot serve 'classify': use vllm"),
        (
            {"command": "vllm", "devices": [0], "tensor_parallel_size": 2},
            "tensor_parallel_size is 2, and devices has 1",
        ),
    ],
)
def test_settings_that_a_command_cannot_follow_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ManagedSettings(model="m", **settings)  # type: ignore[arg-type]


def test_settings_that_go_together_are_accepted() -> None:
    ManagedSettings(model="m", command=["serve"], port=8000)
    ManagedSettings(
        model="m", command="vllm", devices=[0, 1], tensor_parallel_size=2, offload=True, gpu_memory_utilization=0.5
    )
