"""From a model of a recipe and the `[scale]` table to verl's configuration, with the recipe key of each value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.scale.cpu_rollout import MODULE as CPU_MODULE
from rewardsmith.scale.cpu_rollout import ROLLOUT as CPU_ROLLOUT
from rewardsmith.scale.scale_settings import ScaleSettings

ACTOR, MODEL, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.model", "actor_rollout_ref.rollout"
TOKENS_PER_PASS = 16_384


@dataclass
class VerlConfig:
    """verl's configuration, and where its values come from."""

    config: DictConfig
    origins: dict[str, str] = field(default_factory=dict)  # verl key to recipe key; "" for a default of ours

    def put(self, key: str, value: Any, origin: str = "") -> None:
        """Set a value."""
        OmegaConf.update(self.config, key, value, force_add=True)
        self.origins[key] = origin


def default_config() -> VerlConfig:
    """Return verl's own defaults."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return VerlConfig(compose("ppo_trainer"))


def model_config(settings: ModelSettings, name: str, folder: Path, scale: ScaleSettings) -> VerlConfig:
    """Return the configuration of the workers of one model, whose start is in `folder`."""
    verl, model = default_config(), f"models.{name}"
    cpu = scale.device == "cpu"
    dtype = {"auto": "fp32" if cpu else "bf16", "float32": "fp32", "bfloat16": "bf16"}[settings.dtype]
    verl.put(f"{MODEL}.path", str(folder), f"{model}.init")
    verl.put(f"{MODEL}.override_config", {"attn_implementation": "sdpa"})
    verl.put(f"{MODEL}.use_remove_padding", not cpu)
    verl.put(f"{MODEL}.enable_gradient_checkpointing", settings.recompute, f"{model}.recompute")
    if settings.lora is not None:
        verl.put(f"{MODEL}.lora_rank", settings.lora.rank, f"{model}.lora.rank")
        verl.put(f"{MODEL}.lora_alpha", settings.lora.alpha, f"{model}.lora.alpha")
        verl.put(f"{MODEL}.target_modules", settings.lora.targets, f"{model}.lora.targets")
        if settings.lora.init is not None:
            verl.put(f"{MODEL}.lora_adapter_path", settings.lora.init, f"{model}.lora.init")
    # ---- learning
    tokens = settings.tokens_per_pass or TOKENS_PER_PASS
    verl.put(f"{ACTOR}.strategy", scale.strategy, "scale.strategy")
    verl.put(f"{ACTOR}.use_dynamic_bsz", True)
    verl.put(f"{ACTOR}.ppo_max_token_len_per_gpu", tokens, f"{model}.tokens_per_pass")
    verl.put(f"{ACTOR}.fsdp_config.model_dtype", "fp32")
    mixed = {"param_dtype": dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    verl.put(f"{ACTOR}.fsdp_config.mixed_precision", mixed, f"{model}.dtype")
    verl.put(f"{ACTOR}.fsdp_config.use_torch_compile", False)
    verl.put(f"{ACTOR}.fsdp_config.param_offload", scale.offload, "scale.offload")
    verl.put(f"{ACTOR}.fsdp_config.optimizer_offload", scale.offload, "scale.offload")
    verl.put(f"{ACTOR}.ulysses_sequence_parallel_size", scale.sequence_parallel, "scale.sequence_parallel")
    # ---- writing
    verl.put(f"{ROLLOUT}.name", CPU_ROLLOUT if cpu else scale.rollout.engine, "scale.rollout.engine")
    verl.put(f"{ROLLOUT}.tensor_model_parallel_size", scale.rollout.tensor_parallel, "scale.rollout.tensor_parallel")
    verl.put(f"{ROLLOUT}.gpu_memory_utilization", scale.rollout.memory_share, "scale.rollout.memory_share")
    verl.put(f"{ROLLOUT}.max_num_seqs", scale.rollout.max_sequences, "scale.rollout.max_sequences")
    if scale.rollout.gpus:  # servers of their own, which get the weights over the network
        per_node = scale.rollout.gpus if scale.rollout.tensor_parallel <= scale.gpus_per_node else scale.gpus_per_node
        verl.put(f"{ROLLOUT}.nnodes", scale.rollout.gpus // per_node, "scale.rollout.gpus")
        verl.put(f"{ROLLOUT}.n_gpus_per_node", per_node, "scale.rollout.gpus")
        verl.put(f"{ROLLOUT}.checkpoint_engine.backend", CPU_ROLLOUT if cpu else "nccl", "scale.rollout.gpus")
        verl.put(f"{ROLLOUT}.checkpoint_engine.custom_backend_module", CPU_MODULE if cpu else None)
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
        if OmegaConf.select(verl.config, key, default=_MISSING) is _MISSING:
            raise UserError(f'scale.verl: verl {_version()} has no setting "{key}"')
        verl.put(key, value, f'scale.verl."{key}"')
    return verl


_MISSING = object()


def _version() -> str:
    import verl  # noqa: PLC0415

    return str(verl.__version__)
