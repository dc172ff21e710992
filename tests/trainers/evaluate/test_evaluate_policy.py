"""Right answers, and right answers that hold: pass@k, verified@k and false discoveries against counting."""

from dataclasses import replace
from itertools import combinations
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith.errors import UserError
from rewardsmith.rewards import make_reward
from rewardsmith.trainers.evaluate.evaluate_policy import (
    REASONING,
    JudgedGroup,
    evaluate_policy,
    judge_group,
    measure_policy,
    reasoning_metrics,
    require_free,
    with_reasoning_check,
)
from rewardsmith.types import Failure, Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup
from tests.trainers.evaluate.rewards import wait

ROLLOUT = st.sampled_from([(False, None), (True, True), (True, False), (True, None), (None, None)])
GROUPS = st.lists(st.lists(ROLLOUT, min_size=4, max_size=4), min_size=1, max_size=4)


def groups_of(rows: list[list[tuple[bool | None, bool | None]]]) -> list[JudgedGroup]:
    return [JudgedGroup(tuple(r for r, _ in row), tuple(s for _, s in row)) for row in rows]


@given(GROUPS)
def test_the_measures_are_what_counting_gives(rows: list[list[tuple[bool | None, bool | None]]]) -> None:
    metrics, _ = measure_policy(groups_of(rows))
    every = [one for row in rows for one in row]
    answers = [r for r, _ in every if r is not None]
    known = [s for r, s in every if r and s is not None]
    expected = {"failed": mean(r is None for r, _ in every), "prompts": len(rows), "rollouts": len(every)}
    expected |= chances("pass", [[r for r, _ in row if r is not None] for row in rows])
    expected |= {"accuracy": mean(answers)} if answers else {}
    expected |= {"unsound": mean(not s for s in known)} if known else {}
    expected |= {"reasoning_check_failed": 1 - len(known) / sum(answers)} if any(answers) else {}
    if known or not any(answers):  # else nothing is known of any right answer
        expected |= {"verified": mean(answers) * (mean(known) if known else 0)} if answers else {}
        closed = [row for row in rows if (True, None) not in row]
        expected |= chances("verified", [[bool(r and s) for r, s in row if r is not None] for row in closed])
    assert metrics == pytest.approx(expected)


def chances(name: str, verdicts: list[list[bool]]) -> dict[str, float]:
    found = {k: [mean(any(some) for some in combinations(v, k)) for v in verdicts if len(v) >= k] for k in (1, 2, 4)}
    return {f"{name}@{k}": mean(some) for k, some in found.items() if some}


def test_a_policy_by_hand() -> None:
    groups = groups_of([[(True, True), (True, False)], [(True, False), (False, None)]])
    metrics, tables = measure_policy(groups)
    assert metrics["accuracy"] == 3 / 4
    assert metrics["verified"] == 1 / 4
    assert metrics["unsound"] == pytest.approx(2 / 3)
    assert (metrics["pass@2"], metrics["verified@2"]) == (1.0, 0.5)
    assert [table.title for table in tables] == ["answers"]
    found = evaluate_policy(groups)
    assert found.facts["main"] == [
        *("accuracy", "verified", "unsound", "pass@2", "verified@2", "failed", "reasoning_check_failed")
    ]


def test_a_second_reward_that_always_fails_verifies_nothing_and_refutes_nothing() -> None:
    rows = [[(True, None), (False, None)], [(False, None), (False, None)]]
    metrics, tables = measure_policy([replace(g, place=str(i)) for i, g in enumerate(groups_of(rows))])
    assert (metrics["accuracy"], metrics["reasoning_check_failed"]) == (0.25, 1.0)
    assert not [name for name in metrics if name.startswith(("verified", "unsound"))]
    assert "So nothing is verified." in tables[0].note
    assert [row[3] for row in tables[1].rows] == [None, 0.0]  # where no answer is right, none is verified


# ---- a second reward -----------------------------------------------------------------------------------------------


def scored(*pairs: tuple[str, Score]) -> ScoredGroup:
    group = RolloutGroup(Prompt("p", [Message("user", "?")]), [Rollout(text) for text, _ in pairs])
    return ScoredGroup(group, [score for _, score in pairs])


