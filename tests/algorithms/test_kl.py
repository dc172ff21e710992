"""KL estimators: their values, and their expected gradients by enumeration of a small vocabulary."""

import math

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from rewardsmith.algorithms.kl import kl_estimate, kl_loss, kl_reward
from tests.algorithms.batches import LossInput, assert_close, hidden, loss_inputs

EQUATIONS = {"k1": lambda d: d, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(-d) - 1 + d}
every_estimator = pytest.mark.parametrize("estimator", EQUATIONS)

LOGITS_V = torch.tensor([0.4, -1.2, 0.9, 0.0, 2.0], dtype=torch.float64)
REFERENCE_V = torch.log_softmax(torch.tensor([1.0, 0.3, -0.5, 0.2, 0.7], dtype=torch.float64), dim=-1)


@every_estimator
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


def test_k1_as_a_loss_has_no_expected_gradient() -> None:
    assert_close(expected_gradient("k1"), [0.0] * 5, 1e-14)


def test_k2_as_a_loss_has_the_gradient_of_the_wanted_kl() -> None:
    assert true_gradient(forward=False).abs().max() > 0.1
    assert_close(expected_gradient("k2"), true_gradient(forward=False), 1e-14)


def test_k3_as_a_loss_has_the_gradient_of_the_other_direction() -> None:
    assert_close(expected_gradient("k3"), true_gradient(forward=True), 1e-14)
    assert (true_gradient(forward=True) - true_gradient(forward=False)).abs().max() > 0.01


@every_estimator
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


@every_estimator
@pytest.mark.parametrize("unbiased", [False, True])
def test_only_the_policy_gets_a_gradient_and_none_behind_the_mask(estimator: str, unbiased: bool) -> None:
    mask_BT = torch.tensor([[True, False], [False, False]])
    logprobs_BT = hidden(torch.full((2, 2), -1.0), mask_BT).requires_grad_()
    reference_BT = hidden(torch.full((2, 2), -2.0), mask_BT).requires_grad_()
    kl_loss(logprobs_BT, reference_BT, mask_BT, estimator=estimator, unbiased=unbiased).sum().backward()
    assert reference_BT.grad is None
    assert logprobs_BT.grad[0, 0] != 0
    assert logprobs_BT.grad[~mask_BT].tolist() == [0, 0, 0]


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
