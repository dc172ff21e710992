"""Implicit process rewards and the losses of their models, against loops; what must not change them."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.implicit_rewards import (
    group_offsets,
    opponents,
    outcome_cross_entropy,
    pairwise_losses,
    values_before,
)
from tests.algorithms.batches import Batch, assert_close, batches, counted, hidden
from tests.algorithms.tensors import gather_steps, normalise_by_return, smooth


def row_sums(batch: Batch) -> list[float]:
    return [sum(float(batch.rewards_BT[i, t]) for t in counted(batch.mask_BT, i)) for i in range(len(batch.mask_BT))]


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


OUTCOMES = st.sampled_from([0.0, 0.25, 1.0])


def draw_outcomes(data: st.DataObject, batch: Batch) -> Tensor:
    rows = len(batch.mask_BT)
    return torch.tensor(data.draw(st.lists(OUTCOMES, min_size=rows, max_size=rows)), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cross_entropy_is_stable_for_extreme_logits(dtype: torch.dtype) -> None:
    rewards_BT = torch.tensor([[1e4], [-1e4], [1e4], [-1e4]], dtype=dtype, requires_grad=True)
    outcomes_B = torch.tensor([1.0, 0.0, 0.0, 1.0])
    losses_B = outcome_cross_entropy(rewards_BT, torch.ones(4, 1, dtype=torch.bool), outcomes_B)
    losses_B.sum().backward()
    assert losses_B.tolist() == [0, 0, 1e4, 1e4]
    assert rewards_BT.grad[:, 0].tolist() == [0, 0, 1, -1]  # σ(q) - o


@pytest.mark.parametrize("outcome", [torch.nan, -0.1, 1.1])
def test_what_is_no_outcome_is_refused(outcome: float) -> None:
    with pytest.raises(ValueError, match="a failed outcome is no label"):
        outcome_cross_entropy(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), torch.tensor([outcome]))


def test_the_offset_gets_no_gradient_and_failed_rows_none_either() -> None:
    mask_BT = torch.tensor([[True, True], [False, False]])
    rewards_BT = hidden(torch.zeros(2, 2), mask_BT).requires_grad_()
    offset_B = torch.zeros(2, requires_grad=True)
    outcome_cross_entropy(rewards_BT, mask_BT, torch.tensor([1.0, 1.0]), offset_B=offset_B).sum().backward()
    assert offset_B.grad is None
    assert rewards_BT.grad.tolist() == [[-0.5, -0.5], [0, 0]]


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


WEIGHTINGS = ["none", "best-of-n-outcome", "best-of-n-reward"]


# Whole batch -> function of (rows, their rewards): what a trainer does with a batch that it takes apart.
Learned = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(batch: Batch, outcomes_B: Tensor, votes_B: Tensor) -> Learned:
    def losses(rows: Tensor, rewards_bT: Tensor) -> Tensor:
        return outcome_cross_entropy(rewards_bT, (batch.mask_BT & votes_B[:, None])[rows], outcomes_B[rows])

    return losses


def cross_entropy_with_offset(batch: Batch, outcomes_B: Tensor, votes_B: Tensor) -> Learned:
    offset_B = group_offsets(outcomes_B, votes_B, batch.groups_B)

    def losses(rows: Tensor, rewards_bT: Tensor) -> Tensor:
        mask_bT = (batch.mask_BT & votes_B[:, None])[rows]
        return outcome_cross_entropy(rewards_bT, mask_bT, outcomes_B[rows], offset_B=offset_B[rows])

    return losses


def pairwise(weighting: str) -> Callable[[Batch, Tensor, Tensor], Learned]:
    def of_batch(batch: Batch, outcomes_B: Tensor, votes_B: Tensor) -> Learned:
        sums_B = torch.where(batch.mask_BT, batch.rewards_BT, 0).sum(-1)
        found = opponents(sums_B, outcomes_B, votes_B, batch.groups_B, weighting=weighting)

        def losses(rows: Tensor, rewards_bT: Tensor) -> Tensor:
            sums_b = torch.where(batch.mask_BT[rows], rewards_bT, 0).sum(-1)
            return pairwise_losses(sums_b, found.mean_B[rows], found.sign_B[rows], found.weight_B[rows])

        return losses

    return of_batch


LOSSES = {
    "cross-entropy": cross_entropy,
    "cross-entropy with offset": cross_entropy_with_offset,
    **{f"pairwise, {name}": pairwise(name) for name in WEIGHTINGS},
}


every_loss = pytest.mark.parametrize("name", LOSSES)


@st.composite
def labelled(draw: st.DrawFn, min_rows: int = 1) -> tuple[Batch, Tensor, Tensor]:
    """Draw a batch, its outcomes, and which of them are labels; an outcome that failed is NaN."""
    batch = draw(batches(min_rows=min_rows))
    rows = len(batch.mask_BT)
    drawn = draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, torch.nan]), min_size=rows, max_size=rows))
    outcomes_B = torch.tensor(drawn, dtype=torch.float64)
    return batch, outcomes_B, batch.mask_BT.any(-1) & ~outcomes_B.isnan()


def learned(name: str, batch: Batch, outcomes_B: Tensor, votes_B: Tensor, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the losses [B], and the gradient [B, T] of their sum, which is taken part by part."""
    losses = LOSSES[name](batch, outcomes_B, votes_B)
    rewards_BT = batch.rewards_BT.clone().requires_grad_()
    losses_B = torch.zeros(len(outcomes_B), dtype=torch.float64)
    for rows in parts:
        found_b = losses(rows, rewards_BT[rows])
        losses_B[rows] = found_b.detach()
        found_b.sum().backward()
    return losses_B, rewards_BT.grad


