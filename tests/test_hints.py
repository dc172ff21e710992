"""Names of other systems lead to ours, and a hint is never a name that only looks alike."""

import re
from typing import Any

import pytest

from rewardsmith.config import Chosen, Settings, import_name, settings_of
from rewardsmith.errors import nearest
from rewardsmith.hints import NAMES
from tests.test_recipe import problems, table


@pytest.mark.parametrize(
    ("change", "path", "ours"),
    [
        ({"n_samples": 8}, "n_samples", "rollouts_per_prompt"),
        ({"train_batch_size": 8}, "train_batch_size", "prompts_per_step"),
        ({"ppo_mini_batch_size": 8}, "ppo_mini_batch_size", "mini_batches"),
        ({"total_epochs": 8}, "total_epochs", "steps"),
        ({"max_response_length": 8}, "max_response_length", "sampling.max_tokens"),
        ({"temperature": 1.0}, "temperature", "sampling.temperature"),
        ({"optimizer": {"lr": 1e-6, "learning_rate": 1e-6}}, "optimizer.learning_rate", "lr"),
        ({"kl_coef": 0.1}, "kl_coef", "kl.coefficient"),
        ({"kl": {"kl_loss_type": "k3"}}, "kl.kl_loss_type", "estimator"),
        ({"clip_ratio_low": 0.1}, "clip_ratio_low", "loss.low"),
        ({"loss": {"type": "clip", "clip_ratio_high": 0.1}}, "loss.clip_ratio_high", "high"),
        ({"advantage": {"type": "gae", "gamma": 1.0}}, "advantage.gamma", "discount"),
        ({"loss_agg_mode": "token-mean"}, "loss_agg_mode", "reduction"),
        ({"advantage": "ppo"}, "advantage.type", 'advantage = "gae"'),
        ({"loss": "grpo"}, "loss.type", 'advantage = "grpo"'),
        ({"advantage": "gspo"}, "advantage.type", 'loss = "gspo"'),
        ({"reduction": "seq-mean-token-mean"}, "reduction.type", '"sequence-mean-token-mean"'),
        ({"reward": {"type": "add"}}, "reward.type", '"sum"'),
        ({"kl": {"estimator": "low_var_kl"}}, "kl.estimator", '"k3"'),
        ({"validation": {"data": "train", "test_freq": 5}}, "validation.test_freq", "every"),
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


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("total_epochs", ["epochs", "steps"]),
        ("n_samples", ["name", "sampling"]),
        ("ppo", ["opo", "grpo"]),
        ("critic_warmup", ["critic"]),
        ("", ["a"]),
    ],
)
def test_a_name_that_only_looks_alike_is_not_suggested(name: str, known: list[str]) -> None:
    assert nearest(name, known) == ""


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("stepz", "steps"),
        ("weigth", "weight"),
        ("per_char", "per_character"),
        ("held", "held_out"),
        ("rollout_per_prompt", "rollouts_per_prompt"),
        ("promts_per_setp", "prompts_per_step"),
    ],
)
def test_a_slip_of_the_pen_is_still_recognised(name: str, meant: str) -> None:
    assert nearest(name, [meant, "something", "else", "x"]) == f' Did you mean "{meant}"?'


# ---- the table itself ------------------------------------------------------------------------------------------------

CLASSES = {
    "RolloutStage": "rewardsmith.trainers.stages:PolicyStage",
    "Stage": "rewardsmith.trainers.stages:PolicyStage",
    "SftStage": "rewardsmith.trainers.stages:SftStage",
    "RewardModelStage": "rewardsmith.trainers.stages:RewardModelStage",
    "OptimizerSettings": "rewardsmith.learning:OptimizerSettings",
    "Sampling": "rewardsmith.engines.protocol:Sampling",
    "SelectSettings": "rewardsmith.trainers.settings:SelectSettings",
    "CriticSettings": "rewardsmith.trainers.stages:CriticSettings",
    "KlSettings": "rewardsmith.trainers.stages:KlSettings",
    "OverlongSettings": "rewardsmith.trainers.stages:OverlongSettings",
    "ValidationSettings": "rewardsmith.trainers.settings:ValidationSettings",
    "Saving": "rewardsmith.trainers.settings:Saving",
    "ModelSettings": "rewardsmith.engines.model_settings:ModelSettings",
    "LoraSettings": "rewardsmith.engines.model_settings:LoraSettings",
    "ClientSettings": "rewardsmith.engines.model_settings:ServerSettings",
    "ManagedSettings": "rewardsmith.engines.model_settings:ManagedSettings",
    "Recipe": "rewardsmith.recipe:Recipe",
    "clip": "rewardsmith.algorithms.policy_losses:clip",
    "gspo": "rewardsmith.algorithms.policy_losses:gspo",
    "gae": "rewardsmith.algorithms.advantages:gae",
    "grpo": "rewardsmith.algorithms.advantages:grpo",
    "Jsonl": "rewardsmith.data:Jsonl",
    "Parquet": "rewardsmith.data:Parquet",
    "Sum": "rewardsmith.rewards.compose:Sum",
    "Product": "rewardsmith.rewards.compose:Product",
    "Implicit": "rewardsmith.rewards.implicit:Implicit",
    "Rubric": "rewardsmith.rewards.judges.graders:Rubric",
}
"""Where the settings of a context are."""

CHOICES = {
    "advantage": "rewardsmith.algorithms.advantages:ADVANTAGES",
    "policy loss": "rewardsmith.algorithms.policy_losses:POLICY_LOSSES",
    "reduction": "rewardsmith.algorithms.policy_losses:REDUCTIONS",
    "reward": "rewardsmith.rewards:REWARDS",
    "rule": "rewardsmith.rewards.rules:RULES",
    "stage": "rewardsmith.trainers:STAGES",
    "model": "rewardsmith.engines:MODELS",
    "data source": "rewardsmith.data:SOURCES",
    "tracker": "rewardsmith.runs.trackers:TRACKERS",
}


def resolves(model: type[Settings], path: str) -> bool:
    """Whether a dotted path is a setting of a class; what lies inside a choice is looked up in its default."""
    name, _, rest = path.partition(".")
    if name not in model.model_fields:
        return False
    if not rest:
        return True
    info = model.model_fields[name]
    inner = [kind for kind in (info.annotation, *getattr(info.annotation, "__args__", ())) if isinstance(kind, type)]
    if Chosen in inner:
        choice = next(mark for mark in info.metadata if hasattr(mark, "table"))
        return any(rest in settings_of(target).model_fields for target in import_name(choice.table).values())
    return any(resolves(kind, rest) for kind in inner if issubclass(kind, Settings))


@pytest.mark.parametrize("context", NAMES)
def test_what_the_table_calls_ours_is_ours(context: str) -> None:
    """A hint that is a path, or a name in quotes, must exist; one that another name has already is no hint."""
    if context in CLASSES:
        model = settings_of(import_name(CLASSES[context]))
        for foreign, ours in NAMES[context].items():
            assert foreign not in model.model_fields
            if re.fullmatch(r"[a-z_0-9.]+", ours):
                assert resolves(model, ours), (foreign, ours)
    elif context in CHOICES:
        known = import_name(CHOICES[context])
        for foreign, ours in NAMES[context].items():
            assert foreign not in {name.replace("-", "_") for name in known}, foreign
            if found := re.match(r'"([^"]+)"$', ours):
                assert found.group(1) in known
    else:
        cls, _, field = context.partition(".")
        assert field in settings_of(import_name(CLASSES[cls])).model_fields
