"""A policy stage in verl's words, for verl's own check and for people: our trainer does this part, verl's workers none.

The names are those under which `docs/parity.md` compares our functions with verl's.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from typing import Any

import yaml
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rewardsmith.errors import UserError
from rewardsmith.scale.verl_config import ACTOR, ROLLOUT, VerlConfig, default_config, flat

_SAME = ("gae", "grpo", "rloo", "opo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax")
_ESTIMATORS = {**dict(zip(_SAME, _SAME, strict=True)), "dr_grpo": "grpo"}
_LOSSES = {"clip": "vanilla", "gspo": "gspo", "gmpo": "geo_mean", "cispo": "cispo"}
_REDUCTIONS = {
    "token-mean": "token-mean",
    "sequence-mean-token-mean": "seq-mean-token-mean",
    "sequence-mean-token-sum": "seq-mean-token-sum",
    "constant-length": "seq-mean-token-sum-norm",
}
_KL = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}


def put_stage(verl: VerlConfig, stage: Any, path: str) -> None:
    """Set what a policy stage says, under verl's names where it has the same; `path` is that of the stage."""
    for key, value, setting in _values(stage):
        verl.put(key, value, f"{path}.{setting}")
    verl.put(f"{ACTOR}.rollout_n", stage.rollouts_per_prompt, f"{path}.rollouts_per_prompt")


