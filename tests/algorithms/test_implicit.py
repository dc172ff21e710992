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


def test_step_numbers_behind_the_mask_may_be_anything() -> None:
    mask_BT = torch.tensor([[True, True, False]])
    gathered_BT, _ = gather_steps(torch.tensor([[1.0, 2.0, torch.nan]]), mask_BT, torch.tensor([[0, 1, -1]]))
    assert gathered_BT.tolist() == [[1, 2, 0]]


def test_smoothing_adds_part_of_what_follows() -> None:
    rewards_BT, mask_BT = torch.tensor([[1.0, 2.0, 4.0]]), torch.ones(1, 3, dtype=torch.bool)
    assert smooth(rewards_BT, mask_BT, lam=0.5).tolist() == [[1 + 1 + 1, 2 + 2, 4]]
    assert torch.equal(smooth(rewards_BT, mask_BT, lam=0.0), rewards_BT)


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
@given(batch=batches(), columns=st.integers(1, 4), data=st.data())
def test_neither_the_order_of_the_rows_nor_padding_matters(
    function, batch: Batch, columns: int, data: st.DataObject
) -> None:
    width = batch.mask_BT.shape[1]
    if function is by_step and width < 3:  # with fewer columns than steps, padding makes room for other step numbers
        return
    expected_BT = function(batch.rewards_BT, batch.mask_BT)
    order = data.draw(st.permutations(range(len(batch.mask_BT))))
    turned = batch.take(order).padded(columns)
    actual_BT = function(turned.rewards_BT, turned.mask_BT)
    assert_close(actual_BT[:, :width], expected_BT[order], 1e-12)
    assert not actual_BT[:, width:].any()


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


@settings(max_examples=25)
@given(batch=batches(), factor=st.sampled_from([0.05, 20.0]))
def test_the_scale_of_the_rewards_is_gone_once_they_are_normalised(batch: Batch, factor: float) -> None:
    # eps scaled along, so that the equality is exact
    expected_BT = normalise_by_return(batch.rewards_BT, batch.mask_BT, eps=1e-3)
    actual_BT = normalise_by_return(batch.rewards_BT * factor, batch.mask_BT, eps=1e-3 * factor)
    assert_close(actual_BT, expected_BT, 1e-12)


def test_rewards_that_are_all_zero_stay_zero() -> None:
    mask_BT = torch.ones(2, 3, dtype=torch.bool)
    assert not normalise_by_return(torch.zeros(2, 3), mask_BT).any()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_empty_batches_have_empty_results(shape: tuple[int, int]) -> None:
    empty_BT, mask_BT = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    for result_BT in (
        implicit_rewards(empty_BT, empty_BT, mask_BT, beta=1.0),
        gather_steps(empty_BT, mask_BT)[0],
        gather_steps(empty_BT, mask_BT, mask_BT.long())[0],
        smooth(empty_BT, mask_BT, lam=0.5),
        normalise_by_return(empty_BT, mask_BT),
        values_before(empty_BT, mask_BT),
    ):
        assert result_BT.shape == shape
