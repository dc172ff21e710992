"""Implicit process rewards: from two models' log-probabilities to the rewards that make a stream."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.implicit_rewards import implicit_rewards, values_before
from tests.algorithms.batches import Batch, LossInput, assert_close, batches, counted, hidden, loss_inputs
from tests.algorithms.tensors import gather_steps, normalise_by_return, smooth


def row_sums(batch: Batch) -> list[float]:
    return [sum(float(batch.rewards_BT[i, t]) for t in counted(batch.mask_BT, i)) for i in range(len(batch.mask_BT))]


@settings(max_examples=25)
@given(loss_inputs())
def test_the_implicit_reward_is_beta_times_the_log_ratio_to_the_reference(inputs: LossInput) -> None:
    rewards_BT = implicit_rewards(inputs.logprobs_BT, inputs.old_BT, inputs.mask_BT, beta=0.05)
    assert_close(rewards_BT, torch.where(inputs.mask_BT, 0.05 * (inputs.logprobs_BT - inputs.old_BT), 0))
    assert not implicit_rewards(inputs.old_BT, inputs.old_BT, inputs.mask_BT, beta=0.05).any()


def test_only_the_reward_model_gets_a_gradient() -> None:
    mask_BT = torch.tensor([[True, False]])
    model_BT, reference_BT = (hidden(torch.zeros(1, 2), mask_BT).requires_grad_() for _ in range(2))
    implicit_rewards(model_BT, reference_BT, mask_BT, beta=0.5).sum().backward()
    assert model_BT.grad.tolist() == [[0.5, 0]]
    assert reference_BT.grad is None


@settings(max_examples=40)
@given(batch=batches(), whole=st.booleans(), seed=st.integers(0, 99))
def test_gathering_moves_each_step_onto_its_last_token(batch: Batch, whole: bool, seed: int) -> None:
    rows, width = batch.mask_BT.shape
    jumps_BT = torch.randint(0, 2, (rows, width), generator=torch.Generator().manual_seed(seed))
    steps_BT = torch.zeros_like(jumps_BT) if whole else (jumps_BT.cumsum(-1)).clamp(max=width - 1)
    expected_BT = torch.zeros(rows, width, dtype=torch.float64)
    support_BT = torch.zeros(rows, width, dtype=torch.bool)
    for row in range(rows):
        for step in range(width):
            members = [t for t in counted(batch.mask_BT, row) if steps_BT[row, t] == step]
            if members:
                expected_BT[row, members[-1]] = sum(float(batch.rewards_BT[row, t]) for t in members)
                support_BT[row, members[-1]] = True
    gathered_BT, carrying_BT = gather_steps(batch.rewards_BT, batch.mask_BT, None if whole else steps_BT)
    assert_close(gathered_BT, expected_BT)
    assert torch.equal(carrying_BT, support_BT)
    assert_close(gathered_BT.sum(-1), row_sums(batch))


@settings(max_examples=25)
@given(batches())
def test_normalising_bounds_every_return_of_the_batch_by_one(batch: Batch) -> None:
    returns = [0.0]
    for row in range(len(batch.mask_BT)):
        columns = counted(batch.mask_BT, row)
        returns += [sum(float(batch.rewards_BT[row, s]) for s in columns[i:]) for i in range(len(columns))]
    expected_BT = torch.where(batch.mask_BT, batch.rewards_BT, 0) / (max(map(abs, returns)) + 1e-6)
    assert_close(normalise_by_return(batch.rewards_BT, batch.mask_BT), expected_BT)


@settings(max_examples=40)
@given(batch=batches(), lam=st.sampled_from([0.0, 0.3, 1.0]))
def test_smoothing_follows_its_recursion(batch: Batch, lam: float) -> None:
    expected_BT = torch.zeros_like(batch.rewards_BT)
    for row in range(len(batch.mask_BT)):
        after = 0.0
        for t in reversed(counted(batch.mask_BT, row)):
            after = float(batch.rewards_BT[row, t]) + lam * after
            expected_BT[row, t] = after
    assert_close(smooth(batch.rewards_BT, batch.mask_BT, lam=lam), expected_BT)


@settings(max_examples=40)
@given(batches())
def test_a_value_is_the_sum_of_the_rewards_before_its_token(batch: Batch) -> None:
    expected_BT = torch.zeros_like(batch.rewards_BT)
    for row in range(len(batch.mask_BT)):
        before = 0.0
        for t in counted(batch.mask_BT, row):
            expected_BT[row, t] = before
            before += float(batch.rewards_BT[row, t])
    assert_close(values_before(batch.rewards_BT, batch.mask_BT), expected_BT)


@settings(max_examples=25)
@given(batch=batches(), data=st.data(), loud=st.sampled_from([-1e20, 3.0]))
def test_a_value_owes_nothing_to_its_own_token_or_a_later_one(batch: Batch, data: st.DataObject, loud: float) -> None:
    column = data.draw(st.integers(0, batch.mask_BT.shape[1] - 1))
    later_BT = torch.arange(batch.mask_BT.shape[1]) >= column
    changed_BT = torch.where(later_BT, loud, batch.rewards_BT)
    before_BT, after_BT = (values_before(x, batch.mask_BT) for x in (batch.rewards_BT, changed_BT))
    assert torch.equal(before_BT[:, : column + 1], after_BT[:, : column + 1])  # to the last bit


# ---- what must not change a reward ---------------------------------------------------------------------------------

STEPS_T = torch.tensor([0, 0, 1, 1, 2, 2])


def whole(rewards_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return gather_steps(rewards_BT, mask_BT)[0]


def by_step(rewards_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Gather steps of two tokens; wide enough for six columns and what pads them."""
    width = mask_BT.shape[1]
    steps_T = torch.cat([STEPS_T, torch.full((max(0, width - 6),), 2)])[:width].clamp(max=width - 1)
    return gather_steps(rewards_BT, mask_BT, steps_T.expand_as(mask_BT))[0]


def smoothed(rewards_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return smooth(rewards_BT, mask_BT, lam=0.4)


every_step = pytest.mark.parametrize("function", [whole, by_step, smoothed, normalise_by_return, values_before])


@every_step
@settings(max_examples=20)
@given(batch=batches(min_rows=2), data=st.data())
def test_a_failed_row_changes_nothing_for_the_others(function, batch: Batch, data: st.DataObject) -> None:
    failed = data.draw(st.integers(0, len(batch.mask_BT) - 1))
    mask_BT = batch.mask_BT.clone()
    mask_BT[failed] = False
    others = [row for row in range(len(mask_BT)) if row != failed]
    actual_BT = function(batch.rewards_BT, mask_BT)
    assert not actual_BT[failed].any()
    assert_close(actual_BT[others], function(batch.rewards_BT[others], mask_BT[others]), 1e-12)
