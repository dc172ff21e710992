"""What must not change an advantage. Parametrised over the table of estimators, so a new one is tested as well."""

import inspect
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.algorithms.advantages import ADVANTAGES, RewardTensors
from rewardsmith.algorithms.sequences import last_token
from tests.algorithms.batches import Batch, assert_close, batches, counted, outcome_batch

WITHOUT_GROUP = {"gae", "reinforce", "reinforce_plus_plus", "remax", "process_value"}
DISCOUNTS = st.sampled_from([0.7, 1.0])

every_estimator = pytest.mark.parametrize("name", ADVANTAGES)
every_group_estimator = pytest.mark.parametrize("name", [name for name in ADVANTAGES if name not in WITHOUT_GROUP])
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@every_estimator
@settings(max_examples=25)
@given(batch=batches(), discount=DISCOUNTS, data=st.data())
def test_permuting_the_rows_permutes_the_result(name: str, batch: Batch, discount: float, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(batch.mask_BT))))
    expected_BT = batch.estimate(ADVANTAGES[name], discount=discount)[order]
    assert_close(batch.take(order).estimate(ADVANTAGES[name], discount=discount), expected_BT, 1e-9)


@every_estimator
@settings(max_examples=25)
@given(batch=batches(), discount=DISCOUNTS, columns=st.integers(1, 5))
def test_more_padding_changes_nothing(name: str, batch: Batch, discount: float, columns: int) -> None:
    width = batch.mask_BT.shape[1]
    actual_BT = batch.padded(columns).estimate(ADVANTAGES[name], discount=discount)
    assert_close(actual_BT[:, :width], batch.estimate(ADVANTAGES[name], discount=discount), 1e-9)
    assert not actual_BT[:, width:].any()


@every_estimator
@settings(max_examples=25)
@given(batch=batches(min_rows=2), discount=DISCOUNTS, data=st.data())
def test_a_failed_row_is_as_good_as_deleted(name: str, batch: Batch, discount: float, data: st.DataObject) -> None:
    failed = data.draw(st.integers(0, len(batch.mask_BT) - 1))
    mask_BT = batch.mask_BT.clone()
    mask_BT[failed] = False  # its rewards stay where they are: nobody may read them
    masked = Batch(batch.rewards_BT, mask_BT, batch.groups_B, batch.values_BT, batch.support_BT)
    others = [row for row in range(len(mask_BT)) if row != failed]
    actual_BT = masked.estimate(ADVANTAGES[name], discount=discount)
    assert not actual_BT[failed].any()
    assert_close(actual_BT[others], batch.take(others).estimate(ADVANTAGES[name], discount=discount), 1e-9)


@every_estimator
@settings(max_examples=15)
@given(batch=batches(), bad=st.sampled_from([torch.nan, torch.inf, -torch.inf]), data=st.data())
def test_a_reward_that_is_not_finite_is_named(name: str, batch: Batch, bad: float, data: st.DataObject) -> None:
    counts = [(row, t) for row in range(len(batch.mask_BT)) for t in counted(batch.mask_BT, row)]
    if not counts:
        return
    row, column = data.draw(st.sampled_from(counts))
    batch.rewards_BT[row, column] = bad
    with pytest.raises(ValueError, match=rf"rewards\[{row}, {column}\] is {bad}"):
        batch.estimate(ADVANTAGES[name])


@every_estimator
@both_dtypes
@settings(max_examples=15)
@given(batch=batches(), size=st.sampled_from([1e30, 1e-30]), discount=DISCOUNTS)
def test_huge_and_tiny_rewards_have_finite_advantages(
    name: str, dtype: torch.dtype, batch: Batch, size: float, discount: float
) -> None:
    batch = batch.to(dtype)
    scaled = Batch(batch.rewards_BT * size, batch.mask_BT, batch.groups_B, batch.values_BT * size, batch.support_BT)
    actual_BT = scaled.estimate(ADVANTAGES[name], discount=discount)
    assert actual_BT.isfinite().all()
    assert not actual_BT[~batch.mask_BT].any()