def _values(stage: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield (verl's setting, value, setting of the stage)."""
    yield "data.train_batch_size", stage.prompts_per_step, "prompts_per_step"
    if stage.max_prompt_tokens is not None:
        yield "data.max_prompt_length", stage.max_prompt_tokens, "max_prompt_tokens"
    yield "data.max_response_length", stage.sampling.max_tokens, "sampling.max_tokens"
    yield f"{ROLLOUT}.n", stage.rollouts_per_prompt, "rollouts_per_prompt"
    yield f"{ROLLOUT}.temperature", stage.sampling.temperature, "sampling.temperature"
    yield f"{ROLLOUT}.top_p", stage.sampling.top_p, "sampling.top_p"
    yield f"{ROLLOUT}.top_k", stage.sampling.top_k or -1, "sampling.top_k"
    yield f"{ACTOR}.ppo_mini_batch_size", max(1, stage.prompts_per_step // stage.mini_batches), "mini_batches"
    yield f"{ACTOR}.ppo_epochs", stage.ppo_epochs, "ppo_epochs"
    yield f"{ACTOR}.entropy_coeff", stage.entropy, "entropy"
    length = ("total_training_steps", "steps") if stage.epochs is None else ("total_epochs", "epochs")
    yield f"trainer.{length[0]}", getattr(stage, length[1]), length[1]
    if stage.validation is not None:
        yield "trainer.test_freq", stage.validation.every, "validation.every"
        yield "trainer.val_before_train", stage.validation.at_start, "validation.at_start"
    yield from _algorithm(stage)
    yield from _optimizer(f"{ACTOR}.optim", stage.optimizer, "optimizer")
    yield f"{ACTOR}.grad_clip", stage.optimizer.clip_norm, "optimizer.clip_norm"
    if stage.critic is not None:
        yield "critic.enable", True, "critic"
        yield from _optimizer("critic.optim", stage.critic.optimizer, "critic.optimizer")
        yield "critic.grad_clip", stage.critic.optimizer.clip_norm, "critic.optimizer.clip_norm"
        if stage.critic.clip is not None:
            yield "critic.cliprange_value", stage.critic.clip, "critic.clip"
        yield "trainer.critic_warmup", stage.critic.warmup, "critic.warmup"


def _algorithm(stage: Any) -> Iterator[tuple[str, Any, str]]:
    advantage, loss, reduction = (getattr(stage, name) for name in ("advantage", "loss", "reduction"))
    if advantage.name in _ESTIMATORS:
        yield "algorithm.adv_estimator", _ESTIMATORS[advantage.name], "advantage.type"
    scale = getattr(advantage.settings, "scale", "group")
    if advantage.name == "dr_grpo" or scale == "none":
        yield "algorithm.norm_adv_by_std_in_grpo", False, "advantage.type" if scale == "group" else "advantage.scale"
    for key, setting in (("algorithm.gamma", "discount"), ("algorithm.lam", "lam")):
        if hasattr(advantage.settings, setting):
            yield key, getattr(advantage.settings, setting), f"advantage.{setting}"
    if loss.name in _LOSSES:
        yield f"{ACTOR}.policy_loss.loss_mode", _LOSSES[loss.name], "loss.type"
        bounds = {"low": "clip_ratio_low", "high": "clip_ratio_high", "dual": "clip_ratio_c"}
        for setting, key in bounds.items():
            if getattr(loss.settings, setting, None) is not None:
                yield f"{ACTOR}.{key}", getattr(loss.settings, setting), f"loss.{setting}"
    if reduction.name in _REDUCTIONS:
        yield f"{ACTOR}.loss_agg_mode", _REDUCTIONS[reduction.name], "reduction.type"
        if reduction.name == "constant-length":
            yield f"{ACTOR}.loss_scale_factor", reduction.settings.length, "reduction.length"
    (loss_weight, loss_kind), (reward_weight, reward_kind) = stage.kl.in_loss, stage.kl.in_reward
    if loss_weight:
        yield f"{ACTOR}.use_kl_loss", True, "kl.place"
        yield f"{ACTOR}.kl_loss_coef", loss_weight, "kl.coefficient"
        yield f"{ACTOR}.kl_loss_type", _KL[loss_kind] + "+" * stage.kl.unbiased, "kl.estimator, unbiased"
    if reward_weight:
        own = "reward_" if stage.kl.place == "both" else ""
        yield "algorithm.use_kl_in_reward", True, "kl.place"
        yield "algorithm.kl_ctrl.kl_coef", reward_weight, f"kl.{own}coefficient"
        yield "algorithm.kl_penalty", _KL[reward_kind], f"kl.{own}estimator"
    if stage.select.constant == "drop":
        yield "algorithm.filter_groups.enable", True, "select.constant"
        yield "algorithm.filter_groups.max_num_gen_batches", stage.select.rounds, "select.rounds"


def _optimizer(key: str, optimizer: Any, path: str) -> Iterator[tuple[str, Any, str]]:
    yield f"{key}.lr", optimizer.lr, f"{path}.lr"
    yield f"{key}.betas", [optimizer.beta1, optimizer.beta2], f"{path}.beta1, beta2"
    yield f"{key}.weight_decay", optimizer.weight_decay, f"{path}.weight_decay"
    share = isinstance(optimizer.warmup, float)
    yield f"{key}.lr_warmup_steps{'_ratio' * share}", optimizer.warmup, f"{path}.warmup"
    if optimizer.schedule != "linear":
        yield f"{key}.lr_scheduler_type", optimizer.schedule, f"{path}.schedule"
        yield f"{key}.min_lr_ratio", optimizer.floor, f"{path}.floor"


def check_config(verl: VerlConfig, what: str, *, critic: bool, reference: bool) -> None:
    """Raise a `UserError` unless the configuration passes verl's own check and becomes its workers' classes."""
    from verl.utils.config import omega_conf_to_dataclass, validate_config  # noqa: PLC0415 it imports torch

    try:
        with redirect_stdout(io.StringIO()):  # verl prints that all is well
            resolved = OmegaConf.create(OmegaConf.to_container(verl.config, resolve=True))
            if critic:  # its own is made from the model of the critic, in the tables of an actor
                resolved.critic.strategy = resolved.actor_rollout_ref.actor.strategy
                resolved.critic.use_dynamic_bsz = True
                resolved.critic.model = {"use_remove_padding": resolved.actor_rollout_ref.model.use_remove_padding}
            validate_config(resolved, use_reference_policy=reference, use_critic=critic)
            omega_conf_to_dataclass(resolved.actor_rollout_ref.rollout)
    except (ValueError, AssertionError, TypeError, OmegaConfBaseException, HydraException) as error:
        why = error.__cause__ if isinstance(error, HydraException) and error.__cause__ else error
        raise UserError(f"{what}: verl's own check refuses this configuration: {why}") from error


def as_yaml(verl: VerlConfig, only: Iterable[str], *, everything: bool = False, leave_out: Iterable[str] = ()) -> str:
    """Return what is under some keys of the configuration as YAML, with the recipe key that each value came from.

    Without `everything` it has what differs from verl's defaults.
    """
    values = flat(OmegaConf.to_container(verl.config, resolve=True))
    defaults = flat(OmegaConf.to_container(default_config().config, resolve=True))
    rows = []
    for key, value in values.items():
        origin = next((origin for own, origin in verl.origins.items() if _is_under(key, [own])), None)
        if not _is_under(key, only) or _is_under(key, leave_out):
            continue
        if everything or (origin is not None and (key not in defaults or defaults[key] != value)):
            rows.append((key, value, origin))
    lines: list[tuple[str, str]] = []
    before: list[str] = []
    for key, value, origin in rows:
        parts = key.split(".")
        shared = next((i for i, (a, b) in enumerate(zip(parts, before, strict=False)) if a != b), 0)
        lines += [("  " * depth + f"{parts[depth]}:", "") for depth in range(shared, len(parts) - 1)]
        scalar = yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
        comment = "" if origin is None else f"# {origin}" if origin else "# rewardsmith's default"
        lines.append(("  " * (len(parts) - 1) + f"{parts[-1]}: {scalar}", comment))
        before = parts
    width = min(64, max((len(setting) for setting, comment in lines if comment), default=0))
    return "".join(f"{setting:<{width}}  {comment}".rstrip() + "\n" for setting, comment in lines)


def _is_under(key: str, places: Iterable[str]) -> bool:
    return f"{key}.".startswith(tuple(f"{place}." for place in places))
