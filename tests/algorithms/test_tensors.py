"""Checks of input, sums along a response, and statistics of groups, against loops."""

import itertools
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.tensors import (
    Groups,
    check_groups,
    checks_postponed,
    last_token,
    masked,
    masked_difference,
    reward_to_go,
    temporal_difference,
    token_counts,
    whiten,
    whiten_rows,
)
from tests.algorithms.batches import GROUP_IDS, Batch, assert_close, batches, counted, hidden, masks

MASK_BT = torch.tensor([[True, True, False], [True, False, False]])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_is_named_with_its_row_and_column(bad: float) -> None:
    values_BT = torch.zeros(2, 3)
    values_BT[1, 0] = bad
    with pytest.raises(ValueError, match=rf"rewards\[1, 0\] is {bad}: it must be finite"):
        masked("rewards", values_BT, MASK_BT)


def test_postponed_checks_find_the_same_at_the_end() -> None:
    zeros_BT, bad_BT, reached = torch.zeros(2, 3), torch.full((2, 3), torch.nan), []

    @checks_postponed()
    def several() -> None:
        masked("fine", zeros_BT, MASK_BT)
        masked_difference("new", zeros_BT, "old", bad_BT, MASK_BT)
        reached.append("the end")

    message = r"old\[0, 0\] is nan: it must be finite"
    with pytest.raises(ValueError, match=message):
        masked_difference("new", zeros_BT, "old", bad_BT, MASK_BT)
    with pytest.raises(ValueError, match=message):
        several()
    assert reached
    with checks_postponed():  # large sums of small numbers, and nothing at all under the mask
        assert masked("large", torch.full((2, 3), 9e31), MASK_BT).sum() > 1e32
        assert not masked("empty", bad_BT, torch.zeros_like(MASK_BT)).any()
    with pytest.raises(ValueError, match=message):  # and afterwards at once again
        masked("old", bad_BT, MASK_BT)


