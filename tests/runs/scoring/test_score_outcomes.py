"""What a reward knows of an outcome."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardsmith import Failure, Score, UserError
from rewardsmith.rewards import REWARD
from rewardsmith.rewards.component import Component
from rewardsmith.runs.score_statistics import OutcomeTally
from rewardsmith.trainers.process.process_model import OutcomeBatch
from rewardsmith.trainers.process.process_rewards import agreement

FAILED = Score(failure=Failure("timeout"))


def score(value: float | None, **parts: float | None) -> Score:
    inner = {name: score(number) for name, number in parts.items()}
    return Score(failure=Failure("timeout"), parts=inner) if value is None else Score(value, parts=inner)


def add(outcomes: OutcomeTally, right: Sequence[float | None], values: Sequence[float | None]) -> None:
    outcomes.add([score(0.0, answer=one) for one in right], [score(value) for value in values])


def result(outcomes: OutcomeTally) -> Any:
    facts, _ = outcomes.result()
    components = {name: SimpleNamespace(**one) for name, one in facts["components"].items()}
    return SimpleNamespace(**facts | {"components": components})


def test_pairs_and_best_of_n_by_hand() -> None:
    outcomes = OutcomeTally("answer")
    add(outcomes, [1, 0, 0.5], [2.0, 3.0, 1.0])  # leads: 1 over 0 lost; 0.5 over 0 lost; 1 over 0.5 won
    add(outcomes, [0, 0, 1], [1.0, 2.0, 2.0])  # one won, one tied; the first place is shared
    add(outcomes, [1, 1, 1], [1.0, 2.0, 3.0])  # nothing to order
    found = result(outcomes)
    assert (found.outcome, found.source) == ("answer", "stored")
    assert (found.groups, found.rollouts, found.size) == (3, 9, 3)
    assert found.mean == pytest.approx((0.5 + 1 / 3 + 1) / 3)
    assert found.oracle == pytest.approx(1.0)
    one = found.components[""]
    assert (one.groups, one.ordered) == (3, 2)
    assert one.accuracy == pytest.approx((0.5 / 2 + 1.5 / 2) / 2)
    assert one.best == pytest.approx((0 + 0.5 + 1) / 3)


def test_what_has_no_outcome_or_no_value_does_not_take_part() -> None:
    outcomes = OutcomeTally("answer")
    add(outcomes, [1, None, 0, 0], [0.0, 9.0, None, 1.0])
    add(outcomes, [None, None], [1.0, 2.0])
    add(outcomes, [1, 0], [None, None])
    found = result(outcomes)
    assert (found.groups, found.rollouts, found.size) == (2, 5, None)
    assert (found.components[""].groups, found.components[""].ordered) == (1, 1)
    assert found.components[""].accuracy == 0.0
    assert found.components[""].best == 0.0
    assert result(OutcomeTally("answer")).mean is None


def test_the_outcome_may_be_a_part_of_the_reward_itself_and_all_other_parts_are_judged_by_it() -> None:
    outcomes = OutcomeTally("answer")
    old = [score(0.0, answer=0.0), score(0.0, answer=1.0)]  # the stored one is the opposite
    outcomes.add(old, [score(5.0, answer=1.0, process=2.0), score(1.0, answer=0.0, process=3.0)])
    found = result(outcomes)
    assert found.source == "new"
    assert {name: one.best for name, one in found.components.items()} == {"": 1.0, "process": 0.0}


RULE = {"type": "rule", "rule": "exact"}
IMPLICIT = {"type": "implicit", "model": "prm"}


KNOWN: list[tuple[dict[str, Any], list[Score] | None, str]] = [
    ({"type": "sum", "parts": {"answer": RULE}}, None, ""),
    ({"type": "sum", "parts": {"anwser": RULE}}, [score(1.0, answer=1.0)], ""),
    ({"type": "sum", "parts": {"anwser": RULE}}, None, ' Did you mean "anwser"? Known: anwser'),
    ({"type": "sum", "parts": {"a": RULE, "b": RULE}}, [score(1.0)], " Known: a, b, reward"),
    (IMPLICIT, [score(1.0, answer=1.0)], ""),
    (IMPLICIT, [score(1.0, answr=1.0)], ' Did you mean "answr"? Known: answr, reward'),
    (IMPLICIT, None, "no scores are stored"),
    ({"type": "tests.trainers.world:Digits"}, None, ""),  # its scores may have parts that it does not declare
]


def test_an_outcome_that_cannot_exist_is_refused_before_anything_is_scored() -> None:
    for reward, old, message in KNOWN:
        component = Component.root(REWARD.choose(reward))
        with nullcontext() if not message else pytest.raises(UserError, match=re.escape(message)):
            OutcomeTally("answer").require(component, old)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from([None, 0.0, 0.5, 1.0]), st.sampled_from([-1.0, 0.0, 0.5, 2.0])),
            min_size=1,
            max_size=5,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_it_is_what_a_run_measures_while_it_trains(groups: list[list[tuple[float | None, float]]]) -> None:
    outcomes = OutcomeTally("answer")
    for group in groups:
        add(outcomes, [right for right, _ in group], [value for _, value in group])
    rights = [right for group in groups for right, _ in group]
    sums_B = torch.tensor([value for group in groups for _, value in group])
    batch = OutcomeBatch(
        rows=[],
        groups_B=torch.tensor([i for i, group in enumerate(groups) for _ in group]),
        mask_BT=torch.ones(len(rights), 1, dtype=torch.bool),
        outcomes_B=torch.tensor([right or 0.0 for right in rights]),
        votes_B=torch.tensor([right is not None for right in rights]),
        fresh=len(rights),
        sampler_BT=torch.zeros(len(rights), 1),
    )
    expected, found = agreement(sums_B, batch), result(outcomes)
    one = found.components.get("")
    assert (one.best if one else None) == pytest.approx(expected.get("best_of_n"))
    assert (one.accuracy if one else None) == pytest.approx(expected.get("accuracy_fresh"))
