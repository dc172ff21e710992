"""The memory that a recipe needs on each device: what is counted, what is refused, what is only a line."""

from typing import Any

import pytest

from rewardsmith.engines.memory_estimate import (
    GIB,
    activation_bytes,
    default_tokens,
    gradient_bytes,
    named_shape,
    optimizer_bytes,
    weight_bytes,
)
from rewardsmith.errors import UserError
from rewardsmith.recipe import Recipe, parse_recipe
from rewardsmith.runs import memory
from rewardsmith.runs.memory import DeviceMemory, ModelShapes, check_memory, host_memory, recipe_memory

SHAPE = named_shape("Qwen3-4B")
CRITIC = named_shape("Qwen3-4B", head="scalar")
assert SHAPE is not None
assert CRITIC is not None
P, C = weight_bytes(SHAPE, 2), weight_bytes(CRITIC, 2)


def recipe(models: dict[str, Any] | None = None, scale: dict[str, Any] | None = None, **stage: Any) -> Recipe:
    """Return a policy stage with a 4B model; keyword arguments change the stage."""
    policy = {"type": "policy", "model": "policy", "data": "train", "steps": 1, "reward": {"type": "arithmetic"}}
    policy["reward"] = {"type": "rule", "rule": "arithmetic"}
    tables = {"policy": {"init": "Qwen/Qwen3-4B"}, **(models or {})}
    table = {"models": tables, "data": {"train": {"type": "arithmetic"}}, "stages": [policy | stage]}
    return parse_recipe(table | ({"scale": scale} if scale else {}))


def parts(checked: Recipe, gib: float = 200, **options: Any) -> dict[tuple[str, str], DeviceMemory]:
    gpus = {"cuda:0": gib * GIB}
    found = recipe_memory(checked, ModelShapes(checked), gpus, **options)
    return {(one.device, one.part.partition(": ")[2]): one for one in found}


PPO = {"advantage": "gae", "critic": {"model": "critic"}}
CRITIC_TABLE = {"critic": {"copy_of": "policy", "head": "scalar"}}


def test_a_policy_with_a_critic_and_a_reference() -> None:
    found = parts(recipe(CRITIC_TABLE, kl={"coefficient": 0.1}, **PPO))
    writing, learning = found["cuda:0", "writing"], found["cuda:0", "learning"]
    assert writing.weights == learning.weights == 2 * P + C  # the policy, its copy, and the critic
    states = optimizer_bytes(SHAPE, 2) + optimizer_bytes(CRITIC, 2)
    assert writing.optimizer == states
    assert learning.optimizer == states + gradient_bytes(SHAPE)  # one model learns at a time
    assert writing.cache > 0
    assert learning.cache == 0


def test_an_adapter_needs_no_copy_and_few_states() -> None:
    found = parts(recipe({"policy": {"init": "Qwen/Qwen3-4B", "lora": {}}}, kl={"coefficient": 0.1}))
    learning = found["cuda:0", "learning"]
    assert learning.weights == pytest.approx(P, rel=0.02)
    assert learning.optimizer < 0.05 * optimizer_bytes(SHAPE, 2)


def test_a_model_that_is_offloaded_counts_where_it_works() -> None:
    judge = {"judge": {"init": "Qwen/Qwen3-4B", "offload": True}}
    policy = {"policy": {"init": "Qwen/Qwen3-4B", "offload": True}}
    reward = {"type": "rubric", "model": "judge"}
    awake = parts(recipe({"judge": {"init": "Qwen/Qwen3-4B"}}, reward=reward))
    asleep = parts(recipe(judge | policy, reward=reward))
    assert awake["cuda:0", "learning"].weights == 2 * P
    assert asleep["cuda:0", "learning"].weights == asleep["cuda:0", "judging"].weights == P
    assert asleep["cuda:0", "judging"].optimizer == 0


def test_the_cache_takes_what_is_free_unless_rows_are_set() -> None:
    long = {"prompts_per_step": 512, "sampling": {"max_tokens": 1000}}
    small, large = (parts(recipe(**long), gib)["cuda:0", "writing"] for gib in (100, 180))
    assert (large.cache - small.cache) / (80 * GIB) == pytest.approx(memory.KV_SHARE, abs=0.02)
    fixed = [
        parts(recipe({"policy": {"init": "Qwen/Qwen3-4B", "rows": 64}}, **long), gib)["cuda:0", "writing"].cache
        for gib in (100, 140)
    ]
    assert fixed[0] == fixed[1]


