"""Measures of components: against numpy, against counting by hand, and unmoved by order and by splits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith import Failure, Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup
from rewardsmith.rewards.measure import Measured, measure, quantiles

PROMPT = Prompt("p", [Message("user", "?")])


def grouped(*scores: Score) -> ScoredGroup:
    return ScoredGroup(RolloutGroup(PROMPT, [Rollout("")] * len(scores)), scores)


def failed(kind: str) -> Score:
    return Score(failure=Failure(kind))


def whole(*values: float | str) -> ScoredGroup:
    """A group whose scores are values, or failures of that kind."""
    return grouped(*(failed(value) if isinstance(value, str) else Score(value) for value in values))


def test_shares_are_of_the_rollouts_for_which_the_component_was_computed() -> None:
    found = measure([whole(1.0, "timeout", "skipped", 0.0), whole("dropped", "dropped", "crashed", "timeout")])
    # of 8: one skipped; two that were dropped had been computed
    failed = {"timeout": 2 / 7, "crashed": 1 / 7}
    shares = {"failed": failed, "skipped": 1 / 8, "dropped": 2 / 8, "flat": 0.0, "labels": {}}
    assert found == {"": Measured("", 7, 2, 0.5, 0.5, low=0.0, high=1.0, **shares)}
    assert list(found[""].failed) == ["timeout", "crashed"]  # the most frequent first


def test_labels_are_counted_whatever_the_score() -> None:
    scores = [Score(1.0, label="exact"), Score(0.0, label="cut-off"), failed("timeout"), Score(0.0, label="cut-off")]
    assert list(measure([grouped(*scores)])[""].labels.items()) == [("cut-off", 0.5), ("exact", 0.25)]
    assert measure([grouped(*scores[:2]), grouped(*scores[2:])])[""].labels == measure([grouped(*scores)])[""].labels


def test_nothing_scored_is_none_and_not_zero() -> None:
    found = measure([whole("timeout", "timeout")])[""]
    assert (found.mean, found.spread, found.flat, found.low, found.high) == (None,) * 5
    assert found.failed == {"timeout": 1.0}
    skipped = measure([whole("skipped")])[""]
    assert (skipped.rollouts, skipped.failed, skipped.skipped) == (0, {}, 1.0)
    assert measure([]) == {}
    assert quantiles([]) == {}


@pytest.mark.parametrize(
    ("groups", "flat"),
    [
        ([whole(1.0, 1.0), whole(1.0, 0.0)], 0.5),
        ([whole(1.0, 1.0, "timeout"), whole(1.0, "timeout")], 1.0),  # the second has one value: it says nothing
        ([whole(1.0)], None),
        ([whole(0.1, 0.1, 0.1), whole(0.1, 0.1 + 1e-15)], 0.5),
    ],
)
def test_flat_groups_are_those_of_two_values_or_more_that_are_all_equal(
    groups: list[ScoredGroup], flat: float | None
) -> None:
    assert measure(groups)[""].flat == flat


def test_parts_have_dotted_names_and_are_measured_each_on_its_own() -> None:
    judge = Score(0.5, parts={"style": Score(1.0)})
    down = Score(failure=Failure("timeout"), parts={"style": failed("timeout")})
    found = measure(
        [
            grouped(
                Score(1.5, parts={"rule": Score(1.0), "judge": judge}),
                Score(failure=Failure("timeout"), parts={"rule": Score(0.0), "judge": down}),
            ),
            # Another source may be routed to other parts.
            grouped(Score(3.0, parts={"other": Score(3.0)})),
        ]
    )
    assert list(found) == ["", "rule", "judge", "judge.style", "other"]
    assert [found[name].name for name in found] == list(found)
    assert [found[name].mean for name in found] == [2.25, 0.5, 0.5, 1.0, 3.0]
    assert [found[name].rollouts for name in found] == [3, 2, 2, 2, 1]
    assert found["rule"].failed == {}
    assert found["judge.style"].failed == {"timeout": 0.5}


VALUE = st.floats(-1e30, 1e30) | st.sampled_from([0.0, 1.0, 0.5])
ENTRY = VALUE | st.sampled_from(["timeout", "crashed", "skipped", "dropped"])
GROUPS = st.lists(st.lists(ENTRY, min_size=1, max_size=6), max_size=8)


@given(GROUPS)
def test_mean_and_spread_agree_with_numpy(groups: list[list[float | str]]) -> None:
    values = np.array([value for group in groups for value in group if not isinstance(value, str)])
    found = measure(whole(*group) for group in groups)
    if not groups:
        return
    assert found[""].scored == len(values)
    if len(values):
        size = float(np.abs(values).max())
        assert found[""].mean == pytest.approx(values.mean(), rel=1e-12, abs=1e-13 * size)
        assert found[""].spread == pytest.approx(values.std(), rel=1e-9, abs=1e-13 * size)
        assert (found[""].low, found[""].high) == (values.min(), values.max())


def test_a_small_spread_far_from_zero_survives() -> None:
    values = [1e9 + offset for offset in (0.0, 0.25, 0.5)] * 1000
    found = measure(whole(*values[i : i + 3]) for i in range(0, 3000, 3))[""]
    assert found.spread == pytest.approx(np.std([0.0, 0.25, 0.5]), rel=1e-9)
