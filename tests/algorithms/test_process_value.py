"""A process reward model as value: the estimator `process_value`, against its equation and by hand."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.algorithms.advantages import RewardTensors, process_value
from rewardsmith.algorithms.implicit_rewards import values_before
from rewardsmith.algorithms.sequences import last_token
from tests.algorithms.batches import Batch, assert_close, batches, counted, outcome_batch

LINKS = ["logit", "probability"]


@pytest.mark.parametrize("link", LINKS)
@settings(max_examples=40)
@given(batch=batches(), discount=st.sampled_from([0.0, 0.7, 1.0]))
def test_it_is_the_return_less_what_was_thought_before_the_token(link: str, batch: Batch, discount: float) -> None:
    # The values of the batch stand for process rewards; the estimator gets their sums.
    expected_BT = torch.zeros_like(batch.rewards_BT)
    for row in range(len(batch.mask_BT)):
        columns = counted(batch.mask_BT, row)
        for i, t in enumerate(columns):
            reward = sum(discount**k * float(batch.rewards_BT[row, s]) for k, s in enumerate(columns[i:]))
            value = sum(float(batch.values_BT[row, s]) for s in columns[:i])
            expected_BT[row, t] = reward - (value if link == "logit" else 1 / (1 + math.exp(-value)))
    thought = Batch(
        batch.rewards_BT, batch.mask_BT, batch.groups_B, values_before(batch.values_BT, batch.mask_BT), batch.support_BT
    )
    assert_close(thought.estimate(process_value, discount=discount, link=link), expected_BT)


@settings(max_examples=40)
@given(batch=batches())
def test_for_an_outcome_the_steps_of_the_advantage_are_the_process_rewards(batch: Batch) -> None:
    # A_t - A_{t+1} = v_{t+1} - v_t = r_t: the paper's value has the process rewards as its differences.
    outcomes_BT = torch.where(last_token(batch.mask_BT), 0.75, 0.0).double()
    values_BT = values_before(batch.values_BT, batch.mask_BT)
    advantages_BT = process_value(RewardTensors(outcomes_BT, batch.mask_BT, batch.groups_B, values_BT))
    for row in range(len(batch.mask_BT)):
        columns = counted(batch.mask_BT, row)
        for t, following in itertools.pairwise(columns):
            step = float(advantages_BT[row, t] - advantages_BT[row, following])
            assert step == pytest.approx(float(batch.values_BT[row, t]), abs=1e-12)
        if columns:
            assert float(advantages_BT[row, columns[0]]) == 0.75  # nothing was thought yet


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_sigmoid_does_not_hide_a_value_that_is_not_finite(link: str, bad: float) -> None:
    batch = outcome_batch([1, 2], [2, 3], [0, 0])
    batch.values_BT[1, 2] = bad
    with pytest.raises(ValueError, match=rf"values\[1, 2\] is {bad}"):
        batch.estimate(process_value, link=link)
