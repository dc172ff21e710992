"""What an implicit process reward model learns by: each function against a loop over its formula."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.implicit_rewards import (
    group_offsets,
    opponents,
    outcome_cross_entropy,
    pairwise_accuracy,
    pairwise_loss,
    pairwise_losses,
    pairwise_wins,
)
from tests.algorithms.batches import Batch, assert_close, batches, counted, hidden

OUTCOMES = st.sampled_from([0.0, 0.25, 1.0])


def softplus(x: float) -> float:
    return max(x, 0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def row_sums(batch: Batch) -> list[float]:
    return [sum(float(batch.rewards_BT[i, t]) for t in counted(batch.mask_BT, i)) for i in range(len(batch.mask_BT))]


def draw_outcomes(data: st.DataObject, batch: Batch) -> Tensor:
    rows = len(batch.mask_BT)
    return torch.tensor(data.draw(st.lists(OUTCOMES, min_size=rows, max_size=rows)), dtype=torch.float64)


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


@settings(max_examples=50)
@given(batch=batches(), data=st.data())
def test_pairwise_wins_and_accuracy_agree_with_a_double_loop(batch: Batch, data: st.DataObject) -> None:
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
    won, number = pairwise_wins(sums_B, outcomes_B, votes_B, batch.groups_B)
    assert_close(won, sum(shares))
    assert number == len(shares)
    expected = statistics.fmean(shares) if shares else 0.5
    assert_close(pairwise_accuracy(sums_B, outcomes_B, votes_B, batch.groups_B), expected)


# ---- the constants of a batch --------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(batch=batches(), data=st.data())
def test_group_offsets_are_the_logit_of_the_groups_mean(batch: Batch, data: st.DataObject) -> None:
    outcomes_B, votes_B = draw_outcomes(data, batch), batch.mask_BT.any(-1)
    offsets_B = group_offsets(torch.where(votes_B, outcomes_B, torch.nan), votes_B, batch.groups_B)
    groups = batch.groups_B.tolist()
    for i, offset in enumerate(offsets_B):
        members = [float(outcomes_B[j]) for j in range(len(groups)) if groups[j] == groups[i] and votes_B[j]]
        k, n = sum(members), len(members)
        assert_close(offset, math.log((k + 0.5) / (n - k + 0.5)) if votes_B[i] else 0.0)


def test_opponents_by_hand() -> None:
    sums_B = torch.tensor([3.0, 1.0, -1.0, 5.0, torch.nan, 2.0]).double()
    outcomes_B = torch.tensor([1.0, 0.5, 0.0, 0.0, torch.nan, 1.0]).double()
    votes_B, groups_B = torch.tensor([True, True, True, True, False, True]), torch.tensor([7, 7, 7, 7, 7, 2])
    found = opponents(sums_B, outcomes_B, votes_B, groups_B)
    # Partial credit is right, but worse than full; a wrong one has both above it; who is alone has 0.
    assert found.mean_B[votes_B].tolist() == [(1 - 1 + 5) / 3, (-1 + 5) / 2, (3 + 1) / 2, (3 + 1) / 2, 0]
    assert found.sign_B[votes_B].tolist() == [1, 1, -1, -1, 1]
    assert found.weight_B.tolist() == [1, 1, 1, 1, 0, 1]
    by_outcome = opponents(sums_B, outcomes_B, votes_B, groups_B, weighting="best-of-n-outcome")
    assert by_outcome.weight_B.tolist() == [4 * 1, 4 * 0.75**3, 4 * 0.5**3, 4 * 0.5**3, 0, 1]
    by_reward = opponents(sums_B, outcomes_B, votes_B, groups_B, weighting="best-of-n-reward")
    assert by_reward.weight_B.tolist() == [4 * 0.75**3, 4 * 0.5**3, 4 * 0.25**3, 4 * 1, 0, 1]


@settings(max_examples=40)
@given(batch=batches(), data=st.data())
def test_pairwise_losses_and_their_gradient_follow_the_formula(batch: Batch, data: st.DataObject) -> None:
    rows = len(batch.mask_BT)
    numbers = st.lists(st.floats(-9, 9), min_size=rows, max_size=rows)
    sums_b = torch.tensor(data.draw(numbers), dtype=torch.float64, requires_grad=True)
    mean_b = torch.tensor(data.draw(numbers), dtype=torch.float64)
    signs = data.draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=rows, max_size=rows))
    weights = data.draw(st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=rows, max_size=rows))
    losses_b = pairwise_losses(sums_b, mean_b, torch.tensor(signs).double(), torch.tensor(weights).double())
    losses_b.sum().backward()
    margins = [s * (q - m) for s, q, m in zip(signs, sums_b.tolist(), mean_b.tolist(), strict=True)]
    assert_close(losses_b, [w * softplus(-z) for w, z in zip(weights, margins, strict=True)])
    slopes = [-w * s * sigmoid(-z) for w, s, z in zip(weights, signs, margins, strict=True)]
    assert_close(sums_b.grad, slopes)


# ---- extremes ------------------------------------------------------------------------------------------------------
