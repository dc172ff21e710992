"""A process reward of weight 0 that nobody watches costs nothing: its model is not loaded, not asked and not taught."""

from pathlib import Path
from typing import Any

from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.rewards.component import Component
from rewardsmith.trainers.process.implicit_parts import claim_implicit_parts
from rewardsmith.types import Score
from tests.trainers.process.made import ProcessWorld, implicit, policy, table
from tests.trainers.world import distance, steps, weights

DIGIT = "tests.trainers.process.made:AnyDigit"


class Watchful(ProcessWorld):
    """Knows which models were asked for."""

    def __init__(self, folder: Path, **how: Any) -> None:
        super().__init__(folder, **how)
        self.loaded: set[str] = set()

    def engine(self, name: str) -> EmbeddedEngine:
        self.loaded.add(name)
        return super().engine(name)


def both(**process: Any) -> dict[str, Any]:
    """Return a reward with a process reward that counts, and one whose weight is 0."""
    counts = implicit(outcome="answer", model="prm")
    idle = implicit(outcome="answer", model="spare", reference_model="other", weight=0.0, **process)
    return {"reward": {"type": "sum", "parts": {"answer": DIGIT, "idle": idle, "process": counts}}}


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
    plain = ProcessWorld(tmp_path)
    steps(policy(plain, reward={"type": "sum", "parts": {"answer": DIGIT}}), 2)
    assert distance(weights(world.engine("policy")), weights(plain.engine("policy"))) == 0


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
    stage = world.stage(table(**both()))
    root = Component.root(stage.reward)
    assert set(claim_implicit_parts(root)) == {"process"}
    assert root.reward.components["idle"].scored_by_trainer  # type: ignore[attr-defined]  # it is a sum
    assert root.reward.components["idle"].reward.online  # type: ignore[attr-defined]  # `check` asks no model for it
