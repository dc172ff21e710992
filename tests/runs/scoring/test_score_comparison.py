"""Old reward against new: counts by hand, correlations against scipy, and failures that are never numbers."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.runs.score_statistics import Comparison, advantages
from tests.runs.scoring.groups import scored

Values = list[float | str]


def compare(*groups: tuple[Values, Values], show: int = 10) -> Any:
    comparison = Comparison(show)
    for i, (old, new) in enumerate(groups):
        texts = [f"text {i}.{j}" for j in range(len(old))]
        before = scored(f"p{i}", texts, old)
        after = scored(f"p{i}", texts, new).scores
        comparison.add(before.group, before.scores, after, advantages(before.scores), advantages(after))
    return SimpleNamespace(**comparison.result()[0])


def test_the_same_reward_changes_nothing() -> None:
    found = compare(([1.0, 0.0, "timeout"], [1.0, 0.0, "timeout"]), ([0.1 + 0.2, 0.0], [0.3, 0.0]))
    assert (found.changed, found.sign_changes) == (0, 0)
    assert (found.rollouts, found.both, found.groups, found.ranked) == (5, 4, 2, 2)
    assert (found.spearman_within, found.kendall_within) == (pytest.approx(1), pytest.approx(1))


def test_the_advantage_is_taken_from_the_mean_of_those_that_could_be_scored() -> None:
    assert advantages(scored("p", ["a"] * 4, [1.0, "timeout", 0.0, 0.0]).scores) == [
        pytest.approx(2 / 3),
        pytest.approx(math.nan, nan_ok=True),
        pytest.approx(-1 / 3),
        pytest.approx(-1 / 3),
    ]
    assert advantages(scored("p", ["a", "b"], ["timeout", "crashed"]).scores) == pytest.approx(
        [math.nan] * 2, nan_ok=True
    )
    # 3 * 0.1 / 3 is not 0.1 in floats, yet no rollout is better than another.
    assert advantages(scored("p", ["a"] * 3, [0.1, 0.1, 0.1]).scores) == [0.0, 0.0, 0.0]
    assert advantages(scored("p", ["a"] * 2, [0.1 + 0.2, 0.3]).scores) == [0.0, 0.0]


def test_a_change_of_sign_is_from_above_the_mean_of_the_group_to_below_or_back() -> None:
    found = compare(([1.0, 0.0, 0.0], [0.0, 0.0, 3.0]))
    # old advantages 2/3, -1/3, -1/3; new ones -1, -1, 2
    assert found.sign_changes == 2
    assert [tuple(one.values()) for one in found.largest_changes] == [
        ("p0", 2, 0.0, 3.0, pytest.approx(-1 / 3), pytest.approx(2.0), "text 0.2"),
        ("p0", 0, 1.0, 0.0, pytest.approx(2 / 3), pytest.approx(-1.0), "text 0.0"),
    ]


def test_the_largest_changes_are_shown_and_all_are_counted() -> None:
    groups = [([1.0, 0.0], [0.0, float(size)]) for size in (1, 3, 2, 3)]
    found = compare(*groups, show=3)
    assert found.sign_changes == 8
    assert [(one["prompt"], one["index"]) for one in found.largest_changes] == [
        ("p1", 0),
        ("p1", 1),
        ("p3", 0),
    ]
    assert compare(*groups, show=0).largest_changes == []


def test_a_failure_on_either_side_is_counted_and_takes_part_in_nothing_else() -> None:
    found = compare(([1.0, "timeout", 0.0, "crashed"], ["unparsable", 5.0, 0.0, "crashed"]))
    assert found.both == 1
    assert (found.old_mean, found.new_mean) == (0.0, 0.0)
    assert found.changed == 0
    assert dict(found.old_failed) == {"timeout": 1, "crashed": 1}
    assert dict(found.new_failed) == {"unparsable": 1, "crashed": 1}
    assert found.sign_changes == 0
    assert (found.spearman, found.kendall, found.spearman_within) == (None, None, None)


REWARD = st.integers(0, 3).map(float) | st.floats(-5, 5) | st.just("timeout")
GROUP = st.integers(1, 6).flatmap(
    lambda n: st.tuples(st.lists(REWARD, min_size=n, max_size=n), st.lists(REWARD, min_size=n, max_size=n))
)


@settings(max_examples=60)
@given(st.lists(GROUP, min_size=1, max_size=6))
@pytest.mark.filterwarnings("ignore:.*constant.*")
def test_correlations_agree_with_scipy_over_all_and_within_groups(groups: list[tuple[Values, Values]]) -> None:
    found = compare(*groups)
    pairs = [[p for p in zip(old, new, strict=True) if "timeout" not in p] for old, new in groups]
    everything = [pair for group in pairs for pair in group]
    for statistic, over_all, within in (
        (scipy.stats.spearmanr, found.spearman, found.spearman_within),
        (scipy.stats.kendalltau, found.kendall, found.kendall_within),
    ):

        def correlate(some: list, statistic=statistic) -> float:
            return float(statistic(*zip(*some, strict=True)).statistic) if len(some) > 1 else math.nan

        expected = correlate(everything)
        assert over_all is None if math.isnan(expected) else over_all == pytest.approx(expected, abs=1e-12)
        each = [value for value in map(correlate, pairs) if not math.isnan(value)]
        assert found.ranked == len(each)
        assert within is None if not each else within == pytest.approx(np.mean(each), abs=1e-12)
