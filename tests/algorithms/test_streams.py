"""Several rewards at once: what is summed when, and what a stream that failed may and may not do."""

import inspect
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.algorithms.advantages import (
    ADVANTAGES,
    Stream,
    dr_grpo,
    estimate_advantages,
    grpo,
    reinforce,
    rloo,
    values_from,
)
from rewardsmith.algorithms.tensors import whiten
from tests.algorithms.batches import Batch, assert_close, batches, hidden, outcome_batch

FOUR = outcome_batch([1, 1, 0, 0], [2, 1, 1, 2], [7, 7, 7, 7])
OTHER_BT = outcome_batch([0, 5, 5, 2], [2, 1, 1, 2], [7, 7, 7, 7]).rewards_BT
FIRST, SECOND = Stream("rule", FOUR.rewards_BT, weight=0.5), Stream("judge", OTHER_BT, weight=2.0)


def firsts(*streams: Stream, **settings: object) -> torch.Tensor:
    """Return the advantage of each rollout's first token."""
    return estimate_advantages(streams, FOUR.mask_BT, FOUR.groups_B, **settings)[:, 0]


@pytest.mark.parametrize("name", ADVANTAGES)
@settings(max_examples=15)
@given(batch=batches(), discount=st.sampled_from([None, 0.6]), combine=st.sampled_from(["before", "after"]))
def test_one_stream_is_the_estimator_itself(name: str, batch: Batch, discount: float | None, combine: str) -> None:
    if combine == "after" and values_from(ADVANTAGES[name]):
        return
    stream = Stream("only", batch.rewards_BT, batch.support_BT, discount=discount)
    values_BT = batch.values_BT if values_from(ADVANTAGES[name]) else None
    batch = replace(batch, values_BT=values_BT)
    actual_BT = estimate_advantages(
        [stream], batch.mask_BT, batch.groups_B, values_BT, estimator=ADVANTAGES[name], combine=combine
    )
    assert_close(actual_BT, batch.estimate(ADVANTAGES[name], discount=discount or 1.0), 1e-12)


def test_before_estimates_the_weighted_sum() -> None:
    sums = [0.5 * a + 2 * b for a, b in zip([1, 1, 0, 0], [0, 5, 5, 2], strict=True)]
    mean = sum(sums) / 4
    deviation = math.sqrt(sum((s - mean) ** 2 for s in sums) / 3) + 1e-6
    assert_close(firsts(FIRST, SECOND, estimator=dr_grpo), [s - mean for s in sums], 1e-14)
    assert_close(firsts(FIRST, SECOND, estimator=grpo), [(s - mean) / deviation for s in sums], 1e-14)


def test_after_gives_each_stream_its_own_discount_and_support() -> None:
    # PRIME: process rewards and an outcome, each with a leave-one-out baseline of its own.
    mask_BT, groups_B = torch.ones(2, 2, dtype=torch.bool), torch.tensor([0, 0])
    process = Stream("process", torch.tensor([[1.0, 2.0], [3.0, 7.0]]), mask_BT, discount=1.0, weight=3.0)
    outcome = Stream("outcome", torch.tensor([[0.0, 1.0], [0.0, 0.0]]), discount=0.5)
    actual_BT = estimate_advantages([process, outcome], mask_BT, groups_B, estimator=rloo, combine="after")
    first = [3 * ((1 - 5) + (2 - 5)) + 0.5 * 1, 3 * (2 - 5) + 1]
    second = [3 * ((3 - 1.5) + (7 - 1.5)) + 0.5 * -1, 3 * (7 - 1.5) - 1]
    assert_close(actual_BT, [first, second], 1e-6)


def test_a_row_that_a_stream_could_not_score_has_no_vote_in_it() -> None:
    scored_BT = FOUR.mask_BT & torch.tensor([True, False, True, True])[:, None]
    rewards_BT = hidden(SECOND.rewards_BT, scored_BT)  # NaN where there is no score
    judge = replace(SECOND, rewards_BT=rewards_BT, mask_BT=scored_BT)
    mean = (0 + 5 + 2) / 3
    expected = [0.5 * 0.5 + 2 * (0 - mean), 0.5 * 0.5, -0.5 * 0.5 + 2 * (5 - mean), -0.5 * 0.5 + 2 * (2 - mean)]
    assert_close(firsts(FIRST, judge, estimator=dr_grpo, combine="after"), expected, 1e-14)
    with pytest.raises(ValueError, match=r"stream 'judge' scored 3 of 4 rollouts in group 7.*combine='after'"):
        firsts(FIRST, judge, estimator=dr_grpo)


