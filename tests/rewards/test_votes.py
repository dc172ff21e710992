"""A failed rollout has no vote: it changes nobody's advantage, in any estimator, through the whole path from scores."""

import json
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given as for_all
from hypothesis import strategies as st

from rewardsmith import Rollout, RolloutGroup, ScoredGroup
from rewardsmith.algorithms.advantages import ADVANTAGES, estimate_advantages, values_from
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.base import parts_of
from rewardsmith.trainers.batch import collate
from tests.rewards.stubs import given, group
from tests.trainers.world import wait

ESTIMATORS = {name: target for name, target in ADVANTAGES.items() if not values_from(target)}


def advantages(
    rows: list[dict],
    estimator: Callable = ADVANTAGES["grpo"],
    reward: dict | None = None,
    combine: str = "before",
    **settings: object,
) -> list[float | None]:
    """Score, collate and give credit as a step does; None for a rollout that takes no part."""
    whole = make_reward(reward or {"type": "sum", "parts": {"x": given("x")}})
    prompt = group(*rows).prompt
    rollouts = [Rollout(json.dumps(row), [1, 2], [-1.0, -1.0]) for row in rows]
    made = RolloutGroup(prompt, rollouts)
    scored = ScoredGroup(made, wait(whole.score(made)))
    batch = collate([scored], lambda _: np.array([1], np.int32), parts_of(whole), combine, torch.device("cpu"))
    made_BT = estimate_advantages(
        batch.streams, batch.mask_BT, batch.groups_B, None, estimator=partial(estimator, **settings), combine=combine
    )
    last = batch.mask_BT[:, 1].tolist()
    return [value if ok else None for value, ok in zip(made_BT[:, 1].tolist(), last, strict=True)]


def test_the_baseline_is_the_mean_of_those_that_voted() -> None:
    rows = [{"x": 1}, {"x": "timeout"}, {"x": 0}, {"x": 0}]
    assert advantages(rows, scale="none") == pytest.approx([2 / 3, None, -1 / 3, -1 / 3])


ENTRY = st.one_of(st.floats(-2, 2).map(lambda x: round(x, 3)), st.sampled_from(["timeout", "crashed", "unparsable"]))


@pytest.mark.parametrize("name", ESTIMATORS)
@for_all(st.lists(ENTRY, min_size=1, max_size=6).filter(lambda row: any(not isinstance(x, str) for x in row)))
def test_a_failed_rollout_changes_no_siblings_advantage(name: str, entries: list[object]) -> None:
    everybody = advantages([{"x": x} for x in entries], ESTIMATORS[name])
    voters = advantages([{"x": x} for x in entries if not isinstance(x, str)], ESTIMATORS[name])
    assert [a is None for a in everybody] == [isinstance(x, str) for x in entries]
    assert [a for a in everybody if a is not None] == pytest.approx(voters, abs=1e-6)


DROPPED = {"type": "sum", "parts": {"a": given("a"), "b": given("b", failure={"do": "drop-component"})}}


@pytest.mark.parametrize("combine", ["before", "after"])
@for_all(st.lists(st.tuples(st.integers(0, 3), ENTRY), min_size=2, max_size=6).filter(lambda r: len(dict(r)) > 1))
def test_a_component_that_is_dropped_changes_nothing_but_its_own_share(
    combine: str, entries: list[tuple[int, object]]
) -> None:
    rows = [{"a": a, "b": b} for a, b in entries]
    both = advantages(rows, reward=DROPPED, combine=combine, scale="none")
    alone = advantages([{"x": a} for a, _ in entries], scale="none")
    if any(isinstance(b, str) for _, b in entries):
        assert both == pytest.approx(alone, abs=1e-6)
    elif len({b for _, b in entries}) > 1:
        b_alone = advantages([{"x": b} for _, b in entries], scale="none")
        assert both == pytest.approx([a + b for a, b in zip(alone, b_alone, strict=True)], abs=1e-6)
