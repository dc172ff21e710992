"""Trust in a reward model: what it ordered rightly before it counted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.algorithms.token_rewards import running_accuracy, trust

SHARES = st.floats(0, 1)
FLOORS = st.floats(0.5, 0.99)


@settings(max_examples=50)
@given(
    steps=st.lists(st.tuples(SHARES, st.integers(1, 9).map(float)), min_size=1, max_size=6),
    memory=st.floats(0, 0.99),
)
def test_the_running_accuracy_is_a_weighted_mean_that_begins_at_chance(
    steps: list[tuple[float, float]], memory: float
) -> None:
    accuracy = None
    for share, groups in steps:
        accuracy = running_accuracy(accuracy, share * groups, groups, memory=memory)
    n = len(steps)
    expected = 0.5 * memory**n + sum((1 - memory) * memory ** (n - 1 - i) * share for i, (share, _) in enumerate(steps))
    assert accuracy == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("accuracy", "floor", "scale", "gate"),
    [
        (None, 0.5, 0.0, 0.0),  # nothing is known
        (0.3, 0.5, 0.0, 0.0),
        (0.5, 0.5, 0.0, 0.0),  # chance opens no gate
        (0.75, 0.5, 0.5, 1.0),
        (1.0, 0.5, 1.0, 1.0),
        (0.6, 0.6, 0.0, 0.0),
        (0.7, 0.6, 0.25, 1.0),
        (0.61, 0.6, 0.025, 1.0),
        (1.0, 0.6, 1.0, 1.0),
        (1.0, 1.0, 0.0, 0.0),
    ],
)
def test_trust_by_accuracy(accuracy: float | None, floor: float, scale: float, gate: float) -> None:
    assert trust(accuracy, by="scale", floor=floor) == pytest.approx(scale)
    assert trust(accuracy, by="gate", floor=floor) == gate
    assert trust(accuracy, by="nothing", floor=floor) == 1


@settings(max_examples=50)
@given(first=SHARES, second=SHARES, floor=FLOORS, by=st.sampled_from(["scale", "gate"]))
def test_trust_lies_between_zero_and_one_and_grows_with_the_accuracy(
    first: float, second: float, floor: float, by: str
) -> None:
    low, high = sorted((first, second))
    assert 0 <= trust(low, by=by, floor=floor) <= trust(high, by=by, floor=floor) <= 1
    assert trust(0.5, by=by, floor=floor) == 0