@pytest.mark.parametrize(
    ("values_BT", "mask_BT", "message"),
    [
        (torch.zeros(2, 3), MASK_BT.long(), "mask is torch.int64: it must be bool"),
        (
            torch.zeros(2, 3, dtype=torch.long),
            MASK_BT,
            "rewards is torch.int64: it must be float32, float64 or bfloat16",
        ),
        (torch.zeros(2, 4), MASK_BT, r"rewards has shape \(2, 4\) and mask \(2, 3\)"),
        (torch.zeros(3), torch.ones(3, dtype=torch.bool), r"rewards has shape \(3,\)"),
    ],
)
def test_wrong_shapes_and_dtypes_are_named(values_BT: torch.Tensor, mask_BT: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        masked("rewards", values_BT, mask_BT)


@pytest.mark.parametrize(
    ("groups_B", "message"),
    [
        (torch.zeros(3, dtype=torch.long), r"groups has shape \(3,\): one id for each of the 2 rollouts"),
        (torch.zeros(2, 1, dtype=torch.long), r"groups has shape \(2, 1\)"),
        (torch.zeros(2), "groups is torch.float32: group ids are integers"),
        (torch.zeros(2, dtype=torch.bool), "groups is torch.bool"),
    ],
)
def test_wrong_group_ids_are_named(groups_B: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_groups(groups_B, MASK_BT)


DISCOUNTS = st.sampled_from([0.0, 0.3, 0.97, 1.0])


def reward_to_go_loop(rewards_BT: Tensor, mask_BT: Tensor, discount: float) -> Tensor:
    sums_BT = torch.zeros(mask_BT.shape, dtype=torch.float64)
    for row in range(len(mask_BT)):
        after = 0.0
        for t in reversed(counted(mask_BT, row)):
            after = float(rewards_BT[row, t]) + discount * after
            sums_BT[row, t] = after
    return sums_BT


@settings(max_examples=50)
@given(batches(), DISCOUNTS)
def test_reward_to_go_is_the_discounted_sum_over_the_tokens_that_count(batch: Batch, discount: float) -> None:
    actual_BT = reward_to_go(batch.rewards_BT, batch.mask_BT, discount=discount)
    assert_close(actual_BT, reward_to_go_loop(batch.rewards_BT, batch.mask_BT, discount))


@pytest.mark.parametrize("width", [31, 32, 33, 64, 65, 129, 200])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("discount", [0.5, 0.99])
def test_reward_to_go_is_carried_across_blocks_of_tokens(width: int, gaps: bool, discount: float) -> None:
    generator = torch.Generator().manual_seed(width)
    rewards_BT = torch.randn(3, width, generator=generator, dtype=torch.float64)
    mask_BT = torch.arange(width) < torch.tensor([width, width // 2, 1])[:, None]
    if gaps:
        mask_BT = mask_BT & (torch.rand(3, width, generator=generator) < 0.8)
    actual_BT = reward_to_go(hidden(rewards_BT, mask_BT), mask_BT, discount=discount)
    assert_close(actual_BT, reward_to_go_loop(rewards_BT, mask_BT, discount), 1e-12)


@settings(max_examples=50)
@given(batches(), DISCOUNTS)
def test_the_temporal_difference_looks_at_the_next_token_that_counts(batch: Batch, discount: float) -> None:
    rewards_BT, values_BT = (torch.where(batch.mask_BT, x, 0) for x in (batch.rewards_BT, batch.values_BT))
    expected_BT = torch.zeros(batch.mask_BT.shape, dtype=torch.float64)
    for row in range(len(batch.mask_BT)):
        columns = counted(batch.mask_BT, row)
        for t, after in itertools.zip_longest(columns, columns[1:]):
            next_value = 0.0 if after is None else values_BT[row, after]
            expected_BT[row, t] = rewards_BT[row, t] + discount * next_value - values_BT[row, t]
    assert_close(temporal_difference(rewards_BT, values_BT, batch.mask_BT, discount=discount), expected_BT)


@settings(max_examples=50)
@given(masks())
def test_last_token_is_the_last_one_that_counts(mask_BT: Tensor) -> None:
    for row, marks in enumerate(last_token(mask_BT).tolist()):
        assert [t for t, marked in enumerate(marks) if marked] == counted(mask_BT, row)[-1:]


@settings(max_examples=50)
@given(batches())
def test_whitening_looks_only_at_tokens_that_count(batch: Batch) -> None:
    kept = batch.values_BT[batch.mask_BT].tolist()
    mean = statistics.fmean(kept) if kept else 0.0
    deviation = math.sqrt(statistics.variance(kept) + 1e-8) if len(kept) > 1 else 1.0
    expected_BT = torch.where(batch.mask_BT, (batch.values_BT - mean) / deviation, 0)
    assert_close(whiten(batch.values_BT, batch.mask_BT), expected_BT)


@settings(max_examples=25)
@given(batches())
def test_whitening_rows_is_whitening_the_tokens_that_hold_the_rows_value(batch: Batch) -> None:
    values_B = torch.where(batch.mask_BT, batch.values_BT, 0).sum(-1)
    tokens_BT = whiten(values_B[:, None].expand(batch.mask_BT.shape), batch.mask_BT)
    rows_B = whiten_rows(values_B, token_counts(batch.mask_BT))
    assert_close(torch.where(batch.mask_BT, rows_B[:, None], 0), tokens_BT, 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, -1 / 3, 1e30, 1e-30])
@pytest.mark.parametrize("tokens", [1, 3, 7, 1000])
def test_whitening_a_constant_gives_exact_zeros(dtype: torch.dtype, value: float, tokens: int) -> None:
    values_BT = torch.full((1, tokens), value, dtype=dtype)
    assert not whiten(values_BT, torch.ones(1, tokens, dtype=torch.bool)).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whitening_survives_numbers_whose_square_overflows(dtype: torch.dtype) -> None:
    values_BT = torch.tensor([[1e30, -1e30, 1e30, -1e30]], dtype=dtype)
    expected = 1 / math.sqrt(4 / 3)
    actual_BT = whiten(values_BT, torch.ones(1, 4, dtype=torch.bool))
    assert_close(actual_BT, [[expected, -expected, expected, -expected]], 1e-6)


ROW = st.tuples(
    st.sampled_from(GROUP_IDS),
    st.booleans(),
    st.floats(-5, 5, allow_subnormal=False) | st.sampled_from([0.0, 0.1, 1.0]),
    st.integers(1, 9),
)


ROWS = st.lists(ROW, min_size=1, max_size=9)


@settings(max_examples=50)
@given(ROWS)
def test_statistics_are_those_of_the_voters_of_the_group(rows: list[tuple[int, bool, float, int]]) -> None:
    ids, votes, values, weights = zip(*rows, strict=True)
    groups = Groups(torch.tensor(ids), torch.tensor(votes))
    values_B, weights_B = torch.tensor(values).double(), torch.tensor(weights)
    results = {
        "total": groups.total(values_B),
        "mean": groups.mean(values_B),
        "weighted": groups.mean(values_B, weights_B=weights_B.double()),
        "others": groups.leave_one_out(values_B),
        "std": groups.std(values_B),
    }
    low_B, high_B = groups.range(values_B)
    for i, (own, vote, _, _) in enumerate(rows):
        voters = [j for j, row in enumerate(rows) if row[0] == own and row[1]]
        held = values_B[voters].tolist()
        assert groups.voters_B[i] == len(voters)
        assert (low_B[i], high_B[i]) == (min(held, default=math.inf), max(held, default=-math.inf))
        assert_close(results["total"][i], sum(held), 1e-9)
        assert_close(results["std"][i], statistics.stdev(held) if len(held) > 1 else 0.0, 1e-9)
        if vote:
            assert_close(results["mean"][i], statistics.fmean(held), 1e-9)
            share = sum(weights[j] for j in voters)
            assert_close(results["weighted"][i], sum(weights[j] * float(values_B[j]) for j in voters) / share, 1e-9)
        if vote and len(held) > 1:
            others = [float(values_B[j]) for j in voters if j != i]
            assert_close(results["others"][i], statistics.fmean(others), 1e-9)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e30, 1e-30, -0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_mean_of_equal_values_is_that_value_to_the_last_bit(value: float, dtype: torch.dtype, size: int) -> None:
    values_B = torch.full((size,), value, dtype=dtype)
    groups = Groups(torch.zeros(size, dtype=torch.long), torch.ones(size, dtype=torch.bool))
    weights_B = torch.arange(1, size + 1).double() / 7
    for mean_B in (groups.mean(values_B), groups.mean(values_B, weights_B=weights_B), groups.leave_one_out(values_B)):
        assert torch.equal(mean_B, values_B.double())
    assert not groups.std(values_B).any()


def test_whitening_finds_a_rare_failure_in_bfloat16() -> None:
    rewards_BT = torch.ones(512, 1)
    rewards_BT[7] = 0.0
    expected_BT = (rewards_BT - rewards_BT.mean()) / rewards_BT.std()
    actual_BT = whiten(rewards_BT.bfloat16(), torch.ones(512, 1, dtype=torch.bool))
    torch.testing.assert_close(actual_BT.float(), expected_BT, rtol=1e-2, atol=1e-2)
