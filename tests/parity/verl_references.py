"""Reference values of verl: advantages, policy losses, KL, value loss, entropy, importance weights, schedules."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.utils import torch_functional
from verl.workers.config import ActorConfig
from verl.workers.reward_manager.dapo import DAPORewardManager

from tests.parity.reference import Reference, as_tensor
from tests.parity.scenarios import SCENARIOS

VERSION = version("verl")

AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")


def _inputs(scenario: str) -> dict[str, Tensor]:
    """Return a scenario as verl takes it: masks are integers, forbidden tokens have logit -inf."""
    tensors = {name: as_tensor(name, values) for name, values in SCENARIOS[scenario]().items()}
    tensors["mask_BT"] = tensors["mask_BT"].long()
    if "logits_NV" in tensors:
        tensors["logits_NV"] = tensors["logits_NV"].nan_to_num(nan=-torch.inf)
    return tensors


def _with_gradient(loss: Tensor, leaf: Tensor) -> dict[str, Tensor]:
    (gradient,) = torch.autograd.grad(loss, leaf)
    return {"loss": loss, "gradient": gradient}


def gae() -> Iterator[Reference]:
    """GAE, with and without gaps."""
    for scenario in ("ragged", "gap"):
        data = _inputs(scenario)
        for gamma, lam in ((1.0, 1.0), (0.97, 0.9)):
            advantages_BT, returns_BT = core_algos.compute_gae_advantage_return(
                data["rewards_BT"], data["values_BT"], data["mask_BT"], gamma, lam
            )
            yield Reference(
                f"gae/{scenario}/gamma={gamma}",
                "compute_gae_advantage_return",
                scenario,
                {"gamma": gamma, "lam": lam},
                {"advantages_BT": advantages_BT, "returns_BT": returns_BT},
            )


def _estimate(name: str, scenario: str, settings: dict[str, Any]) -> Reference:
    data = _inputs(scenario)
    estimator = core_algos.get_adv_estimator_fn(name)
    arguments: dict[str, Any] = {"config": AlgoConfig(gamma=settings.get("gamma", 1.0))}
    if "groups_B" in data:
        arguments["index"] = data["groups_B"].numpy()
    if name == "remax":
        arguments["reward_baselines"] = data["baselines_B"]
    if "norm_adv_by_std_in_grpo" in settings:
        arguments["norm_adv_by_std_in_grpo"] = settings["norm_adv_by_std_in_grpo"]
    advantages_BT, _ = estimator(
        token_level_rewards=data["rewards_BT"].clone(), response_mask=data["mask_BT"], **arguments
    )
    variant = "".join(f"/{value}" for value in settings.values())
    return Reference(
        f"advantage/{name}/{scenario}{variant}",
        estimator.__name__,
        scenario,
        settings,
        {"advantages_BT": advantages_BT},
    )


def advantages() -> Iterator[Reference]:
    """All estimators without a critic; `degenerate` and `empty_row` are where we differ on purpose."""
    for normed in (True, False):
        settings = {"norm_adv_by_std_in_grpo": normed}
        yield from (_estimate("grpo", scenario, settings) for scenario in ("ragged", "degenerate", "empty_row"))
        yield _estimate("grpo_vectorized", "ragged", settings)
    for name in ("rloo", "rloo_vectorized", "opo", "reinforce_plus_plus_baseline"):
        yield from (_estimate(name, scenario, {}) for scenario in ("ragged", "degenerate"))
    yield from (_estimate("reinforce_plus_plus", scenario, {"gamma": 0.95}) for scenario in ("ragged", "gap"))
    yield _estimate("remax", "ragged", {})


def gdpo() -> Iterator[Reference]:
    """GDPO on two rewards (float32 inside verl), and on one (float64)."""
    yield _estimate("gdpo", "ragged", {})
    data = _inputs("ragged")
    keys, weights = ["first", "second"], [1.0, 0.25]
    prompts = torch.zeros(len(data["mask_BT"]), 1, dtype=torch.long)
    advantages_BT, _ = core_algos.compute_gdpo_outcome_advantage(
        token_level_rewards=data["rewards_BT"],
        response_mask=data["mask_BT"],
        index=data["groups_B"].numpy(),
        config=AlgoConfig(gdpo_reward_keys=keys, gdpo_reward_weights=weights),
        non_tensor_batch={key: data["scores_BK"][:, k].numpy() for k, key in enumerate(keys)},
        batch={"prompts": prompts, "attention_mask": torch.cat([prompts + 1, data["mask_BT"]], dim=1)},
    )
    yield Reference(
        "gdpo/two-rewards",
        "compute_gdpo_outcome_advantage",
        "ragged",
        {"gdpo_reward_weights": weights},
        {"advantages_BT": advantages_BT},
    )


def aggregations() -> Iterator[Reference]:
    """agg_loss in every mode that we have."""
    for scenario in ("ragged", "gap", "empty_row"):
        data = _inputs(scenario)
        for mode in AGGREGATIONS:
            losses_BT = data["losses_BT"].clone().requires_grad_()
            settings = {"loss_agg_mode": mode} | ({"loss_scale_factor": 11} if mode.endswith("norm") else {})
            loss = core_algos.agg_loss(losses_BT, data["mask_BT"], **settings)
            yield Reference(
                f"aggregation/{scenario}/{mode}", "agg_loss", scenario, settings, _with_gradient(loss, losses_BT)
            )


def _policy_loss(name: str, scenario: str, mode: str, settings: dict[str, float], weights: str = "") -> Reference:
    data = _inputs(scenario)
    function = core_algos.compute_policy_loss_reinforce if name == "reinforce" else core_algos.get_policy_loss_fn(name)
    logprobs_BT = data["logprobs_BT"].clone().requires_grad_()
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **settings)
    weights_BT = None
    if weights:
        log_ratio_BT = data["old_BT"] - data["sampler_BT"]
        weights_BT, _ = compute_rollout_correction_weights(log_ratio_BT, data["mask_BT"], weights, 1.5)
    loss, metrics = function(
        data["old_BT"], logprobs_BT, data["advantages_BT"], data["mask_BT"], mode, config, weights_BT
    )
    recorded = dict(settings) | {"loss_agg_mode": mode} | ({"rollout_is": weights} if weights else {})
    variant = "".join(f"/{value}" for value in (*settings.values(), weights) if value)
    return Reference(
        f"policy_loss/{name}/{scenario}/{mode}{variant}",
        function.__name__,
        scenario,
        recorded,
        _with_gradient(loss, logprobs_BT) | {key.removeprefix("actor/"): value for key, value in metrics.items()},
    )


def policy_losses() -> Iterator[Reference]:
    """Values, gradients and clip fractions; clip_ratio_c = 1e9 stands for no dual clip, which verl cannot turn off."""
    clip = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
    for mode in AGGREGATIONS:
        yield _policy_loss("vanilla", "ragged", mode, clip | {"clip_ratio_c": 3.0})
    yield _policy_loss("vanilla", "ragged", "token-mean", clip | {"clip_ratio_c": 1e9})
    yield _policy_loss("vanilla", "ragged", "token-mean", clip | {"clip_ratio_c": 3.0}, weights="token")
    yield _policy_loss("reinforce", "ragged", "seq-mean-token-sum", {}, weights="sequence")
    yield _policy_loss("vanilla", "extreme", "token-mean", clip | {"clip_ratio_c": 1e9})
    for scenario in ("ragged", "gap", "extreme"):
        yield _policy_loss("gspo", scenario, "seq-mean-token-mean", {"clip_ratio_low": 0.1, "clip_ratio_high": 0.15})
        yield _policy_loss("cispo", scenario, "token-mean", {"clip_ratio_low": 0.5, "clip_ratio_high": 0.6})
    yield _policy_loss("vanilla", "gap", "token-mean", clip | {"clip_ratio_c": 3.0})
    yield _policy_loss("reinforce", "ragged", "token-mean", {})
    for scenario in ("ragged", "gap", "empty_row"):
        yield _policy_loss("geo_mean", scenario, "token-mean", {"clip_ratio_low": 0.3, "clip_ratio_high": 0.4})


def kl() -> Iterator[Reference]:
    """The KL estimators and, with '+', their straight-through forms."""
    for scenario in ("ragged", "extreme"):
        data = _inputs(scenario)
        for name in ("k1", "k2", "k3", "k1+", "k2+", "k3+"):
            logprobs_BT = data["logprobs_BT"].clone().requires_grad_()
            values_BT = core_algos.kl_penalty(logprobs_BT, data["reference_BT"], name)
            loss = core_algos.agg_loss(values_BT, data["mask_BT"], "token-mean")
            yield Reference(
                f"kl/{scenario}/{name}",
                "kl_penalty",
                scenario,
                {"kl_penalty": name},
                _with_gradient(loss, logprobs_BT) | {"values_BT": values_BT},
            )


def value_losses() -> Iterator[Reference]:
    """The critic's loss; a range of 1e9 stands for no clipping."""
    data = _inputs("ragged")
    for cliprange in (0.3, 1e9):
        values_BT = data["new_values_BT"].clone().requires_grad_()
        loss, clipped = core_algos.compute_value_loss(
            values_BT, data["targets_BT"], data["values_BT"], data["mask_BT"], cliprange
        )
        yield Reference(
            f"value_loss/{cliprange}",
            "compute_value_loss",
            "ragged",
            {"cliprange_value": cliprange},
            _with_gradient(loss, values_BT) | {"clipped": clipped},
        )


