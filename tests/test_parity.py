"""Our functions against the values that verl and TRL compute; see docs/parity.md.

Tolerances are rtol 1e-8 and atol 1e-9 except where the peer itself is less exact:
`LENGTH_EPSILON`: verl adds 1e-8 to a number of tokens before dividing by it, which is 1e-8 of a one-token response.
`SINGLE`: verl casts to float32 inside.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rewardsmith.algorithms import advantages as adv
from rewardsmith.algorithms import policy_losses as pol
from rewardsmith.algorithms.advantages import Stream, estimate_advantages
from rewardsmith.algorithms.policy_losses import (
    importance_weights,
    kl_estimate,
    kl_loss,
    kl_reward,
    overlong_penalty,
    reduce,
    value_loss,
)
from rewardsmith.algorithms.preferences import bradley_terry, group_centering
from rewardsmith.engines.embedded.heads import Head
from rewardsmith.learning import lr_factor
from tests.parity.load import TRL, VERL, assert_near, assert_near_where, leaf, names, ours, version, weights

LENGTH_EPSILON = {"rtol": 2e-8, "atol": 1e-8}
SINGLE = {"rtol": 1e-6, "atol": 1e-6}

VERL_REDUCTIONS = {
    "token-mean": "token-mean",
    "seq-mean-token-mean": "sequence-mean-token-mean",
    "seq-mean-token-sum": "sequence-mean-token-sum",
    "seq-mean-token-sum-norm": "constant-length",
}
ESTIMATORS: dict[str, Callable[..., Tensor]] = {
    "grpo/ragged/True": adv.grpo,
    "grpo/ragged/False": adv.dr_grpo,
    "grpo_vectorized/ragged/True": adv.grpo,
    "grpo_vectorized/ragged/False": partial(adv.grpo, scale="none"),
    "rloo/ragged": adv.rloo,
    "rloo_vectorized/ragged": adv.rloo,
    "rloo_vectorized/degenerate": adv.rloo,
    "opo/ragged": adv.opo,
    "reinforce_plus_plus_baseline/ragged": adv.reinforce_plus_plus_baseline,
    "reinforce_plus_plus/ragged/0.95": partial(adv.reinforce_plus_plus, discount=0.95),
    "reinforce_plus_plus/gap/0.95": partial(adv.reinforce_plus_plus, discount=0.95),
}


@pytest.mark.parametrize("peer", ["verl", "trl"])
def test_the_recorded_versions_are_those_that_make_parity_installs(peer: str) -> None:
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8"))
    assert f"{peer}=={version(peer)}" in project["project"]["optional-dependencies"]["peers"]


# verl: advantages


@pytest.mark.parametrize("name", names(VERL, "gae/"))
def test_verl_gae(name: str) -> None:
    case = VERL[name]
    mask_BT, rewards_BT, values_BT = (case.inputs[key] for key in ("mask_BT", "rewards_BT", "values_BT"))
    settings = {"discount": case.settings["gamma"], "lam": case.settings["lam"]}
    groups_B = torch.zeros(len(mask_BT), dtype=torch.long)
    estimator = partial(adv.gae, **settings)
    stream = Stream("reward", rewards_BT)
    advantages_BT = estimate_advantages([stream], mask_BT, groups_B, values_BT, estimator=estimator, whiten=True)
    returns_BT = estimator(adv.RewardTensors(rewards_BT, mask_BT, groups_B, values_BT)) + values_BT
    assert_near_where(mask_BT, advantages_BT, case.outputs["advantages_BT"])
    assert_near(returns_BT[mask_BT], case.outputs["returns_BT"][mask_BT])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_verl_advantages(name: str) -> None:
    case = VERL[f"advantage/{name}"]
    mask_BT = case.inputs["mask_BT"]
    groups_B = case.inputs.get("groups_B", torch.zeros(len(mask_BT), dtype=torch.long))
    advantages_BT = ESTIMATORS[name](adv.RewardTensors(case.inputs["rewards_BT"], mask_BT, groups_B))
    tolerance = SINGLE if name.startswith("grpo_vectorized") else {}
    assert_near_where(mask_BT, advantages_BT, case.outputs["advantages_BT"], **tolerance)


def test_verl_remax() -> None:
    case = VERL["advantage/remax/ragged"]
    mask_BT = case.inputs["mask_BT"]
    greedy_BT = case.inputs["baselines_B"][:, None].expand(mask_BT.shape)
    advantages_BT = adv.remax(adv.RewardTensors(case.inputs["rewards_BT"], mask_BT, case.inputs["groups_B"], greedy_BT))
    assert_near_where(mask_BT, advantages_BT, case.outputs["advantages_BT"])


def test_verl_gdpo_of_one_reward() -> None:
    case = VERL["advantage/gdpo/ragged"]
    mask_BT, stream = case.inputs["mask_BT"], Stream("reward", case.inputs["rewards_BT"])
    advantages_BT = estimate_advantages(
        [stream], mask_BT, case.inputs["groups_B"], estimator=adv.grpo, combine="after", whiten=True
    )
    assert_near_where(mask_BT, advantages_BT, case.outputs["advantages_BT"])


def test_verl_gdpo_of_two_rewards() -> None:
    case = VERL["gdpo/two-rewards"]
    mask_BT = case.inputs["mask_BT"]
    first_BT = torch.arange(mask_BT.shape[1]) == 0  # an outcome may sit on any token
    streams = [
        Stream(str(weight), torch.where(first_BT, scores_B[:, None], 0), weight=weight)
        for weight, scores_B in zip(case.settings["gdpo_reward_weights"], case.inputs["scores_BK"].T, strict=True)
    ]
    advantages_BT = estimate_advantages(
        streams, mask_BT, case.inputs["groups_B"], estimator=adv.grpo, combine="after", whiten=True
    )
    assert_near_where(mask_BT, advantages_BT, case.outputs["advantages_BT"], **SINGLE)


# verl: losses


@pytest.mark.parametrize("name", names(VERL, "aggregation/"))
def test_verl_reductions(name: str) -> None:
    case = VERL[name]
    losses_BT, mask_BT = leaf(case.inputs["losses_BT"]), case.inputs["mask_BT"]
    mode = case.settings["loss_agg_mode"]
    settings = {"length": case.settings["loss_scale_factor"]} if mode.endswith("norm") else {}
    loss = reduce(losses_BT, weights(VERL_REDUCTIONS[mode], mask_BT, **settings))
    tolerance = LENGTH_EPSILON if mode == "seq-mean-token-mean" else {}
    assert_near(loss, case.outputs["loss"], **tolerance)
    assert_near(torch.autograd.grad(loss, losses_BT)[0], case.outputs["gradient"], **tolerance)


def _verl_policy_settings(settings: dict[str, Any]) -> dict[str, float | None]:
    dual = settings.get("clip_ratio_c")
    renamed = {"low": settings.get("clip_ratio_low"), "high": settings.get("clip_ratio_high")}
    # 1e9 stands for "no dual clip"
    return {key: value for key, value in renamed.items() if value is not None} | (
        {} if dual is None else {"dual": dual if dual < 1e9 else None}
    )


@pytest.mark.parametrize("name", names(VERL, "policy_loss/vanilla", "policy_loss/gspo/ragged", "policy_loss/gspo/gap",
                                       "policy_loss/cispo", "policy_loss/reinforce"))  # fmt: skip
def test_verl_policy_losses(name: str) -> None:
    case, kind = VERL[name], name.split("/")[1]
    inputs, settings, mode = case.inputs, case.settings, case.settings["loss_agg_mode"]
    weights_BT = None
    if "rollout_is" in settings:
        weights_BT = importance_weights(
            inputs["old_BT"], inputs["sampler_BT"], inputs["mask_BT"], level=settings["rollout_is"], cap=1.5
        )
    loss, gradient_BT, statistics = ours(
        {"vanilla": pol.clip, "gspo": pol.gspo, "cispo": pol.cispo, "reinforce": pol.reinforce}[kind],
        inputs,
        inputs["advantages_BT"],
        VERL_REDUCTIONS[mode],
        length=inputs["mask_BT"].shape[1] if mode.endswith("norm") else None,
        weights_BT=weights_BT,
        **_verl_policy_settings(settings),
    )
    tolerance = LENGTH_EPSILON if mode == "seq-mean-token-mean" else {}
    assert_near(loss, case.outputs["loss"], **tolerance)
    assert_near(gradient_BT, case.outputs["gradient"], **tolerance)
    if "extreme" not in name:
        assert_near(statistics["kl_from_old"], case.outputs["ppo_kl"])
    if kind != "reinforce":
        assert_near(statistics["clipped_low"] + statistics["clipped_high"], case.outputs["pg_clipfrac"])
        assert case.outputs["pg_clipfrac"] > 0.2
    if settings.get("clip_ratio_c") == 3.0:
        assert_near(statistics["clipped_dual"], case.outputs["pg_clipfrac_lower"])


@pytest.mark.parametrize("scenario", ["ragged", "gap"])
def test_verl_gmpo(scenario: str) -> None:
    (name,) = names(VERL, f"policy_loss/geo_mean/{scenario}")
    case = VERL[name]
    loss, gradient_BT, statistics = ours(
        pol.gmpo,
        case.inputs,
        case.inputs["advantages_BT"],
        "sequence-mean-token-mean",
        **_verl_policy_settings(case.settings),
    )
    assert_near(loss, case.outputs["loss"], **LENGTH_EPSILON)
    assert_near(gradient_BT, case.outputs["gradient"], **LENGTH_EPSILON)
    assert_near(statistics["kl_from_old"], case.outputs["ppo_kl"])


@pytest.mark.parametrize("name", names(VERL, "kl/ragged") + names(VERL, "kl/extreme", without="k3"))
def test_verl_kl(name: str) -> None:
    case = VERL[name]
    estimator, unbiased = case.settings["kl_penalty"].rstrip("+"), case.settings["kl_penalty"].endswith("+")
    logprobs_BT, mask_BT = leaf(case.inputs["logprobs_BT"]), case.inputs["mask_BT"]
    losses_BT = kl_loss(logprobs_BT, case.inputs["reference_BT"], mask_BT, estimator=estimator, unbiased=unbiased)
    assert_near_where(mask_BT, losses_BT, case.outputs["values_BT"])
    loss = reduce(losses_BT, weights("token-mean", mask_BT))
    assert_near(loss, case.outputs["loss"])
    assert_near(torch.autograd.grad(loss, logprobs_BT)[0], case.outputs["gradient"])
    reward_BT = kl_reward(logprobs_BT, case.inputs["reference_BT"], mask_BT, estimator=estimator)
    assert_near_where(mask_BT, reward_BT, -case.outputs["values_BT"])


@pytest.mark.parametrize("name", names(VERL, "value_loss/"))
def test_verl_value_loss(name: str) -> None:
    case, inputs = VERL[name], VERL[name].inputs
    values_BT, mask_BT, cliprange = leaf(inputs["new_values_BT"]), inputs["mask_BT"], case.settings["cliprange_value"]
    clip = cliprange if cliprange < 1e9 else None
    losses_BT, statistics = value_loss(values_BT, inputs["values_BT"], inputs["targets_BT"], mask_BT, clip=clip)
    loss = reduce(losses_BT, weights("token-mean", mask_BT))
    assert_near(loss, case.outputs["loss"])
    assert_near(torch.autograd.grad(loss, values_BT)[0], case.outputs["gradient"])
    assert_near(statistics["clipped"][mask_BT].double().mean(), case.outputs["clipped"])


def test_verl_entropy() -> None:
    case = VERL["entropy/ragged"]
    logits_NV = leaf(case.inputs["logits_NV"])
    head = Head(torch.eye(logits_NV.shape[1], dtype=torch.float64), None)
    _, values_N = head.token_logprobs(logits_NV, torch.zeros(len(logits_NV), dtype=torch.long), temperature=1.0)
    assert_near(values_N, case.outputs["values_N"])
    assert_near(torch.autograd.grad(values_N.sum(), logits_NV)[0], case.outputs["gradient"])


# verl: importance weights, schedules, shaping


@pytest.mark.parametrize("name", names(VERL, "importance/"))
def test_verl_importance_weights(name: str) -> None:
    case, inputs = VERL[name], VERL[name].inputs
    threshold = case.settings["rollout_is_threshold"]
    bounds: dict[str, Any] = {"cap": threshold}
    if isinstance(threshold, str):  # "low_high"
        low, high = threshold.split("_")
        bounds = {"floor": float(low), "cap": float(high), "outside": "drop"}
    weights_BT = importance_weights(
        inputs["old_BT"], inputs["sampler_BT"], inputs["mask_BT"], level=case.settings["rollout_is"], **bounds
    )
    assert_near(weights_BT, case.outputs["weights_BT"])


@pytest.mark.parametrize("name", names(VERL, "schedule/"))
def test_verl_schedules(name: str) -> None:
    case, total = VERL[name], 12
    schedule = name.removeprefix("schedule/").split("-")[0]
    settings = {"warmup": case.settings["num_warmup_steps"], "floor": case.settings.get("min_lr_ratio", 0.0)}
    factors = [lr_factor(schedule, step, total=total, **settings) for step in range(total + 1)]
    assert_near(torch.tensor(factors, dtype=torch.float64), case.outputs["factors"][: total + 1])


def test_verl_overlong_penalty() -> None:
    case = VERL["overlong"]
    lengths_B, limit = torch.tensor(case.settings["lengths_B"]), case.settings["max_resp_len"]
    penalties_B = overlong_penalty(
        lengths_B, limit=limit, buffer=case.settings["len"], factor=case.settings["penalty_factor"]
    )
    within_B = lengths_B <= limit
    assert_near(penalties_B[within_B], case.outputs["penalties_B"][within_B])


# TRL

TRL_REDUCTIONS = {
    "grpo": "sequence-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "dr_grpo": "constant-length",
}


def _trl_policy_loss(settings: dict[str, Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    low, high = settings["epsilon_low"], settings["epsilon_high"]
    if "loss_type" not in settings:
        return pol.gmpo, {"low": low, "high": high}
    if settings["loss_type"] == "cispo":  # TRL's bound is that of the ratio itself; there is none below
        return pol.cispo, {"low": 1.0, "high": high - 1}
    if settings["importance_sampling_level"] == "sequence":
        return pol.gspo, {"low": low, "high": high}
    return pol.clip, {"low": low, "high": high, "dual": settings.get("delta")}


@pytest.mark.parametrize("name", names(TRL, "policy_loss/"))
def test_trl_policy_losses(name: str) -> None:
    case, inputs = TRL[name], TRL[name].inputs
    mask_BT, logprobs_BT = inputs["mask_BT"], leaf(inputs["logprobs_BT"])
    loss_function, settings = _trl_policy_loss(case.settings)
    losses_BT, _ = loss_function(
        logprobs_BT, inputs["old_BT"], inputs["advantages_B"][:, None].expand(mask_BT.shape), mask_BT, **settings
    )
    if case.settings["beta"]:
        kl_BT = kl_estimate(logprobs_BT, inputs["reference_BT"], mask_BT, estimator="k3")
        losses_BT = losses_BT + case.settings["beta"] * kl_BT
    kind = TRL_REDUCTIONS[case.settings.get("loss_type", "grpo")]
    loss = reduce(losses_BT, weights(kind, mask_BT, **({"length": 11} if kind == "constant-length" else {})))
    assert_near(loss, case.outputs["loss"])
    assert_near(torch.autograd.grad(loss, logprobs_BT)[0], case.outputs["gradient"])


def _failures(rewards_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return rewards [B, 1] and the mask [B, 1] of the rollouts that were scored."""
    return rewards_B[:, None], ~rewards_B[:, None].isnan()


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_trl_grpo_with_failed_rewards(scale: str) -> None:
    case = TRL[f"advantage/grpo/{scale}"]
    rewards_BT, mask_BT = _failures(case.inputs["rewards_BK"][:, 0])
    advantages_BT = adv.grpo(adv.RewardTensors(rewards_BT, mask_BT, case.inputs["groups_B"]), scale=scale, eps=1e-4)
    assert_near(advantages_BT[:, 0], case.outputs["advantages_B"])


