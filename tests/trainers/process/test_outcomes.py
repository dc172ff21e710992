"""What a process reward model learns from: outcomes between 0 and 1, and never from one that failed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rewardsmith.errors import UserError
from rewardsmith.types import RolloutGroup, Score, ScoredGroup
from tests.trainers.process.process_cases import Model, ProcessWorld, alone, batch_of, group, implicit, policy
from tests.trainers.world import distance, steps, weights

LOSSES: list[dict[str, Any]] = [{}, {"offset": "group-mean"}, {"loss": "pairwise"}, {"loss": "best-of-n-reward"}]


def without_failed(scored: ScoredGroup) -> ScoredGroup:
    kept = [i for i, score in enumerate(scored.scores) if score.ok]
    rollouts = [scored.group.rollouts[i] for i in kept]
    return ScoredGroup(replace(scored.group, rollouts=rollouts), [scored.scores[i] for i in kept])


@pytest.mark.parametrize("learn", LOSSES, ids=str)
def test_a_failed_outcome_teaches_nothing_and_its_rollout_is_rewarded_all_the_same(
    learn: dict[str, Any], tmp_path: Path
) -> None:
    groups = [group(0, [1.0, None, 0.0, None, 0.5]), group(1, [None, 0.0, 1.0])]
    some, only = (Model(tmp_path, update="reverse", learn=learn) for _ in range(2))
    found, expected = (
        some.score_and_learn(batch_of(groups)),
        only.score_and_learn(batch_of([without_failed(g) for g in groups])),
    )
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert found.grad_norms == pytest.approx(expected.grad_norms, rel=1e-4)
    assert distance(weights(some.engine), weights(only.engine)) < 1e-2 * distance(
        weights(some.engine), weights(Model(tmp_path).engine)
    )
    sums = found.rewards_BT.abs().sum(-1)
    assert bool((sums[[1, 3, 5]] > 1e-3).all())


@pytest.mark.parametrize("update", ["before", "after", "reverse"])
def test_a_mini_batch_without_a_label_takes_no_step(update: str, tmp_path: Path) -> None:
    """No gradient is no reason to let the weights decay, or the moments."""
    batch = batch_of([group(0, [None, None, None])])
    model = Model(tmp_path, update=update, optimizer={"weight_decay": 0.5, "lr": 0.1})
    before = weights(model.engine)
    found = model.score_and_learn(batch, measure=True)
    assert distance(weights(model.engine), before) == 0
    assert (found.loss, list(found.grad_norms), found.skipped, model.gradients) == (None, [], 0, [])
    untouched = Model(tmp_path, update="none").score_and_learn(batch)
    assert torch.equal(found.rewards_BT, untouched.rewards_BT)
    assert found.rewards_BT.abs().sum() > 0


class TooHigh:
    """Gives up to two points."""

    async def score(self, group: RolloutGroup) -> list[Score]:
        return [Score(2.0 if i == 1 else 1.0) for i, _ in enumerate(group.rollouts)]


@pytest.mark.parametrize("make", [policy, alone], ids=["policy", "alone"])
def test_an_outcome_beyond_one_is_refused_with_the_name_of_its_part(make: Any, tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path)
    trainer = make(world, answer="tests.trainers.process.test_outcomes:TooHigh")
    before = weights(world.engine("prm"))
    with pytest.raises(UserError, match=r'between 0 and 1, but the part "answer" is 2: transform it with type = '):
        steps(trainer, 1)
    assert distance(weights(world.engine("prm")), before) == 0


def test_rollouts_whose_outcome_failed_have_rewards_and_are_counted(tmp_path: Path) -> None:
    """In a stage: the part is there for every rollout, and the policy learns from it where the sum failed."""
    world = ProcessWorld(tmp_path)
    answer = {"type": "tests.trainers.process.process_cases:Torn", "failure": {"share": 1.0}}
    metrics = steps(policy(world, implicit(reference_model="other"), answer=answer), 2)
    scores = [score for record in world.records for score in record.scored.scores]
    lost = [score for score in scores if not score.parts["answer"].ok]
    assert len(lost) == 2 * 3 * 1
    assert all(score.parts["process"].ok for score in scores)
    assert all(m["failures/answer/timeout"] == 0.25 and m["learned/process/loss"] > 0 for m in metrics)
    advantages = [a for record in world.records for a in record.advantages]
    assert None not in advantages


class Fails:
    """Always fails."""

    async def score(self, group: RolloutGroup) -> list[Score]:
        raise RuntimeError("down")


def test_without_any_outcome_nothing_is_learned_and_the_numbers_stay_finite(tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path)
    answer = {"type": "tests.trainers.process.test_outcomes:Fails", "failure": {"share": 1.0}}
    before = weights(world.engine("prm"))
    (metrics,) = steps(policy(world, implicit(reference_model="other"), answer=answer, select={"patience": 3}), 1)
    assert distance(weights(world.engine("prm")), before) == 0
    assert "learned/process/loss" not in metrics