def test_only_right_answers_are_checked_and_the_verdict_is_stored_as_a_part() -> None:
    failed = Score(failure=Failure("timeout"))
    group = scored(("fine", Score(1.0)), ("how?", Score(1.0)), ("wrong", Score(0.4)), ("lost", failed))
    steps = make_reward("tests.trainers.evaluate.rewards:Steps")
    (found,) = wait(with_reasoning_check([group], steps, correct_threshold=0.5))
    parts = [score.parts[REASONING] for score in found.scores]
    assert [part.value for part in parts] == [1.0, 0.0, None, None]
    assert [part.failure.kind for part in parts[2:]] == ["skipped", "skipped"]
    assert [score.value for score in found.scores] == [1.0, 1.0, 0.4, None]
    judged = judge_group(found, 0.5, 1.0)
    assert (judged.right, judged.sound) == ((True, True, False, None), (True, False, None, None))
    assert judge_group(found, 0.5) == JudgedGroup((True, True, False, None))


def test_a_second_reward_that_fails_stops_nothing() -> None:
    groups = [scored(("x", Score(1.0))) for _ in range(100)]
    numbers = make_reward("tests.trainers.evaluate.rewards:Numbers")  # "x" is none: all 100 fail
    found = wait(with_reasoning_check(groups, numbers, correct_threshold=1.0))
    assert {group.scores[0].parts[REASONING].failure.kind for group in found} == {"unparsable"}
    assert reasoning_metrics([judge_group(group, 1.0, 1.0) for group in found]) == {"reasoning_check_failed": 1.0}


def test_a_reward_with_such_a_part_is_refused() -> None:
    part = {"type": "rule", "rule": "exact"}
    with pytest.raises(UserError, match='has a part "reasoning_check" of its own'):
        require_free(make_reward({"type": "sum", "parts": {"reasoning_check": part}}))
    require_free(make_reward({"type": "sum", "parts": {"steps": part}}))


# ---- faults by kind --------------------------------------------------------------------------------------------------

KINDS = ("", "miracle-steps", "coincidence", "my-kind")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from([None, True, False]), st.sampled_from([None, True, False]), st.sampled_from(KINDS)
            ),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_faults_by_kind_are_what_counting_gives(rows: list[list[tuple[bool | None, bool | None, str]]]) -> None:
    groups = [
        JudgedGroup(
            tuple(r for r, _, _ in row), tuple(s for _, s, _ in row), faults=tuple(label for _, _, label in row)
        )
        for row in rows
    ]
    metrics, tables = measure_policy(groups)
    checked = [(s, label) for row in rows for r, s, label in row if r and s is not None]
    unsound = [label or "unnamed" for s, label in checked if not s]
    named = {kind: unsound.count(kind) for kind in unsound} if any(kind != "unnamed" for kind in unsound) else {}
    found = {name.removeprefix("fault/"): share for name, share in metrics.items() if name.startswith("fault/")}
    assert found == pytest.approx({kind: count / len(checked) for kind, count in named.items()})
    if named:
        assert sum(found.values()) == pytest.approx(metrics["unsound"])
        table = next(table for table in tables if table.title == "faults of right answers")
        assert {row[0]: row[1:4] for row in table.rows} == {
            kind: (count, pytest.approx(count / len(unsound)), pytest.approx(count / len(checked)))
            for kind, count in named.items()
        }
    assert len(tables) == 1 + bool(named)


def test_the_kind_is_the_label_of_the_check_or_of_a_part_of_it() -> None:
    none, named = Score(0.0), Score(0.2, label="coincidence")
    checks = [
        Score(0.0, parts={"a": named, "b": none}, label="miracle-steps"),
        Score(0.0, parts={"a": none, "b": named}),
        Score(1.0, parts={"a": none, "b": none}, label="x"),
    ]
    group = scored(*((str(i), Score(1.0, parts={REASONING: check})) for i, check in enumerate(checks)))
    judged = judge_group(group, 1.0, 1.0)
    assert judged.unsound_faults == ["miracle-steps", "coincidence"]
