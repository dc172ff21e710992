"""Models on different devices: the same step wherever policy, critic, reference, process model and judge are.

The layouts with a GPU need one; what they move between it and the CPU, several GPUs move between each other.
"""

import asyncio
import atexit
import json
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

from rewardsmith.engines import ModelSettings
from rewardsmith.engines.embedded.cards import select_device
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.managed.server_process import server_environment
from rewardsmith.engines.model_settings import ManagedSettings, SentenceSettings, devices_of, sharing
from rewardsmith.errors import RecipeError, UserError
from rewardsmith.recipe import parse_recipe
from rewardsmith.runs.model_registry import ModelRegistry
from rewardsmith.runs.start import start

NO_GPU = not torch.cuda.is_available()
GPU = "cpu" if NO_GPU else "cuda:0"

# ---- settings and errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:13"])
def test_devices_are_named_as_torch_names_them(device: str) -> None:
    assert ModelSettings(init="tiny-llama", device=device).device == device
    assert SentenceSettings(init="folder", device=device).device == device


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "cuda:01", "cuda:1,2", "cuda1", "", "meta"])
def test_other_names_are_refused_with_those_that_exist(device: str) -> None:
    with pytest.raises(ValueError, match=r'must be "auto", "cpu", "cuda" or "cuda:N"'):
        ModelSettings(init="tiny-llama", device=device)


def test_a_card_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    found(2)
    names = {device: str(select_device(device, "auto")[0]) for device in ("auto", "cpu", "cuda", "cuda:1")}
    assert names == {"auto": "cuda:0", "cpu": "cpu", "cuda": "cuda:0", "cuda:1": "cuda:1"}
    with pytest.raises(UserError, match=r'device = "cuda:3": torch finds cuda:0 to cuda:1'):
        select_device("cuda:3", "auto")
    found(1)
    with pytest.raises(UserError, match=r'device = "cuda:1": torch finds cuda:0 alone'):
        select_device("cuda:1", "auto")
    found(0)
    assert str(select_device("auto", "auto")[0]) == "cpu"
    for device in ("cuda", "cuda:1"):
        with pytest.raises(UserError, match=f'device = "{device}"'):
            select_device(device, "auto")


def test_the_gpus_of_a_server_are_numbered_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ManagedSettings(command="vllm", model="m", devices=[2, 0], tensor_parallel_size=2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert server_environment(settings)["CUDA_VISIBLE_DEVICES"] == "2,0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-7")
    assert server_environment(settings)["CUDA_VISIBLE_DEVICES"] == "GPU-7,4"
    with pytest.raises(ValueError, match="devices has 3, and CUDA_VISIBLE_DEVICES has 3 GPUs"):
        ManagedSettings(command="vllm", model="m", devices=[3])


# ---- who shares a device ---------------------------------------------------------------------------------------------


def models(**tables: dict[str, Any]) -> Any:
    """Return the models of a recipe; what is wrong with it is raised."""
    tables = {"policy": {"init": "tiny-llama"}} | tables
    reward = {"type": "rule", "rule": "arithmetic"}
    stage = {"type": "policy", "model": "policy", "data": "d", "steps": 1, "reward": reward}
    return parse_recipe({"models": tables, "data": {"d": {"type": "arithmetic"}}, "stages": [stage]}).models


def test_models_of_other_devices_are_not_offloaded_for_each_other() -> None:
    off = {"offload": True}
    tables = models(
        policy={"init": "tiny-llama", "device": "cuda"} | off,
        critic={"copy_of": "policy", "head": "scalar"} | off,
        reference={"copy_of": "policy", "device": "cuda:1"} | off,
        judge={"type": "managed", "command": "vllm", "model": "m", "devices": [1, 2], "tensor_parallel_size": 2} | off,
        grader={"type": "managed", "command": "vllm", "model": "m", "devices": [2]} | off,
        stays={"init": "tiny-llama", "device": "cuda:0"},
    )
    assert [devices_of(name, tables) for name in ("critic", "reference")] == [{"cuda:0"}, {"cuda:1"}]
    assert sharing(tables) == {
        "policy": "policy", "critic": "policy", "reference": "reference", "judge": "reference", "grader": "reference",
    }  # fmt: skip
    served = {"type": "server", "urls": ["http://localhost:8000/v1"], "offload": True}  # it may be anywhere
    assert len(set(sharing(tables | models(served=served, policy={"init": "m"} | off)).values())) == 1


