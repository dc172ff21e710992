"""Groups are selected by their outcomes; only those that are learned from are scored, by the model as it is then."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewardsmith.engines.protocol import Row
from rewardsmith.errors import UserError
from rewardsmith.trainers.trainer import GroupRecord, derive
from rewardsmith.types import Message, Prompt, RolloutGroup, Score
from tests.trainers.process.made import ProcessWorld, alone, implicit, policy
from tests.trainers.world import new_engine, steps, wait


def right_ones(prompt: str) -> int:
    return derive(0, prompt) % 6


class Quota:
    """Of five answers to a prompt, between none and all are right; which number it is depends on the prompt alone."""

    async def score(self, group: RolloutGroup) -> list[Score]:
        count = right_ones(group.prompt.id)
        return [Score(float(i < count)) for i, _ in enumerate(group.rollouts)]


QUOTA = "tests.trainers.process.test_collecting:Quota"
STRANGE = {"reference_model": "other", "normalise": "none"}
BOUNDS = {"lowest": 0.2, "highest": 0.8, "part": "answer"}


def process(record: GroupRecord) -> list[Score]:
    return [score.parts["process"] for score in record.scored.scores]


@pytest.mark.parametrize("make", [policy, alone], ids=["policy", "alone"])
def test_the_bounds_are_those_of_the_outcome_and_inclusive(make: Any, tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path)
    stage = {"rollouts_per_prompt": 5, "prompts_per_step": 40, "select": BOUNDS}
    (metrics,) = steps(make(world, implicit(**STRANGE), answer=QUOTA, **stage), 1)
    fates = {0: "too_hard", 5: "too_easy"}
    for record in world.records:
        fate = fates.get(right_ones(record.scored.group.prompt.id), "")
        assert record.dropped == fate
        if fate:
            assert {score.failure.kind for score in process(record) if score.failure} == {"skipped"}
        assert all(score.ok != bool(fate) for score in process(record))
    dropped = [record.dropped for record in world.records]
    assert metrics["groups/kept"] == dropped.count("") > 5
    assert metrics["groups/too_hard"] == dropped.count("too_hard") > 0
    assert metrics["groups/too_easy"] == dropped.count("too_easy") > 0
    assert {right_ones(r.scored.group.prompt.id) for r in world.records if not r.dropped} == {1, 2, 3, 4}
    # what was not asked for is no failure; the mean is over what was scored
    assert not [name for name in metrics if name.startswith("failures/")]
    values = [score.value for record in world.records for score in process(record) if score.value is not None]
    assert metrics["reward/process"] == pytest.approx(float(np.mean(values)))
    assert metrics["reward/process/skipped"] == pytest.approx(1 - len(values) / (40 * 5))


def test_a_group_with_an_answer_that_was_cut_off_is_dropped_and_not_scored(tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path)
    stage = {"prompts_per_step": 12, "sampling": {"max_tokens": 48}, "select": {"truncated": "drop"}}
    (metrics,) = steps(policy(world, implicit(**STRANGE), **stage), 1)
    for record in world.records:
        cut = any(rollout.stop_reason == "length" for rollout in record.scored.group.rollouts)
        assert record.dropped == ("truncated" if cut else "")
        assert all(score.ok != cut for score in process(record))
    assert 0 < metrics["groups/truncated"] < 12


def test_masked_answers_are_scored_and_learned_from_by_the_process_model(tmp_path: Path) -> None:
    """Leaving an answer out of the policy's loss says nothing against its outcome."""
    losses = []
    for truncated in ("keep", "mask"):
        world = ProcessWorld(tmp_path)
        (metrics,) = steps(policy(world, implicit(**STRANGE), select={"truncated": truncated}), 1)
        assert all(score.ok for record in world.records for score in process(record))
        losses.append(metrics["learned/process/loss"])
    assert losses[0] == losses[1]


def expected_rewards(record: GroupRecord, prm: Any, reference: Any, beta: float) -> list[np.ndarray]:
    rows = [Row(prm.encode(record.scored.group.prompt), r.tokens) for r in record.scored.group.rollouts]
    found = beta * (prm.logprobs(rows) - reference.logprobs(rows))
    return [row[: len(r.response)].numpy() for row, r in zip(found, rows, strict=True)]


