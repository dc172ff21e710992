"""Importance weights between the sampler and the learner."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.algorithms.policy_losses import importance_weights
from tests.algorithms.batches import LossInput, assert_close, counted, loss_inputs


@settings(max_examples=50)
@given(
    inputs=loss_inputs(),
    level=st.sampled_from(["token", "sequence"]),
    outside=st.sampled_from(["truncate", "drop"]),
    floor=st.sampled_from([0.0, 0.5]),
    cap=st.sampled_from([1.2, 2.0]),
)
def test_weights_are_bounded_ratios(inputs: LossInput, level: str, outside: str, floor: float, cap: float) -> None:
    actual_BT = importance_weights(
        inputs.logprobs_BT, inputs.old_BT, inputs.mask_BT, level=level, cap=cap, floor=floor, outside=outside
    )
    assert not actual_BT[~inputs.mask_BT].any()
    for row in range(len(inputs.mask_BT)):
        columns = counted(inputs.mask_BT, row)
        log_ratios = {t: float(inputs.logprobs_BT[row, t] - inputs.old_BT[row, t]) for t in columns}
        for t in columns:
            weight = math.exp(log_ratios[t] if level == "token" else sum(log_ratios.values()))
            if outside == "truncate":
                expected = min(max(weight, floor), cap)
            else:
                expected = weight if floor <= weight <= cap else 0.0
            assert_close(actual_BT[row, t], expected)


@pytest.mark.parametrize("outside", ["truncate", "drop"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("size", [1e4, -1e4, 1e30])
def test_programs_that_disagree_completely_give_finite_weights(outside: str, level: str, size: float) -> None:
    learner_BT, mask_BT = torch.full((1, 3), size), torch.ones(1, 3, dtype=torch.bool)
    weights_BT = importance_weights(learner_BT, torch.zeros(1, 3), mask_BT, level=level, outside=outside)
    assert weights_BT.isfinite().all()
    assert (weights_BT <= 2).all()


def test_weights_carry_no_gradient() -> None:
    learner_BT, sampler_BT = torch.zeros(1, 2, requires_grad=True), torch.zeros(1, 2, requires_grad=True)
    assert not importance_weights(learner_BT, sampler_BT, torch.ones(1, 2, dtype=torch.bool)).requires_grad


def test_a_floor_above_the_cap_is_refused() -> None:
    ones_BT, mask_BT = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match="floor is 3"):
        importance_weights(ones_BT, ones_BT, mask_BT, floor=3.0, cap=2.0)