def test_offload_alone_on_its_device_is_refused() -> None:
    off = {"offload": True}
    with pytest.raises(RecipeError) as caught:
        models(policy={"init": "tiny-llama"} | off, other={"init": "tiny-llama", "device": "cuda:1"} | off)
    assert [problem.path for problem in caught.value.problems] == ["models.policy.offload", "models.other.offload"]


def test_devices_are_scheduled_one_by_one(tmp_path: Path) -> None:
    """While one device is taken, another is free; a request for both waits for the first, and nobody for ever."""
    off = {"init": "tiny-llama", "offload": True}
    devices = {"policy": "cpu", "judge": "cpu", "critic": "cuda:1", "prm": "cuda:1"}
    tables = models(**{name: off | {"device": device} for name, device in devices.items()})
    registry = ModelRegistry(tables, seed=0, folder=tmp_path, log=lambda text: None, cache="")
    awake: set[str] = set()
    for name in devices:  # what `engine` does, without the GPU
        registry._schedulers[registry._sharing[name]].add(
            name, lambda name=name: awake.discard(name), lambda name=name: awake.add(name)
        )
    log: list[str] = []

    async def use(*names: str, pauses: int = 5) -> None:
        async with registry.on_device(*names):
            log.append(f"+{'+'.join(names)}")
            for _ in range(pauses):
                assert set(names) <= awake
                assert not {"policy", "judge"} <= awake or {"policy", "judge"} <= set(names)
                await asyncio.sleep(0)
            log.append(f"-{'+'.join(names)}")

    async def main() -> None:
        work = [("policy",), ("critic",), ("judge",), ("policy", "critic"), ("prm",), ("prm", "judge"), ("policy",)]
        await asyncio.wait_for(asyncio.gather(*(use(*names) for names in work)), timeout=20)

    asyncio.run(main())
    assert log.index("+critic") < log.index("-policy")  # at the same time
    assert log.index("-policy") < log.index("+judge")  # one after the other
    assert sum(entry[0] == "-" for entry in log) == 7


# ---- whole steps -----------------------------------------------------------------------------------------------------

NAMES = ("policy", "critic", "reference", "prm", "judge")
LAYOUTS = {
    "policy on a GPU": {"policy": GPU, "critic": "cpu", "reference": "cpu", "prm": "cpu", "judge": "cpu"},
    "policy on the CPU": {"policy": "cpu", "critic": GPU, "reference": GPU, "prm": GPU, "judge": GPU},
    "critic and judge elsewhere": {"policy": GPU, "critic": "cpu", "reference": GPU, "prm": GPU, "judge": "cpu"},
}


def recipe(layout: dict[str, str], *, offload: bool = False, **changes: Any) -> Any:
    """Return PPO with a critic, a KL to another model, a process reward model and a scalar reward model."""
    origins: dict[str, dict[str, Any]] = {name: {"copy_of": "policy"} for name in NAMES}
    origins["policy"], origins["judge"] = {"init": "tiny-llama"}, {"init": rater(), "head": "scalar"}
    origins["critic"]["head"] = "scalar"
    parts = {
        "digits": {"type": "tests.trainers.world:Digits"},
        "process": {"type": "implicit", "model": "prm", "outcome": "digits", "learn": {"optimizer": {"lr": 1e-3}}},
        "judge": {"type": "classifier", "model": "judge", "weight": 0.1},
    }
    stage = {
        "type": "policy", "model": "policy", "data": "sums", "steps": 2, "prompts_per_step": 4, "mini_batches": 2,
        "rollouts_per_prompt": 4, "sampling": {"max_tokens": 8}, "reward": {"type": "sum", "parts": parts},
        "advantage": {"type": "gae", "whiten": True}, "optimizer": {"lr": 1e-3},
        "critic": {"model": "critic", "optimizer": {"lr": 1e-3, "states": "8bit", "offload": True}},
        "kl": {"coefficient": 0.1, "place": "loss", "reference": "reference"}, "save": {"every": 1},
    } | changes  # fmt: skip
    tables = {name: {"device": layout[name], "dtype": "float32", "offload": offload} | origins[name] for name in NAMES}
    return parse_recipe({"models": tables, "data": {"sums": {"type": "arithmetic"}}, "stages": [stage], "cache": ""})


