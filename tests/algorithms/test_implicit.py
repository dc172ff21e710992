"""Implicit process rewards: from two models' log-probabilities to rewards, and the losses that train one of them."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.implicit import (
    gather_steps,
    implicit_rewards,
    normalise_by_return,
    outcome_cross_entropy,
    pairwise_accuracy,
    pairwise_loss,
    smooth,
)
from tests.algorithms.batches import Batch, LossInput, assert_close, batches, counted, hidden, loss_inputs

OUTCOMES = st.sampled_from([0.0, 0.25, 1.0])


def softplus(x: float) -> float:
    return max(x, 0) + math.log1p(math.exp(-abs(x)))


def row_sums(batch: Batch) -> list[float]:
    return [sum(float(batch.rewards_BT[i, t]) for t in counted(batch.mask_BT, i)) for i in range(len(batch.mask_BT))]


def draw_outcomes(data: st.DataObject, batch: Batch) -> Tensor:
    rows = len(batch.mask_BT)
    return torch.tensor(data.draw(st.lists(OUTCOMES, min_size=rows, max_size=rows)), dtype=torch.float64)


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


@pytest.mark.parametrize("step", [-1, 2])
def test_steps_outside_the_row_are_refused(step: int) -> None:
    with pytest.raises(ValueError, match="steps_BT counts the steps of a row from 0"):
        gather_steps(torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool), torch.tensor([[0, step]]))


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
@given(batch=batches(), data=st.data(), offset=st.sampled_from([None, -1.5]))
def test_cross_entropy_follows_its_formula(batch: Batch, data: st.DataObject, offset: float | None) -> None:
    outcomes_B = draw_outcomes(data, batch)
    offset_B = None if offset is None else torch.full_like(outcomes_B, offset)
    losses_B = outcome_cross_entropy(batch.rewards_BT, batch.mask_BT, outcomes_B, offset_B=offset_B)
    for loss, q, o, mask_T in zip(losses_B, row_sums(batch), outcomes_B.tolist(), batch.mask_BT, strict=True):
        logit = q + (offset or 0)
        expected = -o * math.log(1 / (1 + math.exp(-logit))) - (1 - o) * math.log(1 / (1 + math.exp(logit)))
        assert_close(loss, expected if mask_T.any() else 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cross_entropy_is_stable_for_extreme_logits(dtype: torch.dtype) -> None:
    rewards_BT = torch.tensor([[1e4], [-1e4], [1e4], [-1e4]], dtype=dtype, requires_grad=True)
    outcomes_B = torch.tensor([1.0, 0.0, 0.0, 1.0])
    losses_B = outcome_cross_entropy(rewards_BT, torch.ones(4, 1, dtype=torch.bool), outcomes_B)
    losses_B.sum().backward()
    assert losses_B.tolist() == [0, 0, 1e4, 1e4]
    assert rewards_BT.grad[:, 0].tolist() == [0, 0, 1, -1]  # σ(q) - o


def test_the_offset_gets_no_gradient_and_failed_rows_none_either() -> None:
    mask_BT = torch.tensor([[True, True], [False, False]])
    rewards_BT = hidden(torch.zeros(2, 2), mask_BT).requires_grad_()
    offset_B = torch.zeros(2, requires_grad=True)
    outcome_cross_entropy(rewards_BT, mask_BT, torch.tensor([1.0, 1.0]), offset_B=offset_B).sum().backward()
    assert offset_B.grad is None
    assert rewards_BT.grad.tolist() == [[-0.5, -0.5], [0, 0]]


@pytest.mark.parametrize("outcome", [-0.1, 1.1, math.nan])
def test_an_outcome_is_between_zero_and_one(outcome: float) -> None:
    with pytest.raises(ValueError, match=r"outcomes must lie in \[0, 1\]"):
        outcome_cross_entropy(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), torch.tensor([outcome]))


@pytest.mark.parametrize("weighting", ["none", "best-of-n-outcome", "best-of-n-reward"])
@settings(max_examples=25)
@given(batch=batches(), data=st.data())
def test_the_pairwise_loss_compares_with_the_mean_of_the_other_side(
    weighting: str, batch: Batch, data: st.DataObject
) -> None:
    outcomes_B = draw_outcomes(data, batch)
    losses_B = pairwise_loss(batch.rewards_BT, batch.mask_BT, outcomes_B, batch.groups_B, weighting=weighting)
    # The sums as the loss sees them: equal ones stay equal to the last bit.
    sums, outcomes = torch.where(batch.mask_BT, batch.rewards_BT, 0).sum(-1).tolist(), outcomes_B.tolist()
    votes = batch.mask_BT.any(-1)
    for i in range(len(sums)):
        siblings = [j for j in range(len(sums)) if votes[j] and batch.groups_B[j] == batch.groups_B[i]]
        if outcomes[i] > 0:
            others, sign = [sums[j] for j in siblings if outcomes[j] < outcomes[i]], 1
        else:
            others, sign = [sums[j] for j in siblings if outcomes[j] > outcomes[i]], -1
        expected = softplus(-sign * (sums[i] - (statistics.fmean(others) if others else 0.0)))
        if weighting != "none":
            rank = outcomes if weighting == "best-of-n-outcome" else sums
            n = max(1, len(siblings))
            expected *= n * (sum(rank[j] <= rank[i] for j in siblings) / n) ** (n - 1)
        assert_close(losses_B[i], expected if votes[i] else 0.0)


def test_the_pairwise_loss_pushes_a_response_and_not_what_it_is_compared_with() -> None:
    rewards_BT = torch.tensor([[0.3], [0.1], [torch.nan]], requires_grad=True)
    mask_BT = torch.tensor([[True], [True], [False]])
    outcomes_B, groups_B = torch.tensor([1.0, 0.0, 1.0]), torch.tensor([5, 5, 5])
    pairwise_loss(rewards_BT, mask_BT, outcomes_B, groups_B)[0].backward()
    assert_close(rewards_BT.grad, [[-1 / (1 + math.exp(0.3 - 0.1))], [0], [0]], 1e-6)


@settings(max_examples=50)
@given(batch=batches(), data=st.data())
def test_pairwise_accuracy_agrees_with_a_double_loop(batch: Batch, data: st.DataObject) -> None:
    outcomes_B, votes_B = draw_outcomes(data, batch), batch.mask_BT.any(-1)
    sums_B = torch.where(batch.mask_BT, batch.rewards_BT, 0).sum(-1)
    shares = []
    for group in set(batch.groups_B.tolist()):
        members = [i for i, own in enumerate(batch.groups_B.tolist()) if own == group and votes_B[i]]
        possible = won = 0.0
        for i in members:
            for j in members:
                weight = max(0.0, float(outcomes_B[i] - outcomes_B[j]))
                possible += weight
                won += weight * (1.0 if sums_B[i] > sums_B[j] else 0.5 if sums_B[i] == sums_B[j] else 0.0)
        if possible:
            shares.append(won / possible)
    expected = statistics.fmean(shares) if shares else 0.5
    assert_close(pairwise_accuracy(sums_B, outcomes_B, votes_B, batch.groups_B), expected)


def test_pairwise_accuracy_does_not_read_the_outcome_of_a_failed_rollout() -> None:
    sums_B, outcomes_B = torch.tensor([2.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, torch.nan])
    votes_B = torch.tensor([True, True, False])
    assert pairwise_accuracy(sums_B, outcomes_B, votes_B, torch.tensor([0, 0, 0])) == 1


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_empty_batches_have_empty_results(shape: tuple[int, int]) -> None:
    empty_BT, mask_BT = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    zeros_B, groups_B = torch.zeros(shape[0]), torch.zeros(shape[0], dtype=torch.long)
    for result_BT in (
        implicit_rewards(empty_BT, empty_BT, mask_BT, beta=1.0),
        gather_steps(empty_BT, mask_BT)[0],
        gather_steps(empty_BT, mask_BT, mask_BT.long())[0],
        normalise_by_return(empty_BT, mask_BT),
    ):
        assert result_BT.shape == shape
    assert outcome_cross_entropy(empty_BT, mask_BT, zeros_B).tolist() == zeros_B.tolist()
    assert (
        pairwise_loss(empty_BT, mask_BT, zeros_B, groups_B, weighting="best-of-n-reward").tolist() == zeros_B.tolist()
    )
    assert pairwise_accuracy(zeros_B, zeros_B, mask_BT.any(-1), groups_B) == 0.5
