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
    pairwise_wins,
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


@every_loss
@settings(max_examples=30)
@given(labelled())
def test_float32_is_float64_rounded(name: str, drawn: tuple[Batch, Tensor, Tensor]) -> None:
    batch, outcomes_B, votes_B = drawn
    single = batch.to(torch.float32)
    expected_B, _ = whole(name, single.to(torch.float64), outcomes_B, votes_B)
    losses_B = LOSSES[name](single, outcomes_B.float(), votes_B)(torch.arange(len(outcomes_B)), single.rewards_BT)
    assert losses_B.dtype == torch.float32
    if name != "pairwise, best-of-n-reward":  # sums that differ by rounding alone are ties in one of the two
        assert_close(losses_B, expected_B, 1e-5)


# ---- what the comparisons see of a number --------------------------------------------------------------------------

EIGHTHS = st.integers(-24, 24).map(lambda x: x / 8)  # sums and shifts of these are exact


@st.composite
def compared(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw sums, outcomes, votes and groups of up to eight responses."""
    rows = draw(st.integers(1, 8))
    columns = (
        EIGHTHS,
        st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        st.booleans(),
        st.integers(0, 2),
    )
    sums, outcomes, votes, groups = (draw(st.lists(x, min_size=rows, max_size=rows)) for x in columns)
    return torch.tensor(sums).double(), torch.tensor(outcomes).double(), torch.tensor(votes), torch.tensor(groups)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@settings(max_examples=30)
@given(drawn=compared(), shift=EIGHTHS)
def test_a_shift_of_a_group_is_not_seen_where_there_is_somebody_to_compare_with(
    weighting: str, drawn: tuple[Tensor, ...], shift: float
) -> None:
    sums_B, outcomes_B, votes_B, groups_B = drawn
    moved_B = sums_B + shift * (groups_B + 1)
    plain, moved = (opponents(x, outcomes_B, votes_B, groups_B, weighting=weighting) for x in (sums_B, moved_B))
    assert torch.equal(plain.weight_B, moved.weight_B)
    assert torch.equal(plain.sign_B, moved.sign_B)
    met_B = torch.zeros_like(votes_B)
    for i in votes_B.nonzero().flatten().tolist():
        others_B = votes_B & (groups_B == groups_B[i])
        met_B[i] = bool((others_B & ((outcomes_B < outcomes_B[i]) if outcomes_B[i] > 0 else (outcomes_B > 0))).any())
    assert_close((moved_B - moved.mean_B)[met_B], (sums_B - plain.mean_B)[met_B], 1e-12)
    assert not plain.mean_B[~met_B & votes_B].any()
    assert not moved.mean_B[~met_B & votes_B].any()


@settings(max_examples=40)
@given(drawn=compared(), shift=EIGHTHS)
def test_wins_see_the_order_alone(drawn: tuple[Tensor, ...], shift: float) -> None:
    sums_B, outcomes_B, votes_B, groups_B = drawn
    won, number = pairwise_wins(sums_B, outcomes_B, votes_B, groups_B)
    for turned_B in (sums_B + shift * groups_B, sums_B**3, sums_B / 4):
        assert pairwise_wins(turned_B, outcomes_B, votes_B, groups_B) == (won, number)
    lost, _ = pairwise_wins(-sums_B, outcomes_B, votes_B, groups_B)
    assert_close(won + lost, float(number), 1e-12)  # a tie is half a win on either side
    again_B = 1 - outcomes_B
    assert_close(pairwise_wins(sums_B, again_B, votes_B, groups_B)[0], float(lost), 1e-12)


@settings(max_examples=40)
@given(drawn=compared())
def test_wins_of_groups_add_up_whoever_counts_them(drawn: tuple[Tensor, ...]) -> None:
    groups_B = drawn[3]
    by_group = [pairwise_wins(*(x[groups_B == group] for x in drawn)) for group in range(3)]
    won, number = pairwise_wins(*drawn)
    assert_close(won, sum(float(pair[0]) for pair in by_group), 1e-12)
    assert number == sum(float(pair[1]) for pair in by_group)


@settings(max_examples=40)
@given(compared())
def test_wins_do_not_read_who_has_no_vote(drawn: tuple[Tensor, ...]) -> None:
    sums_B, outcomes_B, votes_B, groups_B = drawn
    hidden_B = torch.where(votes_B, outcomes_B, torch.nan)
    blind = pairwise_wins(torch.where(votes_B, sums_B, torch.nan), hidden_B, votes_B, groups_B)
    gone = pairwise_wins(*(x[votes_B] for x in drawn))
    assert blind == gone == pairwise_wins(*drawn)


@settings(max_examples=40)
@given(compared())
def test_offsets_of_failures_mirror_those_of_successes(drawn: tuple[Tensor, ...]) -> None:
    _, outcomes_B, votes_B, groups_B = drawn
    mirrored_B = group_offsets(1 - outcomes_B, votes_B, groups_B)
    assert_close(group_offsets(outcomes_B, votes_B, groups_B), -mirrored_B, 1e-12)
