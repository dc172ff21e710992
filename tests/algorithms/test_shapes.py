"""The checks that every estimator and loss makes of its input, and what their messages say."""

import pytest
import torch

from rewardsmith.algorithms.shapes import check_groups, masked

MASK_BT = torch.tensor([[True, True, False], [True, False, False]])


def test_what_lies_behind_the_mask_becomes_exactly_zero() -> None:
    values_BT = torch.tensor([[1.0, 2.0, torch.nan], [3.0, torch.inf, -torch.inf]])
    assert masked("rewards", values_BT, MASK_BT).tolist() == [[1, 2, 0], [3, 0, 0]]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_is_named_with_its_row_and_column(bad: float) -> None:
    values_BT = torch.zeros(2, 3)
    values_BT[1, 0] = bad
    with pytest.raises(ValueError, match=rf"rewards\[1, 0\] is {bad}: it must be finite"):
        masked("rewards", values_BT, MASK_BT)


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
