"""verl's configuration of a recipe: where each value comes from, verl's own check, and what is refused. No Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from rewardsmith.engines.model_settings import LoraSettings, ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.recipe import load_recipe
from rewardsmith.runs.verl_command import explain_verl, plan_of, verl_configs
from rewardsmith.scale.cluster_checks import MODEL_SETTINGS
from rewardsmith.scale.scale_settings import ScaleSettings
from rewardsmith.scale.verl_config import NOT_READ, default_config, model_config

PPO = """
[scale]
gpus_per_node = 8
rollout = { tensor_parallel = 4 }
[models.policy]
init = "tiny-llama"
recompute = true
[models.critic]
copy_of = "policy"
head = "scalar"
[data.train]
type = "arithmetic"
[[stages]]
type = "sft"
model = "policy"
data = "train"
steps = 2
[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = 7
prompts_per_step = 12
mini_batches = 3
rollouts_per_prompt = 4
imitation = 0.1
sampling = { max_tokens = 99, temperature = 0.7 }
advantage = { type = "gae", lam = 0.9 }
loss = { type = "clip", low = 0.1, high = 0.3 }
reduction = "sequence-mean-token-mean"
kl = { coefficient = 0.02, estimator = "k3", place = "both", reward_coefficient = 0.5 }
critic = { model = "critic" }
optimizer = { lr = 1e-4, beta2 = 0.95, warmup = 0.25 }
reward = { type = "rule", rule = "arithmetic" }
"""


def recipe(tmp_path: Path, text: str = PPO, *overrides: str) -> Any:
    file = tmp_path / "recipe.toml"
    file.write_text(text)
    return load_recipe(file, overrides)


def test_every_value_has_its_place_and_its_origin(tmp_path: Path) -> None:
    checked = recipe(tmp_path)
    configs, plan = verl_configs(checked), plan_of(checked)
    assert [group.name for group in plan.groups] == ["policy", "critic"]
    assert plan.references == {"stages.1.kl": "policy"}
    policy, stage = configs["policy"], configs["stages.1"]
    expected = {
        "actor_rollout_ref.model.enable_gradient_checkpointing": (True, "models.policy.recompute"),
        "actor_rollout_ref.rollout.tensor_model_parallel_size": (4, "scale.rollout.tensor_parallel"),
        "trainer.n_gpus_per_node": (8, "scale.gpus_per_node"),
    }
    in_stage = {
        "data.train_batch_size": (12, "prompts_per_step"),
        "data.max_response_length": (99, "sampling.max_tokens"),
        "actor_rollout_ref.rollout.n": (4, "rollouts_per_prompt"),
        "actor_rollout_ref.rollout.temperature": (0.7, "sampling.temperature"),
        "actor_rollout_ref.actor.ppo_mini_batch_size": (4, "mini_batches"),
        "actor_rollout_ref.actor.clip_ratio_high": (0.3, "loss.high"),
        "actor_rollout_ref.actor.loss_agg_mode": ("seq-mean-token-mean", "reduction.type"),
        "actor_rollout_ref.actor.kl_loss_type": ("low_var_kl", "kl.estimator, unbiased"),
        "algorithm.kl_ctrl.kl_coef": (0.5, "kl.reward_coefficient"),
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": (0.25, "optimizer.warmup"),
        "trainer.total_training_steps": (7, "steps"),
        "algorithm.adv_estimator": ("gae", "advantage.type"),
        "algorithm.lam": (0.9, "advantage.lam"),
        "critic.optim.lr": (1e-5, "critic.optimizer.lr"),
    }
    for verl, values in ((policy, expected), (stage, {k: (v, f"stages.1.{o}") for k, (v, o) in in_stage.items()})):
        for key, (value, origin) in values.items():
            assert OmegaConf.select(verl.config, key) == value, key
            assert verl.origins[key] == origin
        assert not [key for key in verl.origins if OmegaConf.select(verl.config, key) is None]


def test_what_is_printed_is_yaml_of_what_differs_from_verls_defaults(tmp_path: Path) -> None:
    checked = recipe(tmp_path)
    text = explain_verl(checked, everything=False)
    model, critic, stage = (document for document in yaml.safe_load_all(text) if document)
    assert model["actor_rollout_ref"]["rollout"]["tensor_model_parallel_size"] == 4
    assert model["actor_rollout_ref"]["model"]["override_config"] == {"attn_implementation": "rewardsmith"}
    assert "rollout" not in critic["actor_rollout_ref"]  # it has no servers
    assert stage["actor_rollout_ref"]["actor"]["optim"]["betas"] == [0.9, 0.95]
    assert "path: tiny-llama" in text
    assert "# models.policy.init" in text
    assert "stages.1.imitation" in text.split("without a word of verl's:")[1]
    assert "optimizer" not in text.split("without a word of verl's:")[1]
    assert "frozen copy of models.policy" in text
    whole = next(document for document in yaml.safe_load_all(explain_verl(checked, everything=True)) if document)
    defaults = OmegaConf.to_container(default_config().config, resolve=True)["actor_rollout_ref"]
    left_out = {key.rpartition(".")[2] for key in NOT_READ if key.startswith("actor_rollout_ref.rollout.")}
    assert whole["actor_rollout_ref"]["rollout"].keys() == defaults["rollout"].keys() - left_out
    assert whole["actor_rollout_ref"]["rollout"]["enforce_eager"] == defaults["rollout"]["enforce_eager"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('scale.verl={"actor_rollout_ref.rollout.sed" = 1}', 'Did you mean "actor_rollout_ref.rollout.seed"'),
        ('scale.verl={"actor_rollout_ref.rollout.name" = "trtllm"}', "set scale.rollout.engine in its place"),
        ('scale.verl={"algorithm.gamma" = 0.9}', "set stages.NAME.advantage"),
        ('scale.verl={"actor_rollout_ref.actor.optim.lr" = 1e-3}', "set stages.NAME.optimizer"),
        ('scale.verl={"global_profiler.tool" = "nsys"}', "verl's workers do not read it"),
        ('scale.verl={"actor_rollout_ref.rollout.mode" = "sync"}', "verl's own check refuses"),
        ('scale.verl={"actor_rollout_ref.rollout.pipeline_model_parallel_size" = 2}', "verl's own check refuses"),
    ],
)  # fmt: skip
def test_what_verl_does_not_take_is_refused_before_ray(tmp_path: Path, override: str, message: str) -> None:
    checked = recipe(tmp_path, PPO, override.replace('{"', "{'").replace('" =', "' ="))
    with pytest.raises(UserError) as caught:
        verl_configs(checked)
    assert message in str(caught.value)


def test_too_many_models_are_refused_before_ray(tmp_path: Path) -> None:
    stage = PPO[PPO.rindex("[[stages]]") :].replace("steps = 7", 'steps = 7\nname = "NAME"')
    checked = recipe(tmp_path, PPO + "".join(stage.replace("NAME", f"p{i}") for i in range(6)))
    with pytest.raises(UserError, match="at most 8 models, copies and references, and this recipe has 9"):
        verl_configs(checked)


def test_settings_of_models_that_are_verls_reach_it() -> None:
    changed = {
        "init": "another",
        "dtype": "float32",
        "lora": LoraSettings(rank=3, alpha=7.0, targets=["q_proj"], init="adapter"),
        "rows": 5,
        "tokens_per_pass": 99,
        "recompute": True,
    }
    assert changed.keys() == {name for name, fate in MODEL_SETTINGS.items() if fate == "verl"}
    plain = OmegaConf.to_container(model_config(ModelSettings(init="x"), "m", "x", ScaleSettings()).config)
    for name, value in changed.items():
        settings = ModelSettings(**{"init": "x", name: value})
        verl = model_config(settings, "m", settings.init or "", ScaleSettings())
        assert OmegaConf.to_container(verl.config) != plain, name
        assert any(origin.startswith(f"models.m.{name}") for origin in verl.origins.values()), name


def test_long_sequences_are_shared_with_the_attention_that_verl_patches() -> None:
    verl = model_config(ModelSettings(init="x"), "m", "x", ScaleSettings(gpus_per_node=4, sequence_parallel=2))
    assert verl.config.actor_rollout_ref.model.override_config.attn_implementation == "flash_attention_2"


def test_what_is_said_to_be_unread_exists_in_verl() -> None:
    config = default_config().config
    assert not [key for key in NOT_READ if OmegaConf.select(config, key, default="missing") == "missing"]
