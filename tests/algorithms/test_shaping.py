"""The soft punishment of answers that run into the token limit."""

import pytest
import torch

from rewardsmith.algorithms.auxiliary_losses import overlong_penalty


def test_the_penalty_is_zero_then_falls_in_a_line_and_then_stays() -> None:
    lengths_B = torch.tensor([0, 80, 81, 90, 100, 101, 10_000])
    penalties_B = overlong_penalty(lengths_B, limit=100, buffer=20, factor=0.5)
    expected = [0, 0, -0.5 / 20, -0.5 * 10 / 20, -0.5, -0.5, -0.5]
    assert penalties_B.tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("limit", "buffer"), [(100, 0), (100, -1), (100, 101), (0, 0)])
def test_a_buffer_outside_the_limit_is_refused(limit: int, buffer: int) -> None:
    with pytest.raises(ValueError, match=f"buffer is {buffer} and limit {limit}"):
        overlong_penalty(torch.tensor([1]), limit=limit, buffer=buffer)
