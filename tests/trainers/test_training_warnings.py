"""What the user hears of failures: the first of each part and kind, once."""

from rewardsmith.trainers.training_warnings import FirstFailures
from rewardsmith.types import Failure, Rollout, RolloutGroup, Score, ScoredGroup
from tests.trainers.world import prompt


def failed(kind: str, detail: str = "") -> Score:
    return Score(failure=Failure(kind, detail))  # type: ignore[arg-type]  # a kind


def scored(*scores: Score) -> ScoredGroup:
    return ScoredGroup(RolloutGroup(prompt(0), [Rollout("1", [9], [-1.0]) for _ in scores]), list(scores))


def test_each_part_and_kind_is_told_once() -> None:
    said: list[str] = []
    failures = FirstFailures(said.append)
    parts = {"rule": failed("timeout", "slow"), "judge": failed("refused", "no")}
    failures.add([scored(Score(1.0), failed("timeout", "x" * 1000)), scored(failed("timeout", "again"))])
    assert said == ["a rollout could not be scored (timeout): " + "x" * 300]
    failures.add([scored(Score(failure=Failure("timeout", "rule: slow"), parts=parts))] * 2)
    failures.add([scored(failed("crashed", "oh"))])
    assert said[1:] == [
        "rule could not score a rollout (timeout): slow",
        "judge could not score a rollout (refused): no",
        "a rollout could not be scored (crashed): oh",
    ]


def test_what_was_not_asked_for_is_no_failure() -> None:
    said: list[str] = []
    whole = Score(1.0, parts={"a": failed("skipped", "late"), "b": failed("dropped", "left out"), "c": Score(1.0)})
    FirstFailures(said.append).add([scored(whole)])
    assert said == []