def test_surplus_is_kept_with_its_rollouts_and_scored_by_the_model_of_the_step_that_uses_it(tmp_path: Path) -> None:
    world, other = ProcessWorld(tmp_path), new_engine("other")
    select = {"oversample": 2.0, "staleness": 2, "rounds": 2} | BOUNDS
    stage = {"rollouts_per_prompt": 5, "prompts_per_step": 3, "select": select}
    trainer = policy(world, implicit(**STRANGE, optimizer={"lr": 5e-3}), answer=QUOTA, **stage)
    wait(trainer.begin())
    reused = 0
    for number in range(1, 5):
        before = world.engine("prm").copy(name="before")
        first = len(world.records)
        metrics = wait(trainer.step(number)).metrics
        records = world.records[first:]
        used = [record for record in records if not record.dropped]
        assert len(used) == metrics["groups/kept"] == 3
        for record in used:
            for score, expected in zip(process(record), expected_rewards(record, before, other, 0.5), strict=True):
                assert np.allclose(score.token_values, expected, atol=1e-4)
        for record in records:
            if record.dropped:  # surplus too has no score of the model yet
                assert not any(score.ok for score in process(record))
        old = [record for record in used if record.scored.group.policy_version < number - 1]
        assert len(old) == metrics.get("groups/reused", 0)
        reused += len(old)
        earlier = {r.scored.group.prompt.id: r for r in world.records[:first] if r.dropped == "surplus"}
        for record in old:
            assert record.scored.group == earlier[record.scored.group.prompt.id].scored.group
    assert reused >= 2


def test_surplus_is_measured_against_the_policy_that_wrote_it(tmp_path: Path) -> None:
    """Where the policy is the reference and its log-probabilities are known exactly, they are those of that time."""
    world = ProcessWorld(tmp_path)
    select = {"oversample": 2.0, "staleness": 1}
    trainer = policy(
        world, implicit(reference="policy", normalise="none", beta=1.0), select=select, optimizer={"lr": 1e-2}
    )
    steps(trainer, 1)
    before = world.engine("prm").copy(name="before")
    wait(trainer.step(2))
    old = [r for r in world.records if r.step == 2 and not r.dropped and r.scored.group.policy_version == 0]
    assert old
    for record in old:
        rows = [Row(before.encode(record.scored.group.prompt), r.tokens) for r in record.scored.group.rollouts]
        for row, rollout, score in zip(
            before.logprobs(rows), record.scored.group.rollouts, process(record), strict=True
        ):
            assert np.allclose(score.token_values, row[: len(rollout.tokens)].numpy() - rollout.logprobs, atol=1e-4)


def test_too_few_groups_are_not_learned_from_and_not_scored(tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path)
    start = world.engine("prm").digest()
    stage = {"rollouts_per_prompt": 5, "prompts_per_step": 4, "select": BOUNDS | {"min_groups": 4}}
    (metrics,) = steps(policy(world, implicit(**STRANGE), answer=QUOTA, **stage), 1)
    assert 0 < metrics["groups/too_few"] < 4
    assert metrics["groups/kept"] == 0
    assert not any(name.startswith("learned/") for name in metrics)
    assert not any(score.ok for record in world.records for score in process(record))
    assert world.engine("prm").digest() == start


def test_steps_without_a_group_end_the_stage_that_trains_the_model_alone(tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path)
    trainer = alone(world, select={"lowest": 2.0, "patience": 2})
    wait(trainer.begin())
    wait(trainer.step(1))
    assert trainer.state()["idle"] == 1
    with pytest.raises(
        UserError, match=r"2 steps in a row found fewer than 1 groups to learn from \(last: 3 too_hard\)"
    ):
        wait(trainer.step(2))


class Mixed:
    """Prompts of 4 and of 14 tokens, the markers of who speaks included."""

    def prompts(self, seed: int) -> Iterator[Prompt]:
        for i in range(1000):
            yield Prompt(f"m{i}", [Message("user", "1?" if i % 2 else "1+2+3+4+5+6?")], answer="")


def test_prompts_are_short_enough_for_all_who_read_them(tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path, sources={"train": Mixed()})
    world.engine("other").model.config.max_position_embeddings = 15  # the reference reads no more
    (metrics,) = steps(policy(world, implicit(**STRANGE), prompts_per_step=4), 1)
    assert metrics["groups/overlong_prompts"] == 4
    assert {len(world.engine("policy").encode(record.scored.group.prompt)) for record in world.records} == {4}
    world.engine("prm").model.config.max_position_embeddings = 6
    with pytest.raises(UserError, match=r"max_tokens = 6 leaves no room for a prompt: the model reads 6 tokens"):
        policy(world, implicit(**STRANGE))
