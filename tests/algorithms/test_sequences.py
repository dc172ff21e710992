"""Sums along a response, against loops over its tokens."""

import itertools
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.sequences import (
    last_token,
    reward_to_go,
    temporal_difference,
    token_counts,
    whiten,
    whiten_rows,
)
from tests.algorithms.batches import Batch, assert_close, batches, counted, hidden, masks

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