@every_estimator
@settings(max_examples=25)
@given(batch=batches(), discount=DISCOUNTS)
def test_float32_is_float64_rounded(name: str, batch: Batch, discount: float) -> None:
    single = batch.to(torch.float32)
    # Deviations that are nothing but rounding are scaled up to a millionth by grpo: compare from there on.
    expected_BT = single.to(torch.float64).estimate(ADVANTAGES[name], discount=discount)
    actual_BT = single.estimate(ADVANTAGES[name], discount=discount)
    assert actual_BT.dtype == torch.float32
    assert expected_BT.dtype == torch.float64
    assert_close(actual_BT, expected_BT, 1e-3)


@every_estimator
@settings(max_examples=15)
@given(batch=batches(), discount=DISCOUNTS)
def test_a_batch_of_failures_has_advantage_zero(name: str, batch: Batch, discount: float) -> None:
    nobody_BT = torch.zeros_like(batch.mask_BT)
    failed = Batch(batch.rewards_BT * torch.nan, nobody_BT, batch.groups_B, batch.values_BT, batch.support_BT)
    assert not failed.estimate(ADVANTAGES[name], discount=discount).any()


# ---- groups --------------------------------------------------------------------------------------------------------


@every_group_estimator
@settings(max_examples=25)
@given(batch=batches(), discount=DISCOUNTS)
def test_a_rollout_without_sibling_has_advantage_zero(name: str, batch: Batch, discount: float) -> None:
    alone = Batch(
        batch.rewards_BT, batch.mask_BT, torch.arange(len(batch.mask_BT)) - 2, batch.values_BT, batch.support_BT
    )
    assert not alone.estimate(ADVANTAGES[name], discount=discount).any()


@every_group_estimator
@both_dtypes
@pytest.mark.parametrize("reward", [0.1, -1 / 3, 1e30, 1e-30])
@pytest.mark.parametrize("lengths", [[1, 1, 1], [3, 1, 2], [2, 5, 0, 3]])
@pytest.mark.parametrize("discount", [0.9, 1.0])
def test_a_constant_group_has_advantage_exactly_zero(
    name: str, dtype: torch.dtype, reward: float, lengths: list[int], discount: float
) -> None:
    batch = outcome_batch([reward] * len(lengths), lengths, [9] * len(lengths), dtype)
    assert not batch.estimate(ADVANTAGES[name], discount=discount).any()


@every_group_estimator
@settings(max_examples=25)
@given(batch=batches(outcome=True), discount=DISCOUNTS)
def test_an_outcome_is_a_reward_carried_by_the_last_token(name: str, batch: Batch, discount: float) -> None:
    end_BT = last_token(batch.mask_BT)
    sums_B1 = torch.where(batch.mask_BT, batch.rewards_BT, 0).sum(-1, keepdim=True)
    rewards_BT = torch.where(end_BT, sums_B1, 0)
    carried = Batch(rewards_BT, batch.mask_BT, batch.groups_B, batch.values_BT, end_BT)
    actual_BT = carried.estimate(ADVANTAGES[name], discount=discount)
    assert_close(actual_BT, batch.estimate(ADVANTAGES[name], discount=discount), 1e-9)


def test_every_estimator_takes_the_same_arguments() -> None:
    for name, estimator in ADVANTAGES.items():
        parameters = inspect.signature(estimator).parameters
        assert list(parameters)[:2] == ["inputs", "discount"], name
        assert all(p.kind is p.KEYWORD_ONLY for p in itertools.islice(parameters.values(), 1, None)), name


def test_remax_says_that_it_needs_the_reward_of_the_greedy_answer() -> None:
    batch = outcome_batch([1, 2], [2, 3], [0, 0])
    with pytest.raises(ValueError, match="values"):
        inspect.unwrap(ADVANTAGES["remax"])(RewardTensors(batch.rewards_BT, batch.mask_BT, batch.groups_B, None))
