"""What must hold for every policy loss. Parametrised over the table of losses, so a new one is tested as well."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.policy_losses import POLICY_LOSSES
from tests.algorithms.batches import LossInput, assert_close, counted, loss_inputs

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
@settings(max_examples=25)
@given(inputs=loss_inputs())
def test_float32_is_float64_rounded(name: str, inputs: LossInput) -> None:
    single = inputs.to(torch.float32)
    log_ratio_BT = torch.where(inputs.mask_BT, single.logprobs_BT.double() - single.old_BT.double(), 0)
    losses_BT = single.losses(POLICY_LOSSES[name])
    assert losses_BT.dtype == torch.float32
    scale = float(log_ratio_BT.abs().max().exp())
    assert_close(losses_BT / scale, single.to(torch.float64).losses(POLICY_LOSSES[name]) / scale, 1e-4)


@every_loss
def test_a_batch_of_failures_has_loss_and_gradient_zero(name: str) -> None:
    nan_BT = torch.full((2, 3), torch.nan)
    inputs = LossInput(nan_BT, nan_BT, nan_BT, torch.zeros(2, 3, dtype=torch.bool))
    assert not inputs.losses(POLICY_LOSSES[name]).any()
    assert not gradient(inputs, name).any()
