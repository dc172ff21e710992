"""Policy losses, KL, reductions and what is added to a loss: equations, gradients, and invariances of every loss."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.advantages import ADVANTAGES, RewardTensors
from rewardsmith.algorithms.policy_losses import (
    POLICY_LOSSES,
    REDUCTIONS,
    cispo,
    clip,
    gmpo,
    gspo,
    importance_weights,
    kl_estimate,
    kl_loss,
    kl_reward,
    overlong_penalty,
    positive_sft_loss,
    reduce,
    reinforce,
    value_loss,
)
from tests.algorithms.batches import LossInput, assert_close, counted, loss_inputs, masks

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


every_loss = pytest.mark.parametrize("name", POLICY_LOSSES)


def gradient(inputs: LossInput, name: str) -> Tensor:
    """Return the gradient of the summed losses with respect to the log-probabilities."""
    logprobs_BT = inputs.logprobs_BT.detach().clone().requires_grad_()
    losses_BT, _ = POLICY_LOSSES[name](logprobs_BT, inputs.old_BT, inputs.advantages_BT, inputs.mask_BT)
    (gradient_BT,) = torch.autograd.grad(losses_BT.sum(), logprobs_BT)
    return gradient_BT


@every_loss
@settings(max_examples=25)
@given(inputs=loss_inputs())
def test_nothing_is_read_behind_the_mask_and_nothing_learns_there(name: str, inputs: LossInput) -> None:
    losses_BT, report = POLICY_LOSSES[name](inputs.logprobs_BT, inputs.old_BT, inputs.advantages_BT, inputs.mask_BT)
    for values_BT in (losses_BT, gradient(inputs, name), *report.values()):
        assert values_BT.shape == inputs.mask_BT.shape
        assert values_BT.isfinite().all()
        assert not values_BT[~inputs.mask_BT].any()


@every_loss
@settings(max_examples=25)
@given(inputs=loss_inputs(), columns=st.integers(1, 4), data=st.data())
def test_rows_are_independent_and_padding_changes_nothing(
    name: str, inputs: LossInput, columns: int, data: st.DataObject
) -> None:
    rows, width = inputs.mask_BT.shape
    chosen = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows, unique=True))
    padded = inputs.take(chosen).padded(columns)
    losses_BT, gradient_BT = padded.losses(POLICY_LOSSES[name]), gradient(padded, name)
    assert_close(losses_BT[:, :width], inputs.losses(POLICY_LOSSES[name])[chosen], 1e-12)
    assert_close(gradient_BT[:, :width], gradient(inputs, name)[chosen], 1e-12)
    assert not losses_BT[:, width:].any()
    assert not gradient_BT[:, width:].any()


@every_loss
def test_only_the_new_log_probabilities_get_a_gradient(name: str) -> None:
    tensors = [torch.full((2, 3), value, requires_grad=True) for value in (-1.0, -1.1, 0.5)]
    losses_BT, report = POLICY_LOSSES[name](*tensors, torch.ones(2, 3, dtype=torch.bool))
    losses_BT.sum().backward()
    logprobs_BT, old_BT, advantages_BT = tensors
    assert logprobs_BT.grad is not None
    assert old_BT.grad is None
    assert advantages_BT.grad is None
    assert not any(statistic_BT.requires_grad for statistic_BT in report.values())


@every_loss
@pytest.mark.parametrize("field", ["logprobs", "old logprobs", "advantages"])
@settings(max_examples=10)
@given(inputs=loss_inputs(), bad=st.sampled_from([torch.nan, torch.inf, -torch.inf]), data=st.data())
def test_a_number_that_is_not_finite_is_named(
    name: str, field: str, inputs: LossInput, bad: float, data: st.DataObject
) -> None:
    counts = [(row, t) for row in range(len(inputs.mask_BT)) for t in counted(inputs.mask_BT, row)]
    if not counts:
        return
    row, column = data.draw(st.sampled_from(counts))
    tensors = {"logprobs": inputs.logprobs_BT, "old logprobs": inputs.old_BT, "advantages": inputs.advantages_BT}
    tensors[field] = tensors[field].clone()
    tensors[field][row, column] = bad
    with pytest.raises(ValueError, match=rf"^{field}\[{row}, {column}\] is {bad}"):
        POLICY_LOSSES[name](*tensors.values(), inputs.mask_BT)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("logprob", [-1e4, -0.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_policy_that_moved_very_far_has_a_finite_loss(
    name: str, dtype: torch.dtype, logprob: float, advantage: float
) -> None:
    logprobs_BT = torch.full((1, 2), logprob, dtype=dtype)
    old_BT = torch.full((1, 2), -1e4 - logprob, dtype=dtype)
    inputs = LossInput(logprobs_BT, old_BT, torch.full_like(old_BT, advantage), torch.ones(1, 2, dtype=torch.bool))
    assert inputs.losses(POLICY_LOSSES[name]).isfinite().all()
    assert gradient(inputs, name).isfinite().all()


@every_loss
def test_a_batch_of_failures_has_loss_and_gradient_zero(name: str) -> None:
    nan_BT = torch.full((2, 3), torch.nan)
    inputs = LossInput(nan_BT, nan_BT, nan_BT, torch.zeros(2, 3, dtype=torch.bool))
    assert not inputs.losses(POLICY_LOSSES[name]).any()
    assert not gradient(inputs, name).any()


EQUATIONS = {"k1": lambda d: d, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(-d) - 1 + d}


every_kl = pytest.mark.parametrize("estimator", EQUATIONS)


LOGITS_V = torch.tensor([0.4, -1.2, 0.9, 0.0, 2.0], dtype=torch.float64)


REFERENCE_V = torch.log_softmax(torch.tensor([1.0, 0.3, -0.5, 0.2, 0.7], dtype=torch.float64), dim=-1)


@every_kl
@settings(max_examples=40)
@given(inputs=loss_inputs())
def test_estimates_follow_their_formula_and_are_zero_behind_the_mask(estimator: str, inputs: LossInput) -> None:
    expected_BT = torch.zeros(inputs.mask_BT.shape, dtype=torch.float64)
    for row, t in inputs.mask_BT.nonzero().tolist():
        expected_BT[row, t] = EQUATIONS[estimator](float(inputs.logprobs_BT[row, t] - inputs.old_BT[row, t]))
    arguments = (inputs.logprobs_BT, inputs.old_BT, inputs.mask_BT)
    assert_close(kl_estimate(*arguments, estimator=estimator), expected_BT)
    assert_close(kl_loss(*arguments, estimator=estimator), expected_BT)
    assert_close(kl_loss(*arguments, estimator=estimator, unbiased=True), expected_BT)
    assert_close(kl_reward(*arguments, estimator=estimator), -expected_BT)


def expected_gradient(estimator: str, *, unbiased: bool = False) -> Tensor:
    """Return E_{y~π}[∇ kl_loss(y)]: all tokens of the vocabulary, weighted by probabilities without gradient."""
    logits_V = LOGITS_V.clone().requires_grad_()
    logprobs_V = torch.log_softmax(logits_V, dim=-1)
    mask_BT = torch.ones(5, 1, dtype=torch.bool)
    losses_BT = kl_loss(logprobs_V[:, None], REFERENCE_V[:, None], mask_BT, estimator=estimator, unbiased=unbiased)
    (gradient_V,) = torch.autograd.grad((logprobs_V.exp().detach() * losses_BT[:, 0]).sum(), logits_V)
    return gradient_V


def true_gradient(*, forward: bool) -> Tensor:
    """Return ∇ KL(π_ref ‖ π) if `forward`, else ∇ KL(π ‖ π_ref)."""
    logits_V = LOGITS_V.clone().requires_grad_()
    logprobs_V = torch.log_softmax(logits_V, dim=-1)
    difference_V = logprobs_V - REFERENCE_V
    kl = -(REFERENCE_V.exp() * difference_V).sum() if forward else (logprobs_V.exp() * difference_V).sum()
    (gradient_V,) = torch.autograd.grad(kl, logits_V)
    return gradient_V


def test_expected_gradients_of_the_estimators_as_losses() -> None:
    backward_V, forward_V = true_gradient(forward=False), true_gradient(forward=True)
    assert (forward_V - backward_V).abs().max() > 0.01
    for estimator, expected_V in (("k1", 0 * forward_V), ("k2", backward_V), ("k3", forward_V)):
        assert_close(expected_gradient(estimator), expected_V, 1e-14)


@every_kl
def test_unbiased_losses_have_the_gradient_of_the_wanted_kl(estimator: str) -> None:
    assert_close(expected_gradient(estimator, unbiased=True), true_gradient(forward=False), 1e-14)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_have_the_kl_as_their_mean(estimator: str) -> None:
    logprobs_V = torch.log_softmax(LOGITS_V, dim=-1)
    mask_BT = torch.ones(5, 1, dtype=torch.bool)
    values_BT = kl_estimate(logprobs_V[:, None], REFERENCE_V[:, None], mask_BT, estimator=estimator)
    kl = sum(float(p.exp() * (p - q)) for p, q in zip(logprobs_V, REFERENCE_V, strict=True))
    assert_close((logprobs_V.exp() * values_BT[:, 0]).sum(), kl, 1e-14)


def test_k1_as_a_reward_gives_the_policy_gradient_of_the_kl() -> None:
    logits_V = LOGITS_V.clone().requires_grad_()
    logprobs_V = torch.log_softmax(logits_V, dim=-1)
    rewards_BT = kl_reward(logprobs_V[:, None], REFERENCE_V[:, None], torch.ones(5, 1, dtype=torch.bool))
    assert not rewards_BT.requires_grad
    surrogate = (logprobs_V.exp().detach() * rewards_BT[:, 0] * logprobs_V).sum()
    (gradient_V,) = torch.autograd.grad(surrogate, logits_V)
    assert_close(-gradient_V, true_gradient(forward=False), 1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("difference", [-1e4, -21.0, 21.0, 1e4])
def test_k3_is_finite_for_tokens_that_are_far_off(dtype: torch.dtype, difference: float) -> None:
    logprobs_BT = torch.full((1, 1), difference, dtype=dtype, requires_grad=True)
    estimate_BT = kl_estimate(
        logprobs_BT, torch.zeros_like(logprobs_BT), torch.ones(1, 1, dtype=torch.bool), estimator="k3"
    )
    estimate_BT.sum().backward()
    assert_close(estimate_BT, [[EQUATIONS["k3"](max(-20, difference))]], 1e-6)
    assert logprobs_BT.grad.item() == (0 if difference < -20 else pytest.approx(1, abs=1e-6))


SETTINGS = {"constant-length": {"length": 7}}


def weights(name: str, mask_BT: Tensor) -> Tensor:
    return REDUCTIONS[name](mask_BT, torch.float64, **SETTINGS.get(name, {}))


@settings(max_examples=40)
@given(mask_BT=masks(), seed=st.integers(0, 99))
def test_every_reduction_follows_its_formula(mask_BT: Tensor, seed: int) -> None:
    losses_BT = torch.randn(mask_BT.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = [losses_BT[i][mask_BT[i]].tolist() for i in range(len(mask_BT)) if mask_BT[i].any()]
    tokens, count = max(1, sum(map(len, rows))), max(1, len(rows))  # rows without a token are not counted
    expected = {
        "token-mean": sum(map(sum, rows)) / tokens,
        "sequence-mean-token-mean": sum(sum(row) / len(row) for row in rows) / count,
        "sequence-mean-token-sum": sum(map(sum, rows)) / count,
        "constant-length": sum(map(sum, rows)) / count / 7,
    }
    assert set(expected) == set(REDUCTIONS)
    for name, value in expected.items():
        assert_close(reduce(losses_BT, weights(name, mask_BT)), value, 1e-12)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_losses_behind_the_mask_are_not_read(name: str) -> None:
    mask_BT = torch.tensor([[True, False], [False, False]])
    losses_BT = torch.tensor([[2.0, torch.nan], [torch.inf, torch.nan]], requires_grad=True)
    loss = reduce(losses_BT, weights(name, mask_BT))
    loss.backward()
    assert loss.isfinite()
    assert losses_BT.grad.isfinite().all()
    assert losses_BT.grad[0, 0] > 0
    assert not losses_BT.grad[~mask_BT].any()


@settings(max_examples=50)
@given(
    inputs=loss_inputs(),
    level=st.sampled_from(["token", "sequence"]),
    outside=st.sampled_from(["truncate", "drop"]),
    floor=st.sampled_from([0.0, 0.5]),
    cap=st.sampled_from([1.2, 2.0]),
)
def test_weights_are_bounded_ratios(inputs: LossInput, level: str, outside: str, floor: float, cap: float) -> None:
    actual_BT = importance_weights(
        inputs.logprobs_BT, inputs.old_BT, inputs.mask_BT, level=level, cap=cap, floor=floor, outside=outside
    )
    assert not actual_BT[~inputs.mask_BT].any()
    for row in range(len(inputs.mask_BT)):
        columns = counted(inputs.mask_BT, row)
        log_ratios = {t: float(inputs.logprobs_BT[row, t] - inputs.old_BT[row, t]) for t in columns}
        for t in columns:
            weight = math.exp(log_ratios[t] if level == "token" else sum(log_ratios.values()))
            if outside == "truncate":
                expected = min(max(weight, floor), cap)
            else:
                expected = weight if floor <= weight <= cap else 0.0
            assert_close(actual_BT[row, t], expected)


@settings(max_examples=40)
@given(inputs=loss_inputs(), clip=st.sampled_from([None, 0.05, 1.0]))
def test_the_value_loss_is_half_the_larger_squared_error(inputs: LossInput, clip: float | None) -> None:
    # Any three tensors will do: log-probabilities stand for values, advantages for returns.
    values_BT = inputs.logprobs_BT.clone().requires_grad_()
    losses_BT, report = value_loss(values_BT, inputs.old_BT, inputs.advantages_BT, inputs.mask_BT, clip=clip)
    losses_BT.sum().backward()
    for row, t in inputs.mask_BT.nonzero().tolist():
        value, old, target = (float(x[row, t]) for x in (inputs.logprobs_BT, inputs.old_BT, inputs.advantages_BT))
        near = value if clip is None else min(max(value, old - clip), old + clip)
        binds = (near - target) ** 2 > (value - target) ** 2
        assert_close(losses_BT[row, t], max((value - target) ** 2, (near - target) ** 2) / 2)
        assert_close(values_BT.grad[row, t], 0.0 if binds else value - target)
        assert bool(report["clipped"][row, t]) == binds
    for result_BT in (losses_BT, values_BT.grad, report["clipped"]):
        assert not result_BT[~inputs.mask_BT].any()


@settings(max_examples=25)
@given(inputs=loss_inputs())
def test_only_what_went_well_is_imitated(inputs: LossInput) -> None:
    logprobs_BT = inputs.logprobs_BT.clone().requires_grad_()
    losses_BT, positive_BT = positive_sft_loss(logprobs_BT, inputs.advantages_BT, inputs.mask_BT)
    losses_BT.sum().backward()
    advantages_BT = torch.where(inputs.mask_BT, inputs.advantages_BT, 0)
    weights_BT = advantages_BT.clamp(min=0)
    assert torch.equal(positive_BT, advantages_BT > 0)
    assert_close(losses_BT, -weights_BT * torch.where(inputs.mask_BT, inputs.logprobs_BT, 0))
    assert_close(logprobs_BT.grad, -weights_BT)


def test_the_penalty_is_zero_then_falls_in_a_line_and_then_stays() -> None:
    lengths_B = torch.tensor([0, 80, 81, 90, 100, 101, 10_000])
    penalties_B = overlong_penalty(lengths_B, limit=100, buffer=20, factor=0.5)
    expected = [0, 0, -0.5 / 20, -0.5 * 10 / 20, -0.5, -0.5, -0.5]
    assert penalties_B.tolist() == pytest.approx(expected, rel=1e-6)


@every_loss
def test_losses_in_bfloat16_are_finite(name: str) -> None:
    logprobs_BT = -torch.tensor([[0.0, 1.0], [0.5, 0.0]]).bfloat16()
    mask_BT = torch.ones(2, 2, dtype=torch.bool)
    losses_BT, _ = POLICY_LOSSES[name](logprobs_BT, logprobs_BT - 0.125, -logprobs_BT / 4, mask_BT)
    assert losses_BT.dtype == torch.bfloat16
    assert losses_BT.isfinite().all()
