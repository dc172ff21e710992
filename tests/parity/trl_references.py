"""Reference values of TRL: its trainers' own methods, called on stand-ins that hand them log-probs and rewards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer, RewardTrainer, RLOOTrainer
from trl.experimental.gmpo import GMPOTrainer

from tests.parity.reference import Reference, as_tensor
from tests.parity.scenarios import SCENARIOS

VERSION = version("trl")


def _inputs(scenario: str) -> dict[str, Tensor]:
    tensors = {name: as_tensor(name, values) for name, values in SCENARIOS[scenario]().items()}
    if "mask_BT" in tensors:
        tensors["mask_BT"] = tensors["mask_BT"].long()
    return tensors


def _trainer(**settings: Any) -> SimpleNamespace:
    """Return what the methods read from `self`: one process, one step of accumulation, no optional feature."""
    return SimpleNamespace(
        accelerator=SimpleNamespace(
            device=torch.device("cpu"),
            num_processes=1,
            process_index=0,
            gather=lambda tensor: tensor,
            gather_for_metrics=lambda tensor: tensor,
            reduce=lambda tensor, reduction: tensor,
        ),
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
        current_gradient_accumulation_steps=1,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
        **settings,
    )


def _policy_loss(cls: type, scenario: str, settings: dict[str, Any]) -> dict[str, Any]:
    data = _inputs(scenario)
    logprobs_BT = data["logprobs_BT"].clone().requires_grad_()
    arguments = SimpleNamespace(delta=settings.get("delta"), use_bias_correction_kl=False, steps_per_generation=1)
    trainer = _trainer(args=arguments, max_completion_length=11, **{k: v for k, v in settings.items() if k != "delta"})
    # Entropies are only logged.
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs_BT, torch.zeros_like(logprobs_BT), None)
    prompt = torch.ones(len(logprobs_BT), 1, dtype=torch.long)
    loss = cls._compute_loss(
        trainer,
        None,
        {
            "prompt_ids": prompt,
            "prompt_mask": prompt,
            "completion_ids": torch.ones_like(data["mask_BT"]),
            "completion_mask": data["mask_BT"],
            "advantages": data["advantages_B"],
            "old_per_token_logps": data["old_BT"],
            "ref_per_token_logps": data.get("reference_BT"),
            "num_items_in_batch": data["mask_BT"].sum(),
        },
    )
    (gradient,) = torch.autograd.grad(loss, logprobs_BT)
    return {"loss": loss, "gradient": gradient}


def policy_losses() -> Iterator[Reference]:
    """GRPO's loss types and GMPO; dr_grpo divides by max_completion_length = 11."""
    base = {"epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.0, "importance_sampling_level": "token"}
    variants: dict[str, dict[str, Any]] = {f"{name}/token": {"loss_type": name} for name in ("grpo", "bnpo", "dapo")}
    variants["dr_grpo/token"] = {"loss_type": "dr_grpo"}
    variants["grpo/token/delta"] = {"loss_type": "grpo", "delta": 1.8}
    variants["grpo/token/beta"] = {"loss_type": "grpo", "beta": 0.04}
    variants["dapo/token/beta-delta"] = {"loss_type": "dapo", "beta": 0.04, "delta": 1.8}
    variants["cispo/token"] = {"loss_type": "cispo", "epsilon_high": 1.5}
    for name in ("grpo", "dapo"):
        variants[f"{name}/sequence"] = {"loss_type": name, "importance_sampling_level": "sequence"}
    variants["grpo/sequence/beta"] = {"loss_type": "grpo", "importance_sampling_level": "sequence", "beta": 0.04}
    for variant, changes in variants.items():
        settings = base | changes
        outputs = _policy_loss(GRPOTrainer, "ragged", settings)
        yield Reference(f"policy_loss/{variant}", "GRPOTrainer._compute_loss", "ragged", settings, outputs)
    gmpo = {"epsilon_low": 0.4, "epsilon_high": 0.4, "beta": 0.04}
    outputs = _policy_loss(GMPOTrainer, "ragged", gmpo)
    yield Reference("policy_loss/gmpo", "GMPOTrainer._compute_loss", "ragged", gmpo, outputs)
    for name in ("grpo", "dr_grpo", "bnpo"):
        settings = base | {"loss_type": name}
        outputs = _policy_loss(GRPOTrainer, "empty_row", settings)
        yield Reference(f"empty_row/{name}", "GRPOTrainer._compute_loss", "empty_row", settings, outputs)
    settings = base | {"loss_type": "bnpo"}
    outputs = _policy_loss(GRPOTrainer, "extreme", settings)
    yield Reference("extreme/bnpo", "GRPOTrainer._compute_loss", "extreme", settings, outputs)


def _score(cls: type, rewards_BK: Tensor, logps_BT: Tensor, **settings: Any) -> dict[str, Tensor]:
    """Run generation and scoring with stubs for both, so that the method's own arithmetic is all that is left."""
    rows, kinds = rewards_BK.shape
    names = [f"reward_{k}" for k in range(kinds)]
    trainer = _trainer(
        environment_factories=None,
        environments=None,
        tools=None,
        pad_to_multiple_of=None,
        mask_truncated_completions=False,
        num_iterations=1,
        reward_weights=settings.pop("reward_weights", torch.ones(kinds)),
        reward_funcs=names,
        reward_func_names=names,
        ref_model=object(),
        log_multimodal=False,
        _tokenizer=SimpleNamespace(pad_token_id=0),
        _logs=defaultdict(list) | {"rewards": defaultdict(list), "extra": defaultdict(list)},
        _pending_extra_logs={},
        _pending_metrics={},
        _calculate_rewards=lambda *_: rewards_BK,
        args=SimpleNamespace(
            per_device_train_batch_size=rows,
            gradient_checkpointing_kwargs=None,
            steps_per_generation=1,
            gradient_accumulation_steps=1,
        ),
    )
    lengths_B, sampled = settings.pop("lengths_B", [1] * rows), settings.pop("sampled", None)
    prompts, completions = [[1]] * rows, [[1] * length for length in lengths_B]
    trainer._generate = lambda _: (
        (prompts, completions, ["text"] * rows)
        if cls is RLOOTrainer
        else (prompts, completions, None, ["text"] * rows, sampled, {}, None, None)
    )
    reference_BT = settings.pop("reference_BT", logps_BT)
    trainer._get_per_token_logps_and_entropies = lambda model, *_, **__: (
        (reference_BT if model is trainer.ref_model else logps_BT),
        None,
        None,
    )
    vars(trainer).update({"beta": 0.0, "num_generations": rows} | settings)
    return cls._generate_and_score_completions(trainer, [{"prompt": "text"} for _ in range(rows)])


def advantages() -> Iterator[Reference]:
    """Group advantages where some rewards failed: one reward function (its rows with None fail), then two."""
    rewards_BK = _inputs("rewards_with_failures")["rewards_BK"]
    logps_BT = torch.zeros(len(rewards_BK), 1)
    scenario, function = "rewards_with_failures", "_generate_and_score_completions"

    def score(cls: type, rewards_BK: Tensor, **settings: Any) -> dict[str, Tensor]:
        return {"advantages_B": _score(cls, rewards_BK, logps_BT, num_generations=4, **settings)["advantages"]}

    for scale in ("group", "batch", "none"):
        settings = {"scale_rewards": scale, "multi_objective_aggregation": "sum_then_normalize"}
        outputs = score(GRPOTrainer, rewards_BK[:, :1], **settings)
        yield Reference(f"advantage/grpo/{scale}", f"GRPOTrainer.{function}", scenario, settings, outputs)
    settings = {"scale_rewards": "none", "multi_objective_aggregation": "sum_then_normalize"}
    outputs = score(GRPOTrainer, rewards_BK, **settings)
    yield Reference("partly_scored", f"GRPOTrainer.{function}", scenario, settings, outputs)
    settings = {"scale_rewards": "group", "multi_objective_aggregation": "normalize_then_sum"}
    weights = [1.0, 0.25]
    outputs = score(GRPOTrainer, rewards_BK, reward_weights=torch.tensor(weights), **settings)
    settings = settings | {"reward_weights": weights}
    yield Reference("gdpo", f"GRPOTrainer.{function}", scenario, settings, outputs)
    settings = {"reward_clip_range": None, "normalize_advantages": False}
    outputs = score(RLOOTrainer, rewards_BK[:, :1], **settings)
    yield Reference("advantage/rloo", f"RLOOTrainer.{function}", scenario, settings, outputs)


def rloo_with_kl() -> Iterator[Reference]:
    """RLOO with the reference KL in the reward; rewards are the rows' sums, and the nine rows form one group."""
    data = _inputs("ragged")
    settings = {"beta": 0.05, "reward_clip_range": None, "normalize_advantages": False}
    result = _score(
        RLOOTrainer,
        data["rewards_BT"].sum(-1, keepdim=True),
        data["old_BT"],
        reference_BT=data["reference_BT"],
        lengths_B=data["mask_BT"].sum(-1).tolist(),
        **settings,
    )
    outputs = {"advantages_B": result["advantages"]}
    yield Reference("rloo_with_kl", "RLOOTrainer._generate_and_score_completions", "ragged", settings, outputs)


def importance() -> Iterator[Reference]:
    """Weights for the mismatch of sampler and learner."""
    data = _inputs("ragged")
    lengths_B = data["mask_BT"].sum(-1).tolist()
    for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        settings = {
            "vllm_importance_sampling_mode": mode,
            "vllm_importance_sampling_clip_min": 0.4,
            "vllm_importance_sampling_clip_max": 1.5,
        }
        result = _score(
            GRPOTrainer,
            torch.ones(len(lengths_B), 1),
            data["old_BT"],
            sampled=[row[:length] for row, length in zip(data["sampler_BT"].tolist(), lengths_B, strict=True)],
            lengths_B=lengths_B,
            use_vllm=True,
            vllm_importance_sampling_correction=True,
            scale_rewards="group",
            multi_objective_aggregation="sum_then_normalize",
            **settings,
        )
        outputs = {"weights": result["importance_sampling_ratio"]}
        function = "GRPOTrainer._generate_and_score_completions"
        yield Reference(f"importance/{mode}", function, "ragged", settings, outputs)


def preferences() -> Iterator[Reference]:
    """Bradley-Terry with and without margin and centring; the gradient is that of the chosen, then rejected rewards."""
    data = _inputs("pairs")
    for margin in (False, True):
        for coefficient in (None, 0.01):
            rewards = torch.cat([data["chosen_N"], data["rejected_N"]])[:, None].requires_grad_()
            trainer = _trainer(
                args=SimpleNamespace(center_rewards_coefficient=coefficient), _total_train_tokens=0, _tp_size=1
            )
            inputs = {"attention_mask": torch.ones_like(rewards)} | ({"margin": data["margin_N"]} if margin else {})
            output = SimpleNamespace(logits=rewards)
            loss = RewardTrainer.compute_loss(trainer, lambda output=output, **_: output, inputs)
            (gradient,) = torch.autograd.grad(loss, rewards)
            yield Reference(
                f"preference/{'margin' if margin else 'plain'}/{coefficient}",
                "RewardTrainer.compute_loss",
                "pairs",
                {"margin": margin, "center_rewards_coefficient": coefficient},
                {"loss": loss, "gradient": gradient[:, 0]},
            )


def references() -> Iterator[Reference]:
    """Yield every case."""
    for family in (policy_losses, advantages, rloo_with_kl, importance, preferences):
        yield from family()
