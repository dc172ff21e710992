"""Group statistics, against loops over the members."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.algorithms.groups import Groups
from tests.algorithms.batches import GROUP_IDS, assert_close

ROW = st.tuples(
    st.sampled_from(GROUP_IDS),
    st.booleans(),
    st.floats(-5, 5, allow_subnormal=False) | st.sampled_from([0.0, 0.1, 1.0]),
    st.integers(1, 9),
)
ROWS = st.lists(ROW, min_size=1, max_size=9)


@settings(max_examples=50)
@given(ROWS)
def test_statistics_are_those_of_the_voters_of_the_group(rows: list[tuple[int, bool, float, int]]) -> None:
    ids, votes, values, weights = zip(*rows, strict=True)
    groups = Groups.of(torch.tensor(ids), torch.tensor(votes))
    values_B, weights_B = torch.tensor(values).double(), torch.tensor(weights)
    results = {
        "total": groups.total(values_B),
        "mean": groups.mean(values_B),
        "weighted": groups.mean(values_B, weights_B=weights_B.double()),
        "others": groups.leave_one_out(values_B),
        "std": groups.std(values_B),
    }
    low_B, high_B = groups.range(values_B)
    for i, (own, vote, _, _) in enumerate(rows):
        voters = [j for j, row in enumerate(rows) if row[0] == own and row[1]]
        held = values_B[voters].tolist()
        assert groups.voters_B[i] == len(voters)
        assert (low_B[i], high_B[i]) == (min(held, default=math.inf), max(held, default=-math.inf))
        assert_close(results["total"][i], sum(held), 1e-9)
        assert_close(results["std"][i], statistics.stdev(held) if len(held) > 1 else 0.0, 1e-9)
        if vote:
            assert_close(results["mean"][i], statistics.fmean(held), 1e-9)
            share = sum(weights[j] for j in voters)
            assert_close(results["weighted"][i], sum(weights[j] * float(values_B[j]) for j in voters) / share, 1e-9)
        if vote and len(held) > 1:
            others = [float(values_B[j]) for j in voters if j != i]
            assert_close(results["others"][i], statistics.fmean(others), 1e-9)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e30, 1e-30, -0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_mean_of_equal_values_is_that_value_to_the_last_bit(value: float, dtype: torch.dtype, size: int) -> None:
    values_B = torch.full((size,), value, dtype=dtype)
    groups = Groups.of(torch.zeros(size, dtype=torch.long), torch.ones(size, dtype=torch.bool))
    weights_B = torch.arange(1, size + 1).double() / 7
    for mean_B in (groups.mean(values_B), groups.mean(values_B, weights_B=weights_B), groups.leave_one_out(values_B)):
        assert torch.equal(mean_B, values_B.double())
    assert not groups.std(values_B).any()


def test_a_single_voter_is_its_own_baseline() -> None:
    groups = Groups.of(torch.tensor([1, 1, 2]), torch.tensor([True, False, True]))
    values_B = torch.tensor([4.0, 9.0, 5.0]).double()
    assert groups.leave_one_out(values_B)[0] == 4
    assert groups.mean(values_B)[0] == 4
    assert groups.std(values_B).tolist() == [0, 0, 0]
