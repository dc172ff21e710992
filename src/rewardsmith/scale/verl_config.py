"""From a model of a recipe and the `[scale]` table to verl's configuration, with the recipe key of each value."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from rewardsmith.engines.embedded.attention import ATTENTION
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError, nearest
from rewardsmith.scale.scale_settings import CPU_ROLLOUT, TOKENS_PER_PASS, ScaleSettings

ACTOR, MODEL, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.model", "actor_rollout_ref.rollout"

_STAGE = "stages.NAME"
NOT_READ: dict[str, str] = {
    f"{ACTOR}.optim": f"{_STAGE}.optimizer",
    f"{ACTOR}.grad_clip": f"{_STAGE}.optimizer.clip_norm",
    f"{ACTOR}.clip_ratio": f"{_STAGE}.loss",
    f"{ACTOR}.clip_ratio_low": f"{_STAGE}.loss.low",
    f"{ACTOR}.clip_ratio_high": f"{_STAGE}.loss.high",
    f"{ACTOR}.clip_ratio_c": f"{_STAGE}.loss.dual",
    f"{ACTOR}.policy_loss": f"{_STAGE}.loss",
    f"{ACTOR}.loss_agg_mode": f"{_STAGE}.reduction",
    f"{ACTOR}.loss_scale_factor": f"{_STAGE}.reduction",
    f"{ACTOR}.entropy_coeff": f"{_STAGE}.entropy",
    f"{ACTOR}.use_kl_loss": f"{_STAGE}.kl",
    f"{ACTOR}.kl_loss_coef": f"{_STAGE}.kl.coefficient",
    f"{ACTOR}.kl_loss_type": f"{_STAGE}.kl.estimator",
    f"{ACTOR}.ppo_mini_batch_size": f"{_STAGE}.mini_batches",
    f"{ACTOR}.ppo_epochs": f"{_STAGE}.ppo_epochs",
    f"{ACTOR}.shuffle": "",
    f"{ACTOR}.checkpoint": f"{_STAGE}.save",
    f"{ROLLOUT}.n": f"{_STAGE}.rollouts_per_prompt",
    f"{ROLLOUT}.temperature": f"{_STAGE}.sampling.temperature",
    f"{ROLLOUT}.top_p": f"{_STAGE}.sampling.top_p",
    f"{ROLLOUT}.top_k": f"{_STAGE}.sampling.top_k",
    f"{ROLLOUT}.do_sample": f"{_STAGE}.sampling.temperature",
    f"{ROLLOUT}.prompt_length": f"{_STAGE}.max_prompt_tokens",
    f"{ROLLOUT}.response_length": f"{_STAGE}.sampling.max_tokens",
    f"{ROLLOUT}.val_kwargs": f"{_STAGE}.validation",
    f"{ROLLOUT}.multi_turn": "",
    f"{ROLLOUT}.agent": "",
    "actor_rollout_ref.ref": f"{_STAGE}.kl",
    "critic": f"{_STAGE}.critic and the model that it names",
    "algorithm": f"{_STAGE}.advantage, kl, select and importance",
    "data": f"{_STAGE}.prompts_per_step, max_prompt_tokens and the data",
    "reward": f"{_STAGE}.reward",
    "trainer": f"{_STAGE}.steps, save, validation, and [scale]",
}
"""Settings that verl's own trainer reads and its workers do not, with what says the same in a recipe."""


@dataclass
class VerlConfig:
    """verl's configuration, and where its values come from."""

    config: DictConfig
    origins: dict[str, str] = field(default_factory=dict)  # verl key to recipe key; "" for a default of ours

    def put(self, key: str, value: Any, origin: str = "") -> None:
        """Set a value."""
        OmegaConf.update(self.config, key, value, force_add=True)
        self.origins[key] = origin


@cache
def _composed() -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer")


def default_config() -> VerlConfig:
    """Return verl's own defaults."""
    return VerlConfig(deepcopy(_composed()))


