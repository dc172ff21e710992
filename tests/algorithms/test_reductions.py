"""From token losses to one number: the formulas, and that micro-batches add up to the whole."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rewardsmith.algorithms.policy_losses import POLICY_LOSSES
from rewardsmith.algorithms.reductions import REDUCTIONS, reduce
from tests.algorithms.batches import LossInput, assert_close, loss_inputs, masks

SETTINGS = {"constant-length": {"length": 7}}


def weights(name: str, mask_BT: Tensor) -> Tensor:
    return REDUCTIONS[name](mask_BT, torch.float64, **SETTINGS.get(name, {}))


@settings(max_examples=40)
@given(mask_BT=masks(), seed=st.integers(0, 99))
def test_every_reduction_follows_its_formula(mask_BT: Tensor, seed: int) -> None:
    losses_BT = torch.randn(mask_BT.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = [losses_BT[i][mask_BT[i]].tolist() for i in range(len(mask_BT)) if mask_BT[i].any()]
    tokens, count = max(1, sum(map(len, rows))), max(1, len(rows))  # rows without a token are not counted
    expected = {
        "token-mean": sum(map(sum, rows)) / tokens,
        "sequence-mean-token-mean": sum(sum(row) / len(row) for row in rows) / count,
        "sequence-mean-token-sum": sum(map(sum, rows)) / count,
        "constant-length": sum(map(sum, rows)) / count / 7,
    }
    assert set(expected) == set(REDUCTIONS)
    for name, value in expected.items():
        assert_close(reduce(losses_BT, weights(name, mask_BT)), value, 1e-12)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_losses_behind_the_mask_are_not_read(name: str) -> None:
    mask_BT = torch.tensor([[True, False], [False, False]])
    losses_BT = torch.tensor([[2.0, torch.nan], [torch.inf, torch.nan]], requires_grad=True)
    loss = reduce(losses_BT, weights(name, mask_BT))
    loss.backward()
    assert loss.isfinite()
    assert losses_BT.grad.isfinite().all()
    assert losses_BT.grad[0, 0] > 0
    assert not losses_BT.grad[~mask_BT].any()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("loss", POLICY_LOSSES)
@settings(max_examples=15)
@given(inputs=loss_inputs(), data=st.data())
def test_gradients_of_micro_batches_add_up_to_that_of_the_batch(
    reduction: str, loss: str, inputs: LossInput, data: st.DataObject
) -> None:
    rows = len(inputs.mask_BT)
    part_B = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)))
    weights_BT = weights(reduction, inputs.mask_BT)  # of the whole batch, before it is split

    def gradient(parts: list[Tensor]) -> Tensor:
        logprobs_BT = inputs.logprobs_BT.clone().requires_grad_()
        for chosen_B in parts:
            micro = LossInput(logprobs_BT, inputs.old_BT, inputs.advantages_BT, inputs.mask_BT).take(chosen_B)
            reduce(micro.losses(POLICY_LOSSES[loss]), weights_BT[chosen_B]).backward()
        return logprobs_BT.grad

    whole_BT = gradient([torch.arange(rows)])
    parts_BT = gradient([(part_B == part).nonzero()[:, 0] for part in range(4)])  # some parts are empty
    assert_close(parts_BT, whole_BT, 1e-12)