@cache
def rater() -> str:
    """Return a folder with a reward model."""
    folder = Path(mkdtemp())
    atexit.register(rmtree, folder)
    engine = EmbeddedEngine.open(ModelSettings(init="tiny-llama", head="scalar", device="cpu"))
    torch.nn.init.normal_(engine.model.score.weight, generator=torch.Generator().manual_seed(0))
    engine.publish(folder)
    return str(folder)


def metrics(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    machine = ("time/", "memory/", "models/", "latency")
    return [{k: v for k, v in m.items() if isinstance(v, float) and not k.startswith(machine)} for m in lines]


@pytest.fixture(scope="module")
def on_the_cpu(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    return metrics(start(recipe(dict.fromkeys(NAMES, "cpu")), "cpu", folder=tmp_path_factory.mktemp("cpu") / "run"))


def assert_near(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert set(mine) == set(theirs)
        for name in set(mine) - {"tokens/s", "seconds"}:
            assert mine[name] == pytest.approx(theirs[name], rel=2e-2, abs=2e-3), name


@pytest.mark.skipif(NO_GPU, reason="needs a GPU")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_is_the_same_wherever_the_models_are(
    layout: str, on_the_cpu: list[dict[str, float]], tmp_path: Path
) -> None:
    folder = start(recipe(LAYOUTS[layout]), "mixed", folder=tmp_path / "run")
    assert_near(metrics(folder), on_the_cpu)
    used = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert used["memory/learn"] > 0
    assert ("memory/cuda:0/learn" in used) == (LAYOUTS[layout]["policy"] == "cpu")


def test_a_run_on_several_devices_resumes(on_the_cpu: list[dict[str, float]], tmp_path: Path) -> None:
    layout = LAYOUTS["policy on a GPU"]  # without a GPU, all are on the CPU
    start(recipe(layout, steps=1), "mixed", folder=tmp_path / "run")
    folder = start(recipe(layout), "mixed", folder=tmp_path / "run", resume="must", accept_changes=True)
    assert_near(metrics(folder), on_the_cpu)


@pytest.mark.skipif(NO_GPU, reason="needs a GPU")
def test_critic_and_policy_on_two_devices_with_offload(on_the_cpu: list[dict[str, float]], tmp_path: Path) -> None:
    """Policy and judge share the GPU by turns, while critic and process model share the CPU."""
    layout = {"policy": "cuda:0", "critic": "cpu", "reference": "cpu", "prm": "cpu", "judge": "cuda:0"}
    folder = start(recipe(layout, offload=True), "mixed", folder=tmp_path / "run")
    assert_near(metrics(folder), on_the_cpu)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_step_is_the_same_on_two_gpus(on_the_cpu: list[dict[str, float]], tmp_path: Path) -> None:
    layout = {"policy": "cuda:0", "critic": "cuda:1", "reference": "cuda:1", "prm": "cuda:1", "judge": "cuda:1"}
    for number, places in enumerate((layout, {name: f"cuda:{1 - int(d[-1])}" for name, d in layout.items()})):
        assert_near(metrics(start(recipe(places), "mixed", folder=tmp_path / f"run{number}")), on_the_cpu)
