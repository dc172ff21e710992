"""Every policy loss against its equation, its gradient, and the policy gradient theorem by enumeration."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.advantages import ADVANTAGES, RewardTensors
from rewardsmith.algorithms.policy_losses import POLICY_LOSSES, cispo, clip, gmpo, gspo, reinforce
from tests.algorithms.batches import LossInput, assert_close, counted, loss_inputs

RATIOS = [0.01, 0.5, 0.79, 0.81, 1.0, 1.29, 1.31, 2.9, 3.1, 50.0]


def grid(advantages: list[float]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return log-probabilities, old ones, advantages, mask and ratio, [advantages, ratios]: every case of a clip."""
    ratio_BT = torch.tensor(RATIOS, dtype=torch.float64).expand(len(advantages), -1)
    old_BT = torch.full_like(ratio_BT, -1.5)
    advantages_BT = torch.tensor(advantages).double()[:, None].expand_as(ratio_BT)
    mask_BT = torch.ones_like(ratio_BT, dtype=torch.bool)
    return (old_BT + ratio_BT.log()).requires_grad_(), old_BT, advantages_BT, mask_BT, ratio_BT


def per_row(inputs: LossInput, row: int) -> tuple[list[int], list[float], list[float]]:
    """Return the columns of a row that count, their log-ratios and their advantages."""
    columns = counted(inputs.mask_BT, row)
    log_ratios = [float(inputs.logprobs_BT[row, t] - inputs.old_BT[row, t]) for t in columns]
    return columns, log_ratios, [float(inputs.advantages_BT[row, t]) for t in columns]


def test_clip_stops_the_gradient_exactly_where_it_binds() -> None:
    advantages = [2.0, -2.0, 0.0]
    logprobs_BT, old_BT, advantages_BT, mask_BT, _ = grid(advantages)
    losses_BT, report = clip(logprobs_BT, old_BT, advantages_BT, mask_BT, low=0.2, high=0.3)
    losses_BT.sum().backward()
    for row, a in enumerate(advantages):
        for column, ratio in enumerate(RATIOS):
            too_high, too_low = a > 0 and ratio > 1.3, a < 0 and ratio < 0.8
            expected = -a * (1.3 if too_high else 0.8 if too_low else ratio)
            assert_close(losses_BT[row, column], expected, 1e-12)
            # d(-Aρ)/d log π = -Aρ
            assert_close(logprobs_BT.grad[row, column], 0.0 if too_high or too_low else -a * ratio, 1e-12)
            assert report["clipped_high"][row, column] == too_high
            assert report["clipped_low"][row, column] == too_low


def test_dual_clip_bounds_the_loss_of_negative_advantages_only() -> None:
    advantages = [2.0, -2.0]
    logprobs_BT, old_BT, advantages_BT, mask_BT, ratio_BT = grid(advantages)
    losses_BT, report = clip(logprobs_BT, old_BT, advantages_BT, mask_BT, low=0.2, high=0.3, dual=3.0)
    plain_BT, _ = clip(logprobs_BT, old_BT, advantages_BT, mask_BT, low=0.2, high=0.3)
    losses_BT.sum().backward()
    assert torch.equal(losses_BT[0], plain_BT[0])
    capped = ratio_BT[1] > 3
    assert_close(losses_BT[1], torch.where(capped, 2.0 * 3.0, plain_BT[1].detach()), 1e-12)
    assert not logprobs_BT.grad[1][capped].any()
    assert_close(logprobs_BT.grad[1][~capped & (ratio_BT[1] > 0.8)], 2.0 * ratio_BT[1][~capped & (ratio_BT[1] > 0.8)])
    assert report["clipped_dual"].tolist() == [[False] * len(RATIOS), capped.tolist()]