def at_once(name: str, batch: Batch, outcomes_B: Tensor, votes_B: Tensor) -> tuple[Tensor, Tensor]:
    return learned(name, batch, outcomes_B, votes_B, [torch.arange(len(outcomes_B))])


@every_loss
@settings(max_examples=30)
@given(drawn=labelled(), data=st.data())
def test_any_split_of_the_batch_has_the_gradient_of_the_whole(
    name: str, drawn: tuple[Batch, Tensor, Tensor], data: st.DataObject
) -> None:
    rows = len(drawn[1])
    owners = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)))
    parts = [(owners == part).nonzero().squeeze(-1) for part in range(4)]  # some of them empty
    for actual, expected in zip(learned(name, *drawn, parts), at_once(name, *drawn), strict=True):
        assert_close(actual, expected, 1e-12)


@every_loss
@settings(max_examples=30)
@given(drawn=labelled(), columns=st.integers(1, 4), data=st.data())
def test_neither_order_nor_padding_nor_the_names_of_groups_matter(
    name: str, drawn: tuple[Batch, Tensor, Tensor], columns: int, data: st.DataObject
) -> None:
    batch, outcomes_B, votes_B = drawn
    losses_B, gradient_BT = at_once(name, *drawn)
    order = data.draw(st.permutations(range(len(outcomes_B))))
    _, index_B = torch.unique(batch.groups_B, return_inverse=True)
    renamed_B = torch.tensor(data.draw(st.permutations([-1, 5, 77, -(2**40)])))[index_B]
    moved = Batch(batch.rewards_BT, batch.mask_BT, renamed_B, batch.values_BT).take(order).padded(columns)
    moved_B, moved_BT = at_once(name, moved, outcomes_B[order], votes_B[order])
    assert_close(moved_B, losses_B[order], 1e-12)
    assert_close(moved_BT[:, :-columns], gradient_BT[order], 1e-12)
    assert not moved_BT[:, -columns:].any()


@every_loss
@settings(max_examples=30)
@given(drawn=labelled(min_rows=2), data=st.data())
def test_an_outcome_that_failed_changes_nothing_for_the_others(
    name: str, drawn: tuple[Batch, Tensor, Tensor], data: st.DataObject
) -> None:
    batch, outcomes_B, votes_B = drawn
    failed = data.draw(st.integers(0, len(outcomes_B) - 1))
    outcomes_B[failed], votes_B[failed] = torch.nan, False  # its tokens and rewards stay where they are
    others = [row for row in range(len(outcomes_B)) if row != failed]
    losses_B, gradient_BT = at_once(name, batch, outcomes_B, votes_B)
    expected_B, expected_BT = at_once(name, batch.take(others), outcomes_B[others], votes_B[others])
    assert losses_B[failed] == 0
    assert not gradient_BT[failed].any()
    assert_close(losses_B[others], expected_B, 1e-12)
    assert_close(gradient_BT[others], expected_BT, 1e-12)
