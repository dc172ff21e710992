"""Which groups pass, and why the others do not."""

import pytest
from pydantic import ValidationError

from rewardsmith.trainers.collect import rejection
from rewardsmith.trainers.settings import SelectSettings
from rewardsmith.types import Failure, Score
from tests.trainers.world import FAILED, scored


def why(scores: list[Score | float], **settings: object) -> str | None:
    return rejection(scored(scores), SelectSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.0], "too_hard"),
        ([1.0, 0.0, 0.0, 0.0], None),
        ([1.0, 1.0, 1.0, 0.0], None),
        ([1.0, 1.0, 1.0, 1.0], "too_easy"),
        ([1.0, FAILED], "too_easy"),
        ([0.0, FAILED, FAILED, 0.5], None),
    ],
)
def test_the_bounds_of_the_mean_are_inclusive_and_failures_do_not_count(
    values: list[Score | float], expected: str | None
) -> None:
    assert why(values, lowest=0.25, highest=0.75) == expected


def test_the_mean_of_one_part_can_be_measured() -> None:
    scores = [Score(5.0, parts={"judge": Score(3.0, parts={"style": Score(0.5)})}) for _ in range(2)]
    assert why([*scores], part="judge.style", highest=0.5) is None
    assert why([*scores], part="judge.style", highest=0.4) == "too_easy"
    assert why([*scores], part="judge", lowest=4.0) == "too_hard"
    assert why([*scores], part="jugde") == "failed"
    lost = [Score(failure=Failure("timeout"), parts={"judge": Score(1.0)}) for _ in range(2)]
    assert why([*lost], part="judge", lowest=1.0) == "failed"  # without a sum there is nothing to learn from
    settings = SelectSettings(part="judge", lowest=1.0)
    assert rejection(scored([*lost]), settings, streams=["judge"], by_parts=True) is None
    assert rejection(scored([*lost]), settings, streams=["other"], by_parts=True) == "failed"


def test_equal_rewards_are_constant_only_where_that_is_asked() -> None:
    assert why([0.5, 0.5], constant="keep") is None
    assert why([0.5, 0.5], constant="drop") == "constant"
    assert why([0.5, 0.6], constant="drop") is None
    assert why([0.5, FAILED], constant="drop") == "constant"
    assert why([FAILED, 0.5, 0.4], constant="drop") is None


def part(value: float, **more: object) -> Score:
    return Score(1.0, parts={"a": Score(value, **more), "b": Score(-value)})  # type: ignore[arg-type]


def by_parts(scores: list[Score], *streams: str, after: bool = True) -> str | None:
    return rejection(scored([*scores]), SelectSettings(constant="drop"), streams=streams, by_parts=after)


def test_parts_that_differ_are_a_contrast_where_each_is_a_stream_of_its_own() -> None:
    assert by_parts([part(1.0), part(2.0)], "a", "b") is None
    assert by_parts([part(1.0), part(2.0)], "a", "b", after=False) == "constant"  # their sum is all that counts
    assert by_parts([part(1.0), part(1.0)], "a", "b") == "constant"
    failed = Score(1.0, parts={"a": FAILED, "b": Score(-1.0)})
    assert by_parts([failed, part(1.0)], "a", "b") is None
    assert by_parts([failed, failed], "a", "b") == "constant"


def test_what_is_only_watched_is_no_contrast() -> None:
    assert by_parts([part(1.0), part(2.0)], "c") == "constant"
    assert why([part(1.0), part(2.0)], constant="drop") == "constant"
    lost = Score(failure=Failure("timeout"), parts={"watched": Score(1.0), "judge": FAILED})
    assert by_parts([lost, lost], "judge") == "failed"


def test_rewards_per_token_that_differ_are_a_contrast() -> None:
    def dense(*values: float) -> Score:
        return Score(sum(values), token_values=list(values))

    assert why([dense(1.0, 0.0), dense(0.0, 1.0)], constant="drop") is None
    assert why([dense(1.0, 0.0), dense(1.0, 0.0)], constant="drop") == "constant"
    two = [part(1.0, token_values=[0.5, 0.5]), part(1.0, token_values=[1.0, 0.0])]
    assert by_parts(two, "a", after=False) is None
    assert by_parts(two, "b", after=False) == "constant"


@pytest.mark.parametrize(("setting", "expected"), [("keep", None), ("mask", None), ("drop", "truncated")])
def test_truncated_answers_drop_their_group_only_where_that_is_asked(setting: str, expected: str | None) -> None:
    group = scored([1.0, 0.0], stop_reasons=["stop", "length"])
    assert rejection(group, SelectSettings(truncated=setting)) == expected  # type: ignore[arg-type]
    assert rejection(scored([1.0, 0.0]), SelectSettings(truncated=setting)) is None  # type: ignore[arg-type]


def test_a_lower_bound_above_the_upper_one_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"lowest is 0\.8, above highest = 0\.2: no group would pass"):
        SelectSettings(lowest=0.8, highest=0.2)
    assert SelectSettings(lowest=0.5, highest=0.5).rounds == 1