def test_cispo_clips_the_weight_and_no_gradient() -> None:
    advantages = [2.0, -2.0]
    logprobs_BT, old_BT, advantages_BT, mask_BT, ratio_BT = grid(advantages)
    losses_BT, report = cispo(logprobs_BT, old_BT, advantages_BT, mask_BT, low=0.2, high=0.3)
    losses_BT.sum().backward()
    weight_BT = torch.tensor([[min(max(r, 0.8), 1.3) for r in RATIOS]] * 2, dtype=torch.float64)
    assert_close(losses_BT, -weight_BT * advantages_BT * logprobs_BT.detach(), 1e-12)
    assert_close(logprobs_BT.grad, -weight_BT * advantages_BT, 1e-12)
    assert torch.equal(report["clipped_high"], ratio_BT > 1.3)
    assert torch.equal(report["clipped_low"], ratio_BT < 0.8)
    open_below_BT = cispo(logprobs_BT, old_BT, advantages_BT, mask_BT)[0].detach()
    expected_BT = -ratio_BT.clamp(max=5.0) * advantages_BT * logprobs_BT.detach()
    assert_close(open_below_BT, expected_BT, 1e-12)


@settings(max_examples=40)
@given(loss_inputs())
def test_reinforce_is_minus_advantage_times_log_probability(inputs: LossInput) -> None:
    expected_BT = torch.where(inputs.mask_BT, -inputs.advantages_BT * inputs.logprobs_BT, 0)
    assert_close(inputs.losses(reinforce), expected_BT, 1e-14)


@settings(max_examples=40)
@given(loss_inputs())
def test_gspo_clips_the_geometric_mean_and_keeps_each_tokens_gradient(inputs: LossInput) -> None:
    logprobs_BT = inputs.logprobs_BT.clone().requires_grad_()
    losses_BT, report = gspo(logprobs_BT, inputs.old_BT, inputs.advantages_BT, inputs.mask_BT, low=0.1, high=0.2)
    losses_BT.sum().backward()
    for row in range(len(inputs.mask_BT)):
        columns, log_ratios, advantages = per_row(inputs, row)
        for t, a in zip(columns, advantages, strict=True):
            ratio = math.exp(sum(log_ratios) / len(columns))
            too_high, too_low = a > 0 and ratio > 1.2, a < 0 and ratio < 0.9
            assert_close(losses_BT[row, t], -a * (1.2 if too_high else 0.9 if too_low else ratio))
            assert_close(logprobs_BT.grad[row, t], 0.0 if too_high or too_low else -a * ratio)
            assert (report["clipped_high"][row, t], report["clipped_low"][row, t]) == (too_high, too_low)


@settings(max_examples=40)
@given(loss_inputs(), st.booleans())
def test_gmpo_is_the_geometric_mean_of_ratios_clipped_against_the_advantage(inputs: LossInput, mixed: bool) -> None:
    # An advantage of exactly 0 beside others has a test of its own.
    advantages_BT = inputs.advantages_BT + 0.25
    advantages_BT = advantages_BT if mixed else advantages_BT.nanmean(-1, keepdim=True).expand_as(advantages_BT)
    inputs = replace(inputs, advantages_BT=advantages_BT)
    logprobs_BT = inputs.logprobs_BT.clone().requires_grad_()
    losses_BT, report = gmpo(logprobs_BT, inputs.old_BT, inputs.advantages_BT, inputs.mask_BT, low=0.3, high=0.5)
    losses_BT.sum().backward()
    for row in range(len(inputs.mask_BT)):
        columns, log_ratios, advantages = per_row(inputs, row)
        if not columns:
            continue
        pessimistic = [min(x, 0.5) if a > 0 else max(x, -0.3) for x, a in zip(log_ratios, advantages, strict=True)]
        expected = -sum(advantages) / len(columns) * math.exp(sum(pessimistic) / len(columns))
        for t, x, y, a in zip(columns, log_ratios, pessimistic, advantages, strict=True):
            assert_close(losses_BT[row, t], expected)
            # every token holds the loss, so the sum over tokens cancels the 1/|y| of the mean
            assert_close(logprobs_BT.grad[row, t], expected if x == y else 0.0)
            clipped = (report["clipped_low"][row, t], report["clipped_high"][row, t])
            assert clipped == (x != y and a < 0, x != y and a > 0)


