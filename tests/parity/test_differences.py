"""Where we differ from verl or TRL on purpose: both sides are pinned to the formula that they follow."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rewardsmith.algorithms import advantages as adv
from rewardsmith.algorithms import policy_losses as pol
from rewardsmith.algorithms.advantages import Stream, estimate_advantages
from rewardsmith.algorithms.policy_losses import kl_loss, overlong_penalty
from rewardsmith.learning import lr_factor
from tests.parity.load import TRL, VERL, assert_near, leaf, names, ours

ALONE = 3  # the row of `degenerate` that has no sibling
CLIP = {"low": 0.2, "high": 0.28}


def _first_token(name: str) -> Tensor:
    return VERL[f"advantage/{name}"].outputs["advantages_BT"][:, 0]


@pytest.mark.parametrize(
    ("name", "estimator", "verl_gives"),
    [
        ("grpo/degenerate/True", adv.grpo, 2.0 / (1 + 1e-6)),
        ("grpo/degenerate/False", adv.dr_grpo, 2.0),
        ("rloo/degenerate", adv.rloo, 2.0),
        ("opo/degenerate", adv.opo, 2.0),
    ],
)
def test_a_rollout_without_sibling_has_no_advantage(
    name: str, estimator: Callable[..., Tensor], verl_gives: float
) -> None:
    inputs = VERL[f"advantage/{name}"].inputs
    expected_B = _first_token(name)
    assert expected_B[ALONE].item() == pytest.approx(verl_gives, rel=1e-9)  # its whole reward of 2
    expected_B = expected_B.index_fill(0, torch.tensor(ALONE), 0.0)
    assert_near(
        estimator(adv.RewardTensors(inputs["rewards_BT"], inputs["mask_BT"], inputs["groups_B"]))[:, 0], expected_B
    )


def test_a_rollout_without_sibling_does_not_enter_the_whitening() -> None:
    inputs = VERL["advantage/grpo/degenerate/False"].inputs
    mask_BT, centred_BT = inputs["mask_BT"], VERL["advantage/grpo/degenerate/False"].outputs["advantages_BT"]
    compared_BT = mask_BT & (torch.arange(6) != ALONE)[:, None]

    def whitened(tokens: Tensor) -> Tensor:
        return (centred_BT - tokens.mean()) / (tokens.var() + 1e-8).sqrt()

    name = "advantage/reinforce_plus_plus_baseline/degenerate"
    assert_near(whitened(centred_BT[mask_BT])[mask_BT], VERL[name].outputs["advantages_BT"][mask_BT])
    actual_BT = adv.reinforce_plus_plus_baseline(adv.RewardTensors(inputs["rewards_BT"], mask_BT, inputs["groups_B"]))
    assert_near(actual_BT, torch.where(compared_BT, whitened(centred_BT[compared_BT]), 0))


@pytest.mark.parametrize("normed", [True, False])
def test_a_failed_rollout_does_not_vote(normed: bool) -> None:
    """Verl counts a row without tokens as a reward of 0; TRL and we leave it out."""
    inputs = VERL[f"advantage/grpo/empty_row/{normed}"].inputs

    def formula(rewards_B: Tensor, voters_B: Tensor) -> Tensor:
        return (rewards_B - voters_B.mean()) / (voters_B.std() + 1e-6 if normed else 1)

    rewards_B, takes_part_B = inputs["rewards_BT"].sum(-1), inputs["mask_BT"].any(-1)
    assert_near(_first_token(f"grpo/empty_row/{normed}")[takes_part_B], formula(rewards_B, rewards_B)[takes_part_B])
    actual_BT = adv.grpo(
        adv.RewardTensors(inputs["rewards_BT"], inputs["mask_BT"], inputs["groups_B"]),
        scale="group" if normed else "none",
    )
    expected_B = torch.where(takes_part_B, formula(rewards_B, rewards_B[takes_part_B]), 0)
    assert_near(actual_BT[:, 0], expected_B)


@pytest.mark.parametrize("plus", [False, True])
def test_k3_is_not_cut_off_at_10(plus: bool) -> None:
    case = VERL[f"kl/extreme/k3{'+' * plus}"]
    logprobs_BT = leaf(case.inputs["logprobs_BT"])
    losses_BT = kl_loss(logprobs_BT, case.inputs["reference_BT"], case.inputs["mask_BT"], estimator="k3", unbiased=plus)
    (gradient_BT,) = torch.autograd.grad(losses_BT.mean(), logprobs_BT)
    difference_BT = (logprobs_BT - case.inputs["reference_BT"]).detach()
    assert_near(losses_BT, torch.exp(-difference_BT) - 1 + difference_BT)
    cut_BT = losses_BT.detach() > 10
    assert cut_BT.sum() == 2
    assert_near(losses_BT.detach().clamp(max=10), case.outputs["values_BT"])
    # Without '+' verl's cut-off also takes the gradient away; '+' has that of k2 in both systems.
    expected_BT = case.outputs["gradient"] if plus else torch.where(cut_BT, 0, gradient_BT)
    assert_near(expected_BT, case.outputs["gradient"])
    assert_near(gradient_BT, (difference_BT if plus else 1 - torch.exp(-difference_BT)) / 6)


def test_the_sequence_ratio_of_gspo_is_bounded_at_20_not_10() -> None:
    (name,) = names(VERL, "policy_loss/gspo/extreme")
    case = VERL[name]
    inputs = case.inputs
    mean = (inputs["logprobs_BT"] - inputs["old_BT"])[0].mean().item()
    assert 10 < mean < 20
    # Row 0 has A = -1, row 1 has A = -1/2 and is clipped at 1 - 0.1.
    assert case.outputs["loss"].item() == pytest.approx((math.exp(10) + 0.5 * 0.9) / 2, rel=1e-8)
    assert not case.outputs["gradient"].any()
    loss, gradient_BT, _ = ours(
        pol.gspo, inputs, inputs["advantages_BT"], "sequence-mean-token-mean", low=0.1, high=0.15
    )
    assert loss.item() == pytest.approx((math.exp(mean) + 0.5 * 0.9) / 2, rel=1e-12)
    assert_near(gradient_BT, torch.tensor([[math.exp(mean) / 6] * 3, [0.0] * 3], dtype=torch.float64))


def test_the_dual_clip_is_off_unless_set() -> None:
    case = VERL["policy_loss/vanilla/ragged/token-mean/0.2/0.28/3.0"]
    inputs, mask_BT = case.inputs, case.inputs["mask_BT"]
    loss, gradient_BT, _ = ours(pol.clip, inputs, inputs["advantages_BT"], "token-mean", **CLIP)
    ratio_BT = (inputs["logprobs_BT"] - inputs["old_BT"]).exp()
    capped_BT = mask_BT & (inputs["advantages_BT"] < 0) & (ratio_BT > 3)
    assert capped_BT.sum() == 2
    excess = (-inputs["advantages_BT"] * (ratio_BT - 3))[capped_BT].sum() / mask_BT.sum()
    assert_near(loss - excess, case.outputs["loss"])
    assert_near(torch.where(capped_BT, 0, gradient_BT), case.outputs["gradient"])
    assert gradient_BT[capped_BT].all()


def test_an_empty_row_does_not_thin_out_the_mean_of_gmpo() -> None:
    (name,) = names(VERL, "policy_loss/geo_mean/empty_row")
    case = VERL[name]
    loss, gradient_BT, _ = ours(
        pol.gmpo, case.inputs, case.inputs["advantages_BT"], "sequence-mean-token-mean", low=0.3, high=0.4
    )
    tolerance = {"rtol": 2e-8, "atol": 1e-8}  # verl adds 1e-8 to each length
    assert_near(loss * 3 / 4, case.outputs["loss"], **tolerance)  # three of four rows have tokens
    assert_near(gradient_BT * 3 / 4, case.outputs["gradient"], **tolerance)


@pytest.mark.parametrize(
    ("name", "reduction", "length", "ratio"),
    [
        ("grpo", "sequence-mean-token-mean", None, 3 / 4),
        ("dr_grpo", "constant-length", 11, 3 / 4),
        ("bnpo", "token-mean", None, 1),
    ],
)
def test_an_empty_row_does_not_thin_out_the_means_of_trl(
    name: str, reduction: str, length: int | None, ratio: float
) -> None:
    case = TRL[f"empty_row/{name}"]
    advantages_BT = case.inputs["advantages_B"][:, None].expand(case.inputs["mask_BT"].shape)
    loss, gradient_BT, _ = ours(pol.clip, case.inputs, advantages_BT, reduction, length=length, **CLIP)
    assert_near(loss * ratio, case.outputs["loss"])
    assert_near(gradient_BT * ratio, case.outputs["gradient"])


def test_trl_does_not_bound_the_ratio() -> None:
    case = TRL["extreme/bnpo"]
    log_ratio_BT = case.inputs["logprobs_BT"] - case.inputs["old_BT"]
    advantages_BT = case.inputs["advantages_B"][:, None].expand(log_ratio_BT.shape)
    loss, gradient_BT, _ = ours(pol.clip, case.inputs, advantages_BT, "token-mean", **CLIP)
    # A < 0: the ratio is free above, and clipped at 0.8 below, which is all of row 1.
    assert_near((log_ratio_BT[0].exp().sum() + 3 * 0.5 * 0.8) / 6, case.outputs["loss"])
    assert_near(case.outputs["gradient"][0], log_ratio_BT[0].exp() / 6)
    assert_near(loss, (log_ratio_BT[0].clamp(max=20).exp().sum() + 3 * 0.5 * 0.8) / 6)
    assert_near(gradient_BT[0], torch.where(log_ratio_BT[0] > 20, 0, case.outputs["gradient"][0]))


def test_trl_takes_the_bound_of_cispo_as_it_is() -> None:
    """`epsilon_high` = 1.5 bounds the ratio at 1.5, where `high` = 1.5 bounds it at 2.5."""
    case = TRL["policy_loss/cispo/token"]
    ratio_BT = (case.inputs["logprobs_BT"] - case.inputs["old_BT"]).exp()
    mask_BT, advantages_B1 = case.inputs["mask_BT"], case.inputs["advantages_B"][:, None]
    assert_near(-(ratio_BT.clamp(max=1.5) * advantages_B1)[mask_BT] / 40, case.outputs["gradient"][mask_BT])
    _, gradient_BT, _ = ours(pol.cispo, case.inputs, advantages_B1.expand(9, 7), "token-mean", low=1.0, high=1.5)
    assert_near(gradient_BT[mask_BT], -(ratio_BT.clamp(max=2.5) * advantages_B1)[mask_BT] / 40)


def test_trl_adds_1e_4_to_the_standard_deviation() -> None:
    case = TRL["advantage/grpo/group"]
    rewards_BT, groups_B = case.inputs["rewards_BK"][:, :1], case.inputs["groups_B"]
    actual_B = adv.grpo(adv.RewardTensors(rewards_BT, ~rewards_BT.isnan(), groups_B))[:, 0]
    first_B = torch.tensor([True, True, False, True] + [False] * 12)  # the scored rollouts of group 0
    std = rewards_BT[first_B].std()
    assert_near(actual_B[first_B] * (std + 1e-6) / (std + 1e-4), case.outputs["advantages_B"][first_B])


def test_trl_scales_gdpo_over_rollouts_not_tokens() -> None:
    """TRL ends with (A - μ) / (σ + 1e-4) over scored rollouts, we with (A - μ) / sqrt(σ² + 1e-8) over tokens."""
    case = TRL["gdpo"]
    rewards_BK, groups_B = case.inputs["rewards_BK"], case.inputs["groups_B"]
    mask_BT = ~rewards_BK.isnan().all(-1, keepdim=True)
    streams = [
        Stream(str(k), rewards_BK[:, k : k + 1], mask_BT=~rewards_BK[:, k : k + 1].isnan(), weight=weight)
        for k, weight in enumerate(case.settings["reward_weights"])
    ]

    def estimate(inputs: adv.RewardTensors, **settings: float) -> Tensor:
        return adv.grpo(inputs, eps=1e-4, **settings)

    sum_BT = estimate_advantages(streams, mask_BT, groups_B, estimator=estimate, combine="after")
    scored = sum_BT[mask_BT]
    assert_near((scored - scored.mean()) / (scored.std() + 1e-4), case.outputs["advantages_B"][mask_BT[:, 0]])
    actual_BT = estimate_advantages(streams, mask_BT, groups_B, estimator=estimate, combine="after", whiten=True)
    assert_near(actual_BT[mask_BT], (scored - scored.mean()) / (scored.var() + 1e-8).sqrt())


def test_siblings_on_different_scales_are_refused() -> None:
    """TRL sums what it has: in group 1 a rollout with one of two rewards competes with those that have both."""
    case = TRL["partly_scored"]
    rewards_BK = case.inputs["rewards_BK"]
    sums_B = rewards_BK.nansum(-1)[4:8]
    assert_near(sums_B - sums_B.mean(), case.outputs["advantages_B"][4:8])
    streams = [
        Stream(f"reward {k}", rewards_BK[:, k : k + 1], mask_BT=~rewards_BK[:, k : k + 1].isnan()) for k in range(2)
    ]
    mask_BT = ~rewards_BK.isnan().all(-1, keepdim=True)
    with pytest.raises(ValueError, match="'reward 0' scored 3 of 4 rollouts in group 1"):
        estimate_advantages(streams, mask_BT, case.inputs["groups_B"], estimator=adv.grpo)


@pytest.mark.parametrize(("name", "warmup", "floor"), [("cosine", 3, 0.1), ("cosine-no-floor", 0, 0.0)])
def test_the_cosine_does_not_rise_again_after_the_end(name: str, warmup: int, floor: float) -> None:
    factors = VERL[f"schedule/{name}"].outputs["factors"]
    assert factors[14] > factors[13] > factors[12] == floor
    for step in (12, 13, 14):
        assert lr_factor("cosine", step, total=12, warmup=warmup, floor=floor) == pytest.approx(floor, rel=1e-12)


def test_the_overlong_penalty_is_bounded() -> None:
    case = VERL["overlong"]
    assert case.settings["lengths_B"][-1] == 12
    assert case.outputs["penalties_B"][-1] == -0.5 * (12 - 6) / 4
    assert overlong_penalty(torch.tensor([12]), limit=10, buffer=4, factor=0.5).item() == -0.5
