"""A process reward model as value: the estimator `process_value`, against its equation and by hand."""

import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.algorithms.advantages import RewardTensors, process_value, reinforce, values_from
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


@settings(max_examples=20)
@given(batch=batches(), discount=st.sampled_from([0.7, 1.0]))
def test_with_the_plain_link_it_is_reinforce_with_a_baseline(batch: Batch, discount: float) -> None:
    expected_BT = batch.estimate(reinforce, discount=discount)
    assert torch.equal(batch.estimate(process_value, discount=discount), expected_BT)


def test_a_model_that_knows_the_outcome_leaves_little_to_say() -> None:
    mask_BT, groups_B = torch.ones(2, 2, dtype=torch.bool), torch.tensor([0, 0])
    rewards_BT = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    values_BT = torch.tensor([[0.0, 40.0], [0.0, -40.0]])
    advantages_BT = process_value(RewardTensors(rewards_BT, mask_BT, groups_B, values_BT), link="probability")
    assert_close(advantages_BT, [[0.5, 0], [-0.5, 0]], 1e-6)


def test_it_says_that_it_needs_the_process_rewards() -> None:
    batch = outcome_batch([1, 2], [2, 3], [0, 0])
    with pytest.raises(ValueError, match="process_value needs values_BT: the sum of the process rewards before"):
        inspect.unwrap(process_value)(RewardTensors(batch.rewards_BT, batch.mask_BT, batch.groups_B, None))
    assert values_from(process_value) == "process"


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_sigmoid_does_not_hide_a_value_that_is_not_finite(link: str, bad: float) -> None:
    batch = outcome_batch([1, 2], [2, 3], [0, 0])
    batch.values_BT[1, 2] = bad
    with pytest.raises(ValueError, match=rf"values\[1, 2\] is {bad}"):
        batch.estimate(process_value, link=link)


@pytest.mark.parametrize("link", LINKS)
def test_the_graph_ends_here_and_the_values_stay_untouched(link: str) -> None:
    batch = outcome_batch([1, 2], [2, 3], [0, 0])
    values_BT = torch.ones_like(batch.rewards_BT, requires_grad=True)
    advantages_BT = process_value(RewardTensors(batch.rewards_BT, batch.mask_BT, batch.groups_B, values_BT), link=link)
    assert not advantages_BT.requires_grad
    assert values_BT.detach().eq(1).all()