def entropies() -> Iterator[Reference]:
    """Entropy of logits, with the gradient of its sum."""
    for scenario in ("ragged", "extreme"):
        logits_NV = _inputs(scenario)["logits_NV"].requires_grad_()
        values_N = torch_functional.entropy_from_logits(logits_NV)
        (gradient,) = torch.autograd.grad(values_N.sum(), logits_NV)
        outputs = {"values_N": values_N, "gradient": gradient}
        yield Reference(f"entropy/{scenario}", "entropy_from_logits", scenario, {}, outputs)


def importance() -> Iterator[Reference]:
    """Weights for the mismatch of sampler and learner: truncated, and IcePop's "low_high"."""
    for scenario in ("ragged", "gap"):
        data = _inputs(scenario)
        for level in ("token", "sequence"):
            for threshold in (1.5, "0.5_1.5"):
                weights_BT, _ = compute_rollout_correction_weights(
                    data["old_BT"] - data["sampler_BT"], data["mask_BT"], level, threshold
                )
                yield Reference(
                    f"importance/{scenario}/{level}/{threshold}",
                    "compute_rollout_correction_weights",
                    scenario,
                    {"rollout_is": level, "rollout_is_threshold": threshold},
                    {"weights_BT": weights_BT},
                )


def schedules() -> Iterator[Reference]:
    """Factors at steps 0 to 14 of schedules that end at 12; the last two show what happens after the end."""
    total, warmup = 12, 3
    for name, settings in {
        "cosine": {"num_warmup_steps": warmup, "num_training_steps": total, "min_lr_ratio": 0.1},
        "cosine-no-floor": {"num_warmup_steps": 0, "num_training_steps": total, "min_lr_ratio": 0.0},
        "constant": {"num_warmup_steps": warmup},
    }.items():
        function = getattr(torch_functional, f"get_{name.split('-')[0]}_schedule_with_warmup")
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler = function(optimizer, **settings)
        factors = []
        for _ in range(total + 3):
            factors.append(scheduler.get_last_lr()[0])
            optimizer.step()
            scheduler.step()
        yield Reference(f"schedule/{name}", function.__name__, None, settings, {"factors": factors})


