"""Names of other systems lead to ours, and a hint is never a name that only looks alike."""

import re
from typing import Any

import pytest

from rewardsmith.config import Chosen, Settings, import_name, settings_of
from rewardsmith.errors import nearest
from rewardsmith.hints import NAMES
from rewardsmith.trainers.stages import PolicyStage
from tests.test_recipe import problems, table

CHOICES = {
    "advantage": "rewardsmith.algorithms.advantages:ADVANTAGES",
    "policy loss": "rewardsmith.algorithms.policy_losses:POLICY_LOSSES",
    "reduction": "rewardsmith.algorithms.policy_losses:REDUCTIONS",
    "reward": "rewardsmith.rewards:REWARDS",
    "rule": "rewardsmith.rewards.rules:RULES",
    "stage": "rewardsmith.trainers:STAGES",
    "model": "rewardsmith.engines:MODELS",
    "data source": "rewardsmith.data:SOURCES",
}


@pytest.mark.parametrize(
    ("change", "path", "ours"),
    [
        ({"n_samples": 8}, "n_samples", "rollouts_per_prompt"),
        ({"ppo_mini_batch_size": 8}, "ppo_mini_batch_size", "mini_batches"),
        ({"total_epochs": 8}, "total_epochs", "epochs"),
        ({"num_iterations": 8}, "num_iterations", "ppo_epochs"),
        ({"overlong": {"buffer": 2, "max_resp_len": 3200}}, "overlong.max_resp_len", "limit"),
        ({"validation": {"data": "test", "val_before_train": False}}, "validation.val_before_train", "at_start"),
        ({"optimizer": {"lr": 1e-6, "warmup_ratio": 0.1}}, "optimizer.warmup_ratio", "warmup"),
        ({"kl": {"reward_estimator": "abs"}}, "kl.reward_estimator", '"k2"'),
        ({"optimizer": {"lr": 1e-6, "learning_rate": 1e-6}}, "optimizer.learning_rate", "lr"),
        ({"kl": {"kl_loss_type": "k3"}}, "kl.kl_loss_type", "estimator"),
        ({"loss": {"type": "clip", "clip_ratio_high": 0.1}}, "loss.clip_ratio_high", "high"),
        ({"advantage": {"type": "gae", "gamma": 1.0}}, "advantage.gamma", "discount"),
        ({"advantage": "ppo"}, "advantage.type", 'advantage = "gae"'),
        ({"loss": "grpo"}, "loss.type", 'advantage = "grpo"'),
        ({"reduction": "seq-mean-token-mean"}, "reduction.type", '"sequence-mean-token-mean"'),
        ({"reward": {"type": "add"}}, "reward.type", '"sum"'),
        ({"kl": {"estimator": "low_var_kl"}}, "kl.estimator", '"k3"'),
    ],
)
def test_a_name_of_another_system_leads_to_ours(change: dict[str, Any], path: str, ours: str) -> None:
    found = problems(table(**change))[f"stages.0.{path}"]
    assert "Did you mean" not in found
    assert f"{ours}" in found.partition(" Known:")[0]


def test_a_model_that_vllm_serves_is_a_managed_one() -> None:
    recipe = table()
    recipe["models"]["judge"] = {"type": "vllm", "model": "x"}
    assert 'type = "managed"' in problems(recipe)["models.judge.type"]


def test_the_nearest_name_is_one_slip_away_and_not_one_that_only_looks_alike() -> None:
    for name, meant in (
        ("stepz", "steps"), ("weigth", "weight"), ("per_char", "per_character"), ("held", "held_out"),
        ("rollout_per_prompt", "rollouts_per_prompt"), ("promts_per_setp", "prompts_per_step"),
    ):  # fmt: skip
        assert nearest(name, [meant, "something", "else", "x"]) == f' Did you mean "{meant}"?'
    for name, known in (
        ("total_epochs", ["epochs", "steps"]), ("n_samples", ["name", "sampling"]), ("ppo", ["opo", "grpo"]),
        ("critic_warmup", ["critic"]), ("", ["a"]),
    ):  # fmt: skip
        assert nearest(name, known) == ""


@pytest.mark.parametrize("what", [name for name in NAMES if name in CHOICES])
def test_what_the_table_calls_ours_is_ours(what: str) -> None:
    """A name in quotes must exist, and what another system calls something must not be a name of ours."""
    known = import_name(CHOICES[what])
    for foreign, ours in NAMES[what].items():
        assert foreign not in {name.replace("-", "_") for name in known}, foreign
        if found := re.fullmatch(r'"([^"]+)"', ours):
            assert found.group(1) in known


def test_a_path_that_the_table_names_is_a_setting_of_a_policy_stage() -> None:
    paths = {ours for ours in NAMES[""].values() if re.fullmatch(r"[a-z_0-9]+\.[a-z_0-9.]+", ours)}
    assert len(paths) > 20
    for path in paths:
        assert resolves(PolicyStage, path), path


def resolves(model: type[Settings], path: str) -> bool:
    """Whether a dotted path is a setting of a class; what lies inside a choice is looked up in all that it offers."""
    name, _, rest = path.partition(".")
    if name not in model.model_fields or not rest:
        return name in model.model_fields
    info = model.model_fields[name]
    inner = [kind for kind in (info.annotation, *getattr(info.annotation, "__args__", ())) if isinstance(kind, type)]
    if Chosen in inner:
        choice = next(mark for mark in info.metadata if hasattr(mark, "table"))
        return any(rest in settings_of(target).model_fields for target in import_name(choice.table).values())
    return any(resolves(kind, rest) for kind in inner if issubclass(kind, Settings))