def test_before_keeps_a_support_that_all_streams_share_and_refuses_to_centre_others() -> None:
    mask_BT, groups_B = torch.ones(2, 2, dtype=torch.bool), torch.tensor([0, 0])
    rewards_BT = torch.tensor([[1.0, 2.0], [3.0, 8.0]]).double()
    dense, outcome = Stream("a", rewards_BT, mask_BT), Stream("b", rewards_BT)
    other = Stream("c", rewards_BT, torch.tensor([[True, False], [True, True]]))
    shared_BT = estimate_advantages([dense, replace(dense, name="d")], mask_BT, groups_B, estimator=dr_grpo)
    assert_close(shared_BT, Batch(2 * rewards_BT, mask_BT, groups_B, rewards_BT, mask_BT).estimate(dr_grpo), 1e-14)
    for second in (outcome, other):
        with pytest.raises(ValueError, match=r"carry their rewards on different tokens.*combine='after'"):
            estimate_advantages([dense, second], mask_BT, groups_B, estimator=partial(grpo, scale="none"))
        # Without a comparison of siblings there is nothing to centre: rewards are simply added, token by token.
        mixed_BT = estimate_advantages([dense, second], mask_BT, groups_B, estimator=reinforce)
        assert_close(mixed_BT, [[6, 4], [22, 16]], 1e-14)


@pytest.mark.parametrize("combine", ["before", "after"])
def test_whitening_leaves_rows_without_credit_at_zero(combine: str) -> None:
    mask_BT = torch.arange(3) < torch.tensor([[1], [3], [2], [2]])
    rewards_BT = torch.tensor([[1.0], [0.0], [0.0], [0.0]]).expand(4, 3)
    groups_B = torch.tensor([0, 0, 1, 2])
    scored_BT = mask_BT & torch.tensor([[True], [True], [True], [False]])  # the last row failed in its only stream
    stream = Stream("rule", torch.where(torch.arange(3) == 0, rewards_BT, 0.0), mask_BT=scored_BT)
    advantages_BT = estimate_advantages([stream], mask_BT, groups_B, estimator=grpo, combine=combine, whiten=True)
    assert not advantages_BT[2:].any()  # row 2 has no sibling, row 3 no score
    plain_BT = estimate_advantages([stream], mask_BT, groups_B, estimator=grpo, combine=combine)
    assert_close(advantages_BT[:2], whiten(plain_BT[:2], mask_BT[:2]), 1e-6)
    # An estimator that needs no siblings gives credit to a lone rollout.
    alone_BT = estimate_advantages([stream], mask_BT, groups_B, estimator=reinforce, combine=combine, whiten=True)
    assert alone_BT[2, 0] < 0
    assert not alone_BT[3].any()


@pytest.mark.parametrize("combine", ["before", "after"])
def test_whitening_is_over_all_tokens_of_the_sum(combine: str) -> None:
    arguments = ([FIRST, SECOND], FOUR.mask_BT, FOUR.groups_B)
    plain = estimate_advantages(*arguments, estimator=rloo, combine=combine)[FOUR.mask_BT]
    whitened_BT = estimate_advantages(*arguments, estimator=rloo, combine=combine, whiten=True)
    expected = (plain - plain.mean()) / (plain.var() + 1e-8).sqrt()
    assert_close(whitened_BT[FOUR.mask_BT], expected, 1e-12)
    assert not whitened_BT[~FOUR.mask_BT].any()


def test_what_cannot_be_combined_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'rule' and 'judge' have discounts 0\.5 and None.*combine='after'"):
        firsts(replace(FIRST, discount=0.5), SECOND, estimator=reinforce)
    with pytest.raises(ValueError, match="combine is 'between'"):
        inspect.unwrap(estimate_advantages)(
            [FIRST], FOUR.mask_BT, FOUR.groups_B, estimator=reinforce, combine="between"
        )
    with pytest.raises(ValueError, match=r"rewards of 'rule'\[0, 0\] is nan"):
        firsts(replace(FIRST, rewards_BT=FIRST.rewards_BT * torch.nan), estimator=reinforce)
