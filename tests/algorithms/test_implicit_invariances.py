"""What must not change what a process reward model learns: order, padding, names, failures, splits of the batch."""

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
)
from tests.algorithms.batches import Batch, assert_close, batches

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


def whole(name: str, batch: Batch, outcomes_B: Tensor, votes_B: Tensor) -> tuple[Tensor, Tensor]:
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
    for actual, expected in zip(learned(name, *drawn, parts), whole(name, *drawn), strict=True):
        assert_close(actual, expected, 1e-12)


@every_loss
@settings(max_examples=30)
@given(drawn=labelled(), columns=st.integers(1, 4), data=st.data())
def test_neither_order_nor_padding_nor_the_names_of_groups_matter(
    name: str, drawn: tuple[Batch, Tensor, Tensor], columns: int, data: st.DataObject
) -> None:
    batch, outcomes_B, votes_B = drawn
    losses_B, gradient_BT = whole(name, *drawn)
    order = data.draw(st.permutations(range(len(outcomes_B))))
    _, index_B = torch.unique(batch.groups_B, return_inverse=True)
    renamed_B = torch.tensor(data.draw(st.permutations([-1, 5, 77, -(2**40)])))[index_B]
    turned = Batch(batch.rewards_BT, batch.mask_BT, renamed_B, batch.values_BT).take(order).padded(columns)
    turned_B, turned_BT = whole(name, turned, outcomes_B[order], votes_B[order])
    assert_close(turned_B, losses_B[order], 1e-12)
    assert_close(turned_BT[:, :-columns], gradient_BT[order], 1e-12)
    assert not turned_BT[:, -columns:].any()


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
    losses_B, gradient_BT = whole(name, batch, outcomes_B, votes_B)
    expected_B, expected_BT = whole(name, batch.take(others), outcomes_B[others], votes_B[others])
    assert losses_B[failed] == 0
    assert not gradient_BT[failed].any()
    assert_close(losses_B[others], expected_B, 1e-12)
    assert_close(gradient_BT[others], expected_BT, 1e-12)


# ---- what the comparisons see of a number --------------------------------------------------------------------------
