"""Low precision, long responses and graphs that must end: what large runs meet and small tests forget."""

import pytest
import torch

from rewardsmith.algorithms.advantages import ADVANTAGES, RewardTensors
from rewardsmith.algorithms.implicit_rewards import outcome_cross_entropy, pairwise_accuracy, pairwise_loss
from rewardsmith.algorithms.policy_losses import POLICY_LOSSES
from rewardsmith.algorithms.sequences import whiten

every_estimator = pytest.mark.parametrize("name", ADVANTAGES)


def batch(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    rewards_BT = torch.tensor([[0.0, 1.0], [0.5, 0.0], [0.0, 0.25], [1.0, 1.0]], dtype=dtype)
    return rewards_BT, torch.ones(4, 2, dtype=torch.bool), torch.tensor([0, 0, 1, 1]), rewards_BT / 4


@every_estimator
def test_bfloat16_agrees_with_float64_to_its_own_digits(name: str) -> None:
    expected_BT = ADVANTAGES[name](RewardTensors(*batch(torch.float64)))
    actual_BT = ADVANTAGES[name](RewardTensors(*batch(torch.bfloat16)))
    assert actual_BT.dtype == torch.bfloat16
    torch.testing.assert_close(actual_BT.double(), expected_BT, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_losses_in_bfloat16(name: str) -> None:
    old_BT, mask_BT, _, advantages_BT = batch(torch.bfloat16)
    losses_BT, _ = POLICY_LOSSES[name](-old_BT, -old_BT - 0.125, advantages_BT, mask_BT)
    assert losses_BT.dtype == torch.bfloat16
    assert losses_BT.isfinite().all()


def test_whitening_sees_a_rare_failure_in_bfloat16() -> None:
    rewards_BT = torch.ones(512, 1)
    rewards_BT[7] = 0.0
    expected_BT = (rewards_BT - rewards_BT.mean()) / rewards_BT.std()
    actual_BT = whiten(rewards_BT.bfloat16(), torch.ones(512, 1, dtype=torch.bool))
    torch.testing.assert_close(actual_BT.float(), expected_BT, rtol=1e-2, atol=1e-2)


@every_estimator
def test_advantages_end_the_graph_of_rewards_and_values(name: str) -> None:
    rewards_BT, mask_BT, groups_B, values_BT = batch(torch.float32)
    rewards_BT.requires_grad_()
    values_BT = values_BT.detach().requires_grad_()
    assert not ADVANTAGES[name](RewardTensors(rewards_BT, mask_BT, groups_B, values_BT)).requires_grad


def test_an_outcome_that_failed_is_never_a_label() -> None:
    rewards_BT, mask_BT = torch.tensor([[0.5], [-0.5], [9.0]]), torch.tensor([[True], [True], [False]])
    outcomes_B, groups_B = torch.tensor([1.0, 0.0, torch.nan]), torch.zeros(3, dtype=torch.long)
    without = (rewards_BT[:2], mask_BT[:2], outcomes_B[:2])
    assert (
        outcome_cross_entropy(rewards_BT, mask_BT, outcomes_B).tolist()[:2] == outcome_cross_entropy(*without).tolist()
    )
    assert pairwise_loss(rewards_BT, mask_BT, outcomes_B, groups_B).tolist() == [
        *pairwise_loss(*without, groups_B[:2]).tolist(),
        0.0,
    ]
    for bad in (torch.nan, -0.1, 1.1):
        for loss in (outcome_cross_entropy, lambda r, m, o: pairwise_loss(r, m, o, groups_B)):
            with pytest.raises(ValueError, match="a failed outcome is no label"):
                loss(rewards_BT, mask_BT, torch.tensor([bad, 0.0, 0.0]))
    assert float(pairwise_accuracy(rewards_BT[:, 0], outcomes_B, mask_BT[:, 0], groups_B)) == 1.0