def model_config(settings: ModelSettings, name: str, folder: Path | str, scale: ScaleSettings) -> VerlConfig:
    """Return the configuration of the workers of one model, whose start is in `folder`."""
    verl, model = default_config(), f"models.{name}"
    cpu = scale.device == "cpu"
    dtype = {"auto": "float32" if cpu else "bfloat16"}.get(settings.dtype, settings.dtype)
    start = "init" if settings.copy_of is None else "copy_of"
    verl.put(f"{MODEL}.path", str(folder), f"{model}.{start}")
    # Sequence parallelism of verl is a patch of FlashAttention: with another attention each GPU would read its share.
    flash = scale.sequence_parallel > 1 or (not cpu and find_spec("flash_attn") is not None)
    verl.put(f"{MODEL}.override_config", {"attn_implementation": "flash_attention_2" if flash else ATTENTION})
    verl.put(f"{MODEL}.use_remove_padding", True)
    verl.put(f"{MODEL}.enable_gradient_checkpointing", settings.recomputes_all, f"{model}.recompute")
    if settings.lora is not None:
        verl.put(f"{MODEL}.lora_rank", settings.lora.rank, f"{model}.lora.rank")
        verl.put(f"{MODEL}.lora_alpha", settings.lora.alpha, f"{model}.lora.alpha")
        verl.put(f"{MODEL}.target_modules", settings.lora.targets, f"{model}.lora.targets")
        verl.put(f"{MODEL}.lora.merge", True)  # the servers get merged weights
        if settings.lora.init is not None:
            verl.put(f"{MODEL}.lora_adapter_path", settings.lora.init, f"{model}.lora.init")
    # ---- learning
    tokens = settings.tokens_per_pass or TOKENS_PER_PASS
    verl.put(f"{ACTOR}.strategy", scale.strategy, "scale.strategy")
    verl.put(f"{ACTOR}.use_dynamic_bsz", True)
    verl.put(f"{ACTOR}.ppo_max_token_len_per_gpu", tokens, f"{model}.tokens_per_pass")
    verl.put(f"{ACTOR}.fsdp_config.model_dtype", "fp32")
    mixed = {"param_dtype": {"float32": "fp32", "bfloat16": "bf16"}[dtype], "reduce_dtype": "fp32"}
    verl.put(f"{ACTOR}.fsdp_config.mixed_precision", {**mixed, "buffer_dtype": "fp32"}, f"{model}.dtype")
    verl.put(f"{ACTOR}.fsdp_config.use_torch_compile", False)
    verl.put(f"{ACTOR}.fsdp_config.param_offload", scale.offload, "scale.offload")
    verl.put(f"{ACTOR}.fsdp_config.optimizer_offload", scale.offload, "scale.offload")
    verl.put(f"{ACTOR}.ulysses_sequence_parallel_size", scale.sequence_parallel, "scale.sequence_parallel")
    # ---- writing
    sequences = (scale.rollout.max_sequences, "scale.rollout.max_sequences")
    verl.put(f"{ROLLOUT}.name", CPU_ROLLOUT if cpu else scale.rollout.engine, "scale.rollout.engine")
    verl.put(f"{ROLLOUT}.dtype", dtype, f"{model}.dtype")
    verl.put(f"{ROLLOUT}.tensor_model_parallel_size", scale.rollout.tensor_parallel, "scale.rollout.tensor_parallel")
    verl.put(f"{ROLLOUT}.gpu_memory_utilization", scale.rollout.memory_share, "scale.rollout.memory_share")
    verl.put(f"{ROLLOUT}.max_num_seqs", *((settings.rows, f"{model}.rows") if settings.rows else sequences))
    if scale.rollout.gpus:  # servers of their own, which get the weights over the network
        per_node = scale.rollout.gpus if scale.rollout.tensor_parallel <= scale.gpus_per_node else scale.gpus_per_node
        verl.put(f"{ROLLOUT}.nnodes", scale.rollout.gpus // per_node, "scale.rollout.gpus")
        verl.put(f"{ROLLOUT}.n_gpus_per_node", per_node, "scale.rollout.gpus")
        verl.put(f"{ROLLOUT}.checkpoint_engine.backend", CPU_ROLLOUT if cpu else "nccl", "scale.rollout.gpus")
        verl.put(f"{ROLLOUT}.checkpoint_engine.custom_backend_module", "rewardsmith.scale.cpu_rollout" if cpu else None)
    else:
        verl.put(f"{ROLLOUT}.n_gpus_per_node", scale.gpus_per_node, "scale.gpus_per_node")
    verl.put(f"{ROLLOUT}.log_prob_use_dynamic_bsz", True)
    verl.put(f"{ROLLOUT}.log_prob_max_token_len_per_gpu", tokens, f"{model}.tokens_per_pass")
    verl.put(f"{ROLLOUT}.calculate_log_probs", True)
    # ---- the cluster
    verl.put("trainer.device", scale.device, "scale.device")
    verl.put("trainer.nnodes", scale.nodes, "scale.nodes")
    verl.put("trainer.n_gpus_per_node", scale.gpus_per_node, "scale.gpus_per_node")
    for key, value in scale.verl.items():
        _require_settable(verl, key)
        verl.put(key, value, f'scale.verl."{key}"')
    return verl


_MISSING = object()


def _require_settable(verl: VerlConfig, key: str) -> None:
    """Raise a `UserError` for a setting that verl has not, that nothing reads, or that the recipe has by itself."""
    where = f'scale.verl."{key}"'
    if OmegaConf.select(verl.config, key, default=_MISSING) is _MISSING:
        known = flat(OmegaConf.to_container(verl.config))
        raise UserError(f"{where}: verl {version('verl')} has no such setting.{nearest(key, known)}")
    if verl.origins.get(key):
        raise UserError(f"{where}: set {verl.origins[key]} in its place")
    outer = [key.rsplit(".", n)[0] for n in range(key.count(".") + 1)]
    if same := [place for place in outer if place in NOT_READ]:
        remedy = f": set {NOT_READ[same[0]]}" if NOT_READ[same[0]] else ""
        raise UserError(f"{where}: rewardsmith's trainer does this, and verl's workers do not read it{remedy}")
    if not key.startswith("actor_rollout_ref."):
        raise UserError(f"{where}: verl's workers do not read it: leave it out")


def flat(table: Any, path: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their dotted path."""
    if not isinstance(table, dict) or not table:
        return {path: table}
    inner = (flat(value, f"{path}.{name}".lstrip(".")) for name, value in table.items())
    return {key: value for values in inner for key, value in values.items()}