def test_trl_rloo_with_failed_rewards() -> None:
    case = TRL["advantage/rloo"]
    rewards_BT, mask_BT = _failures(case.inputs["rewards_BK"][:, 0])
    assert_near(
        adv.rloo(adv.RewardTensors(rewards_BT, mask_BT, case.inputs["groups_B"]))[:, 0], case.outputs["advantages_B"]
    )


def test_trl_rloo_with_kl_in_the_reward() -> None:
    case, inputs = TRL["rloo_with_kl"], TRL["rloo_with_kl"].inputs
    mask_BT = inputs["mask_BT"]
    penalty_BT = kl_reward(inputs["old_BT"], inputs["reference_BT"], mask_BT, estimator="k1")
    rewards_BT = inputs["rewards_BT"] + case.settings["beta"] * penalty_BT
    advantages_BT = adv.rloo(adv.RewardTensors(rewards_BT, mask_BT, torch.zeros(len(mask_BT), dtype=torch.long)))
    expected_B = case.outputs["advantages_B"]
    assert_near_where(mask_BT, advantages_BT, expected_B[:, None].expand(mask_BT.shape))


@pytest.mark.parametrize("name", names(TRL, "importance/"))
def test_trl_importance_weights(name: str) -> None:
    case, inputs = TRL[name], TRL[name].inputs
    level, outside = case.settings["vllm_importance_sampling_mode"].split("_")
    weights_BT = importance_weights(
        inputs["old_BT"],
        inputs["sampler_BT"],
        inputs["mask_BT"],
        level=level,
        floor=case.settings["vllm_importance_sampling_clip_min"],
        cap=case.settings["vllm_importance_sampling_clip_max"],
        outside="drop" if outside == "mask" else "truncate",
    )
    assert_near_where(inputs["mask_BT"], weights_BT, case.outputs["weights"].expand(weights_BT.shape))


@pytest.mark.parametrize("name", names(TRL, "preference/"))
def test_trl_bradley_terry(name: str) -> None:
    case = TRL[name]
    chosen_N, rejected_N = leaf(case.inputs["chosen_N"]), leaf(case.inputs["rejected_N"])
    margin_N = case.inputs["margin_N"] if case.settings["margin"] else None
    loss = bradley_terry(chosen_N, rejected_N, margin_N=margin_N).mean()
    if case.settings["center_rewards_coefficient"] is not None:
        pairs_GN = torch.stack([chosen_N, rejected_N], -1)
        centering_G = group_centering(pairs_GN, torch.ones_like(pairs_GN, dtype=torch.bool))
        loss = loss + case.settings["center_rewards_coefficient"] * centering_G.mean()
    assert_near(loss, case.outputs["loss"])
    assert_near(torch.cat(torch.autograd.grad(loss, [chosen_N, rejected_N])), case.outputs["gradient"])
