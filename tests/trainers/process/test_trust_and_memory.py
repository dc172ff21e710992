"""How far a process reward counts, what its model remembers, and the steps in which it learns alone."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.rewards.component import Component
from rewardsmith.trainers.policy import PolicyTrainer
from rewardsmith.trainers.process.implicit_parts import claim_implicit_parts
from rewardsmith.trainers.process.process_rewards import ProcessPart
from rewardsmith.types import Score, ScoredGroup
from tests.trainers.process.process_cases import (
    ProcessWorld,
    alone,
    group,
    implicit,
    policy,
    settings,
    table,
    update_sizes,
)
from tests.trainers.world import distance, new_engine, steps, wait, weights

DIGIT = "tests.trainers.process.process_cases:AnyDigit"
STRANGE = {"reference_model": "other"}  # rewards from the first step on


def advantages(world: ProcessWorld) -> list[float | None]:
    return [a for record in world.records for a in record.advantages]


def outcome_only(folder: Path, count: int, **changes: Any) -> ProcessWorld:
    """Return what comes of the same stage without the process reward."""
    world = ProcessWorld(folder)
    small = table(**changes)
    del small["reward"]["parts"]["process"]
    steps(PolicyTrainer(world.stage(small), world), count)
    return world


def trained(folder: Path, trust: dict[str, Any], count: int = 1, **changes: Any) -> tuple[ProcessWorld, Any, list[Any]]:
    world = ProcessWorld(folder)
    trainer = policy(world, implicit(**STRANGE, trust=trust, weight=2.0), **changes)
    return world, trainer, steps(trainer, count)


# ---- trust -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["scale", "gate"])
@pytest.mark.parametrize("advantage", [{"type": "rloo", "combine": "after", "whiten": True}, {"type": "reinforce"}])
def test_without_trust_the_advantages_are_those_of_the_outcome_alone(
    by: str, advantage: dict[str, Any], tmp_path: Path
) -> None:
    """To the last bit, in every step, and so is the policy; the model learns nevertheless."""
    never = {"by": by, "floor": 0.999}
    world, _, metrics = trained(tmp_path, never, 2, advantage=advantage)
    baseline = outcome_only(tmp_path, 2, advantage=advantage)
    assert [m["learned/process/trust"] for m in metrics] == [0.0, 0.0]
    assert advantages(world) == advantages(baseline)
    assert distance(weights(world.engine("policy")), weights(baseline.engine("policy"))) == 0
    assert distance(weights(world.engine("prm")), weights(new_engine())) > 0


def test_trust_scales_the_weight_of_the_stream(tmp_path: Path) -> None:
    """Between trust 0 and trust 1 the advantages are in between, as far as the trust says."""
    whole, _, _ = trained(tmp_path, {"by": "nothing"})
    some, trainer, (metrics,) = trained(tmp_path, {"by": "scale", "memory": 0.0})
    none = outcome_only(tmp_path, 1)
    accuracy, trust = metrics["learned/process/accuracy_fresh"], metrics["learned/process/trust"]
    assert trust == pytest.approx(max(0.0, (accuracy - 0.5) / 0.5))
    assert 0 < trust < 1
    for a, b, c in zip(advantages(none), advantages(some), advantages(whole), strict=True):
        assert a is not None
        assert c is not None
        assert b == pytest.approx(a + trust * (c - a), abs=1e-5)
    assert trainer.state()["process"]["process"]["accuracy"] == pytest.approx(accuracy)


def test_a_process_reward_alone_that_is_not_trusted_teaches_nothing(tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path)
    answer = {"type": DIGIT, "weight": 0.0, "watch": True}
    trainer = policy(world, implicit(**STRANGE, trust={"by": "gate", "floor": 0.999}), answer=answer)
    before = weights(world.engine("policy"))
    steps(trainer, 1)
    assert set(advantages(world)) == {0.0}
    assert distance(weights(world.engine("policy")), before) == 0


# ---- replay ----------------------------------------------------------------------------------------------------------


def names(groups: list[ScoredGroup]) -> list[str]:
    return [scored.group.prompt.id for scored in groups]


def test_the_last_groups_are_remembered_and_drawn_by_the_seed() -> None:
    def part() -> ProcessPart:
        return ProcessPart(settings(learn={"replay": {"groups": 5, "per_step": 3}}), new_engine(), None)

    first, again = part(), part()
    assert first.draw(1) == []
    first.replay.extend(group(i, [1.0, None]) for i in range(8))
    drawn = [names(first.draw(seed)) for seed in range(40)]
    assert {name for some in drawn for name in some} == {f"p{i}" for i in range(3, 8)}
    assert all(len(set(some)) == 3 and some == sorted(some) for some in drawn)
    assert len({tuple(some) for some in drawn}) > 5
    again.restore(json.loads(json.dumps(first.state())))
    assert [names(again.draw(seed)) for seed in range(40)] == drawn
    assert again.draw(3) == first.draw(3)


def test_replayed_groups_are_learned_from_with_the_fresh_ones(tmp_path: Path) -> None:
    world, baseline = ProcessWorld(tmp_path), ProcessWorld(tmp_path)
    sizes = update_sizes(world.engine("prm"))
    trainer = alone(world, implicit(learn={"replay": {"groups": 6, "per_step": 2}}))
    metrics = steps(trainer, 3)
    assert sizes == [12, 12 + 8, 12 + 8]
    other = steps(alone(baseline), 3)
    assert metrics[0]["learned/process/loss"] == other[0]["learned/process/loss"]
    assert metrics[1]["learned/process/loss"] != other[1]["learned/process/loss"]
    # they are not scored again: each group is in the file once, and counts once
    assert len(world.records) == len(baseline.records) == 9
    assert metrics[1]["learned/process/accuracy_fresh"] == other[1]["learned/process/accuracy_fresh"]
    state = trainer.state()["process"]["process"]["replay"]
    assert len(state) == 6
    # what is remembered are the answers and their outcomes, not what the model once thought of them
    parts = [s["parts"]["process"] for kept in state for s in kept["scores"]]
    assert {part["value"] for part in parts} == {None}


# ---- warm-up ---------------------------------------------------------------------------------------------------------


def test_in_the_warm_up_the_process_model_learns_and_the_policy_does_not(tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path)
    start = weights(world.engine("policy"))
    optimizer = {"lr": 1e-3, "schedule": "linear", "warmup": 2}
    process = implicit(learn={"warmup": 2}, optimizer={"lr": 1e-3, "schedule": "linear"})
    trainer = policy(world, process, steps=5, optimizer=optimizer)
    wait(trainer.begin())
    metrics, learned = [], [0.0]
    for number in range(1, 6):
        metrics.append(wait(trainer.step(number)).metrics)
        learned.append(distance(weights(world.engine("prm")), start))
        assert (distance(weights(world.engine("policy")), start) > 0) == (number > 2)
    assert all(b > a for a, b in pairwise(learned))
    assert ["policy/lr" in m for m in metrics] == [False, False, True, True, True]
    assert [m["policy/lr"] for m in metrics[2:]] == pytest.approx([5e-4, 1e-3, 1e-3])
    assert [m["learned/process/lr"] for m in metrics] == pytest.approx([1e-3 * (1 - i / 5) for i in range(5)])
    assert all(record.advantages for record in world.records)


# ---- a part of weight 0 that nobody watches costs nothing ------------------------------------------------------------


class Watchful(ProcessWorld):
    """Knows which models were loaded."""

    def __init__(self, folder: Path, **how: Any) -> None:
        super().__init__(folder, **how)
        self.loaded: set[str] = set()

    def engine(self, name: str) -> EmbeddedEngine:
        self.loaded.add(name)
        return super().engine(name)


def scores(world: ProcessWorld, part: str) -> list[Score]:
    return [score.parts[part] for record in world.records for score in record.scored.scores]


def test_its_model_is_not_loaded_and_the_step_is_that_of_the_outcome(tmp_path: Path) -> None:
    world = Watchful(tmp_path)
    trainer = policy(world, implicit(weight=0.0, reference_model="other"))
    metrics = steps(trainer, 2)
    assert world.loaded == {"policy"}
    assert set(trainer.learners) == {"policy"}
    assert not [name for m in metrics for name in m if name.startswith(("learned/", "streams/process"))]
    assert {score.failure.kind for score in scores(world, "process") if score.failure} == {"skipped"}
    assert not any(score.ok for score in scores(world, "process"))
    baseline = ProcessWorld(tmp_path)
    steps(policy(baseline, reward={"type": "sum", "parts": {"answer": DIGIT}}), 2)
    assert distance(weights(world.engine("policy")), weights(baseline.engine("policy"))) == 0


def test_what_is_watched_learns_and_counts_for_nothing(tmp_path: Path) -> None:
    world = Watchful(tmp_path)
    trainer = policy(world, implicit(weight=0.0, watch=True))
    metrics = steps(trainer, 1)
    assert world.loaded == {"policy", "prm"}
    assert set(trainer.learners) == {"policy", "prm"}
    assert "learned/process/loss" in metrics[0]
    assert all(score.ok for score in scores(world, "process"))
    assert "streams/process/reward_high" not in metrics[0]


def test_it_is_skipped_and_not_claimed(tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path, models={"spare": {"copy_of": "policy"}})
    idle = implicit(outcome="answer", model="spare", reference_model="other", weight=0.0)
    parts = {"answer": DIGIT, "idle": idle, "process": implicit(outcome="answer")}
    root = Component.root(world.stage(table(reward={"type": "sum", "parts": parts})).reward)
    assert set(claim_implicit_parts(root)) == {"process"}
    component: Any = root.reward.components["idle"]  # type: ignore[attr-defined]  # of a sum
    assert component.scored_by_trainer
    assert component.reward.online  # `check` calls no model for it