def overlong() -> Iterator[Reference]:
    """DAPO's penalty, through the reward manager; a buffer of 4 tokens keeps its float32 exact."""
    lengths_B, limit, buffer, factor = [3, 6, 7, 9, 10, 12], 10, 4, 0.5
    attention = torch.tensor([[1] + [int(t < length) for t in range(12)] for length in lengths_B])
    tensors = {
        "prompts": torch.ones(6, 1, dtype=torch.long),
        "responses": torch.ones(6, 12, dtype=torch.long),
        "attention_mask": attention,
    }
    rows = {
        "reward_model": np.array([{"ground_truth": ""}] * 6, dtype=object),
        "data_source": np.array(["none"] * 6, dtype=object),
        "extra_info": np.array([{} for _ in lengths_B], dtype=object),
    }
    manager = DAPORewardManager(
        tokenizer=SimpleNamespace(decode=lambda *_, **__: "answer", eos_token="<eos>"),
        num_examine=0,
        compute_score=lambda **_: 0.0,
        max_resp_len=limit,
        overlong_buffer_cfg=SimpleNamespace(enable=True, len=buffer, penalty_factor=factor, log=False),
    )
    rewards_BT = manager(DataProto.from_dict(tensors=tensors, non_tensors=rows))
    settings = {"lengths_B": lengths_B, "max_resp_len": limit, "len": buffer, "penalty_factor": factor}
    yield Reference("overlong", "DAPORewardManager.__call__", None, settings, {"penalties_B": rewards_BT.sum(-1)})


def references() -> Iterator[Reference]:
    """Yield every case."""
    for family in (gae, advantages, gdpo, aggregations, policy_losses, kl, value_losses, entropies):
        yield from family()
    for family in (importance, schedules, overlong):
        yield from family()
