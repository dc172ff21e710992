"""Trust in a process reward, and whether rewards of steps point at the wrong step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.algorithms.token_rewards import running_accuracy, step_finding, trust

SHARES = st.floats(0, 1)


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


RIGHT, WRONG = True, False


def test_the_first_wrong_step_is_what_counts() -> None:
    rewards = [[0.1, -0.5, 0.2], [0.1, 0.2, -0.5], [-1.0, 0.0, 0.0, 0.0], [0.3, 0.1]]
    truths = [[RIGHT, WRONG, RIGHT], [RIGHT, WRONG, WRONG], [WRONG] * 4, [RIGHT, RIGHT]]
    result = step_finding(rewards, truths)
    assert result["found"] == pytest.approx(2 / 3)  # the second points at a later error, the last has none
    assert result["chance"] == pytest.approx((1 / 3 + 1 / 3 + 1 / 4) / 3)
    assert result["judged"] == 4


def test_correlation_and_order_are_over_all_steps() -> None:
    rewards, truths = [[1.0, 3.0], [2.0, 6.0]], [[WRONG, RIGHT], [WRONG, RIGHT]]
    result = step_finding(rewards, truths)
    x, y = np.array([1.0, 3, 2, 6]), np.array([0.0, 1, 0, 1])
    assert result["correlation"] == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert result["auc"] == 1.0
    # pairs of a right and a wrong step: 3 > 1, 3 > 2, 2 > 1, and one tie
    assert step_finding([[1.0, 3.0], [2.0, 2.0]], truths)["auc"] == pytest.approx((3 + 1 / 2) / 4)


def test_what_cannot_be_measured_is_left_out() -> None:
    assert step_finding([], []) == step_finding([[]], [[]]) == {}
    assert step_finding([[0.5, 0.1]], [[RIGHT, RIGHT]]) == {"judged": 1}
    assert step_finding([[0.0, 0.0]], [[RIGHT, WRONG]]) == {"found": 0.5, "chance": 0.5, "auc": 0.5, "judged": 1}