def test_a_token_without_advantage_adds_nothing_to_the_geometric_mean_of_gmpo() -> None:
    mask_BT, old_BT = torch.ones(1, 2, dtype=torch.bool), torch.full((1, 2), -3.0).double()
    log_ratios_BT = torch.tensor([[0.1, 0.2]], dtype=torch.float64)
    losses_BT, _ = gmpo(old_BT + log_ratios_BT, old_BT, torch.tensor([[2.0, 0.0]]).double(), mask_BT)
    assert_close(losses_BT, [[-1 * math.exp((0.1 + 0) / 2)] * 2], 1e-12)


@pytest.mark.parametrize("loss", [clip, gspo])
def test_the_log_ratio_is_bounded_to_twenty_and_has_no_gradient_beyond(loss) -> None:
    logprobs_BT = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    old_BT, mask_BT = torch.full((1, 2), -25.0).double(), torch.ones(1, 2, dtype=torch.bool)
    losses_BT, _ = loss(logprobs_BT, old_BT, torch.full_like(old_BT, -1.0), mask_BT)
    losses_BT.sum().backward()
    assert_close(losses_BT, [[math.exp(20)] * 2], 1e-12)
    assert logprobs_BT.grad.tolist() == [[0, 0]]


# ---- all losses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_the_expected_gradient_on_policy_is_that_of_the_expected_reward(name: str) -> None:
    logits_V = torch.tensor([0.5, -1.0, 0.2, 0.0, 1.3]).double().requires_grad_()
    rewards_V = torch.tensor([1.0, -2.0, 0.0, 3.0, 0.5]).double()
    logprobs_V = torch.log_softmax(logits_V, dim=-1)
    (wanted_V,) = torch.autograd.grad(-(logprobs_V.exp() * rewards_V).sum(), logits_V, retain_graph=True)
    mask_BT = torch.ones(5, 1, dtype=torch.bool)
    losses_BT, _ = POLICY_LOSSES[name](logprobs_V[:, None], logprobs_V[:, None].detach(), rewards_V[:, None], mask_BT)
    (actual_V,) = torch.autograd.grad((logprobs_V.exp().detach() * losses_BT[:, 0]).sum(), logits_V)
    assert_close(actual_V, wanted_V, 1e-12)


def test_reward_to_go_has_the_expected_gradient_of_all_rewards_of_two_tokens() -> None:
    # y1 from softmax(first), y2 from softmax(second[y1]); a reward after each token.
    generator = torch.Generator().manual_seed(0)
    first_V = torch.randn(3, generator=generator, dtype=torch.float64).requires_grad_()
    second_VV = torch.randn(3, 3, generator=generator, dtype=torch.float64).requires_grad_()
    early_V, late_VV = torch.randn(3, generator=generator).double(), torch.randn(3, 3, generator=generator).double()
    log_first_V, log_second_VV = torch.log_softmax(first_V, -1), torch.log_softmax(second_VV, -1)
    logprobs_BT = torch.stack([log_first_V[:, None].expand(3, 3), log_second_VV], -1).reshape(9, 2)
    rewards_BT = torch.stack([early_V[:, None].expand(3, 3), late_VV], -1).reshape(9, 2)
    probability_B = logprobs_BT.sum(-1).exp()
    wanted = torch.autograd.grad(-(probability_B * rewards_BT.sum(-1)).sum(), [first_V, second_VV], retain_graph=True)
    mask_BT = torch.ones(9, 2, dtype=torch.bool)
    advantages_BT = ADVANTAGES["reinforce"](RewardTensors(rewards_BT, mask_BT, torch.zeros(9, dtype=torch.long)))
    losses_BT, _ = reinforce(logprobs_BT, logprobs_BT.detach(), advantages_BT, mask_BT)
    actual = torch.autograd.grad((probability_B.detach() * losses_BT.sum(-1)).sum(), [first_V, second_VV])
    assert_close(actual[0], wanted[0], 1e-12)
    assert_close(actual[1], wanted[1], 1e-12)