def test_shards_of_a_cluster_get_smaller_with_every_gpu() -> None:
    found = [
        parts(recipe(CRITIC_TABLE, {"nodes": nodes, "gpus_per_node": 8}, **PPO), 80, cluster=True) for nodes in (1, 2)
    ]
    one, two = (each["cuda:0", "learning"] for each in found)
    shard = 4 * (SHAPE.parameters + CRITIC.parameters) / 8
    assert one.weights - two.weights == pytest.approx(shard / 2)
    assert one.optimizer == pytest.approx(2 * shard + 4 * SHAPE.parameters / 8)
    assert one.activations == two.activations
    offloaded = parts(recipe(CRITIC_TABLE, {"gpus_per_node": 8, "offload": True}, **PPO), 80, cluster=True)
    writing = offloaded["cuda:0", "writing"]
    assert writing.optimizer == 0
    assert writing.weights == P
    assert writing.total == pytest.approx(40 * GIB)  # the share of the server


@pytest.mark.parametrize(("gib", "problem"), [(60, "refused"), (100, "warned"), (400, "")])
def test_what_cannot_fit_is_refused_and_what_may_not_is_a_warning(
    gib: int, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "local_gpus", lambda: {"cuda:0": float(gib * GIB)})
    lines: list[str] = []
    keeps_all = {"policy": {"init": "Qwen/Qwen3-4B", "recompute": False}}
    if problem == "refused":
        with pytest.raises(UserError, match=r"need 67\.\d GiB on cuda:0, which has 60.0 GiB .*--ignore-memory"):
            check_memory(recipe(), lines.append)
        check_memory(recipe(), lines.append, ignore=True)
    else:
        check_memory(recipe(keeps_all), lines.append)
    assert any(line.startswith("warning: ") for line in lines) == bool(problem)
    assert "policy: learning" in lines[0]


def test_as_many_layers_are_recomputed_as_the_memory_needs() -> None:
    sizes = (85, 100, 400)
    learning = [parts(recipe(), gib)["cuda:0", "learning"] for gib in sizes]
    assert SHAPE.layers >= learning[0].recomputed > learning[1].recomputed > learning[2].recomputed == 0
    assert all(one.total < gib * GIB for one, gib in zip(learning, sizes, strict=True))
    tables = [{"policy": {"init": "Qwen/Qwen3-4B", "recompute": value}} for value in (True, "offload")]
    here, away = (parts(recipe(table))["cuda:0", "learning"].activations for table in tables)
    assert here - away == (SHAPE.layers - 2) * 2 * SHAPE.hidden * default_tokens("cuda", SHAPE.hidden)


def test_a_row_that_is_longer_than_a_pass_is_alone_in_it() -> None:
    long = {"sampling": {"max_tokens": 30_000}, "max_prompt_tokens": 100}
    model = {"policy": {"init": "Qwen/Qwen3-4B", "recompute": True}}
    found = parts(recipe(model, **long))["cuda:0", "learning"]
    expected = activation_bytes(SHAPE, 2, tokens=30_100, responses=30_000, recomputed=SHAPE.layers)
    assert found.activations == expected


def test_answers_that_do_not_fit_at_once_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "local_gpus", lambda: {"cuda:0": 80.0 * GIB})
    long = {"sampling": {"max_tokens": 8192}, "prompts_per_step": 32, "rollouts_per_prompt": 8}
    lines: list[str] = []
    check_memory(recipe({"policy": {"init": "Qwen/Qwen3-4B", "lora": {}, "rows": 256}}, **long), lines.append)
    writing = parts(recipe({"policy": {"init": "Qwen/Qwen3-4B", "lora": {}}}, **long), 80)["cuda:0", "writing"]
    assert 1 < writing.rows < writing.wanted == 256
    assert writing.total < 80 * GIB
    assert any(f"warning: {writing.rows} of 256 answers of full length" in line for line in lines)


def test_small_models_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "local_gpus", dict)
    lines: list[str] = []
    check_memory(recipe({"policy": {"init": "tiny-llama"}}), lines.append)
    assert len(lines) == 1
    assert lines[0].startswith("memory: about 0.")


def test_a_model_that_is_not_known_is_left_to_other_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "local_gpus", dict)
    lines: list[str] = []
    check_memory(recipe({"policy": {"init": "no/such-model"}}), lines.append)
    assert not lines


def test_a_container_has_the_memory_of_its_limit(tmp_path: Any) -> None:
    limit = tmp_path / "memory.max"
    assert host_memory(limit) > 0
    limit.write_text("1000000\n")
    assert host_memory(limit) == 1_000_000
    limit.write_text("max\n")
    assert host_memory(limit) == host_memory(tmp_path / "none")
