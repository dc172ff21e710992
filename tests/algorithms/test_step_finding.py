"""Whether rewards of steps point at the wrong step."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.algorithms.token_rewards import step_finding

RIGHT, WRONG = True, False


def test_the_first_wrong_step_is_what_counts() -> None:
    rewards = [[0.1, -0.5, 0.2], [0.1, 0.2, -0.5], [-1.0, 0.0, 0.0, 0.0], [0.3, 0.1]]
    truths = [[RIGHT, WRONG, RIGHT], [RIGHT, WRONG, WRONG], [WRONG] * 4, [RIGHT, RIGHT]]
    result = step_finding(rewards, truths)
    assert result.found == pytest.approx(2 / 3)  # the second points at a later error, the last has none
    assert result.chance == pytest.approx((1 / 3 + 1 / 3 + 1 / 4) / 3)
    assert (result.judged, result.wrong, result.steps) == (4, 3, 12)


@pytest.mark.parametrize(
    ("rewards", "found"),
    [([0, 0, 0, 0], 1 / 4), ([0, 1, 0, 1], 1 / 2), ([1, 0, 0, 0], 0.0), ([-1, 0, -1, -1], 1 / 3), ([-1, 0, 0, 0], 1.0)],
)
def test_equal_rewards_find_as_often_as_a_draw_among_them(rewards: list[float], found: float) -> None:
    assert step_finding([rewards], [[WRONG, RIGHT, WRONG, RIGHT]]).found == pytest.approx(found)


def test_correlation_and_order_are_over_all_steps() -> None:
    rewards, truths = [[1.0, 3.0], [2.0, 6.0]], [[WRONG, RIGHT], [WRONG, RIGHT]]
    result = step_finding(rewards, truths)
    x, y = np.array([1.0, 3, 2, 6]), np.array([0.0, 1, 0, 1])
    assert result.correlation == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert result.auc == 1.0
    assert step_finding([[3.0, 1.0], [6.0, 2.0]], truths).auc == 0.0
    # pairs of a right and a wrong step: 3 > 1, 3 > 2, 2 > 1, and one tie
    assert step_finding([[1.0, 3.0], [2.0, 2.0]], truths).auc == pytest.approx((3 + 1 / 2) / 4)


def test_what_is_not_known_is_nan() -> None:
    for rewards, truths in ([], []), ([[]], [[]]):
        result = step_finding(rewards, truths)
        assert all(map(math.isnan, (result.found, result.chance, result.correlation, result.auc)))
        assert (result.judged, result.wrong, result.steps) == (0, 0, 0)
    result = step_finding([[0.5, 0.1]], [[RIGHT, RIGHT]])
    assert all(map(math.isnan, (result.found, result.chance, result.correlation, result.auc)))
    assert (result.judged, result.wrong) == (1, 0)
    assert math.isnan(step_finding([[0.0, 0.0]], [[RIGHT, WRONG]]).correlation)
    assert step_finding([[0.0, 0.0]], [[RIGHT, WRONG]]).auc == 0.5


ROLLOUTS = st.lists(
    st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=5), min_size=1, max_size=6
)


@given(ROLLOUTS, st.integers(1, 5), st.integers(-4, 4))
def test_scale_and_shift_change_nothing(rollouts: list[list[tuple[int, bool]]], scale: int, shift: int) -> None:
    truths = [[truth for _, truth in rollout] for rollout in rollouts]
    rewards = [np.array([float(reward) for reward, _ in rollout]) for rollout in rollouts]
    one, other = step_finding(rewards, truths), step_finding([scale * r + shift for r in rewards], truths)
    for name in ("found", "chance", "correlation", "auc"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-9)
    mirrored = step_finding([-r for r in rewards], truths)
    np.testing.assert_allclose(mirrored.auc, 1 - one.auc, atol=1e-9)
    np.testing.assert_allclose(mirrored.correlation, -one.correlation, atol=1e-9)
