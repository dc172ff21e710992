"""Value loss, entropy and imitation of good rollouts."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.algorithms.auxiliary_losses import entropy, positive_sft_loss, value_loss
from tests.algorithms.batches import LossInput, assert_close, loss_inputs


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


def test_only_the_new_values_get_a_gradient() -> None:
    values_BT, old_BT, returns_BT = (torch.full((1, 2), x, requires_grad=True) for x in (1.0, 1.1, 3.0))
    losses_BT, _ = value_loss(values_BT, old_BT, returns_BT, torch.ones(1, 2, dtype=torch.bool), clip=0.5)
    losses_BT.sum().backward()
    assert values_BT.grad.tolist() == [[-2, -2]]
    assert old_BT.grad is None
    assert returns_BT.grad is None


@settings(max_examples=25)
@given(st.lists(st.floats(-20, 20), min_size=1, max_size=6), st.floats(-100, 100))
def test_entropy_is_minus_the_mean_log_probability(logits: list[float], shift: float) -> None:
    total = sum(math.exp(z) for z in logits)
    expected = -sum(math.exp(z) / total * math.log(math.exp(z) / total) for z in logits)
    logits_NV = torch.tensor([logits], dtype=torch.float64)
    assert_close(entropy(logits_NV), [expected], 1e-9)
    assert_close(entropy(logits_NV + shift), [expected], 1e-9)


def test_a_forbidden_token_adds_nothing_to_the_entropy_or_its_gradient() -> None:
    logits_NV = torch.tensor([[0.3, -torch.inf, 1.0]], dtype=torch.float64, requires_grad=True)
    entropy(logits_NV).sum().backward()
    assert_close(entropy(logits_NV), entropy(torch.tensor([[0.3, 1.0]], dtype=torch.float64)), 1e-14)
    assert logits_NV.grad.isfinite().all()
    assert logits_NV.grad[0, 1] == 0


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
