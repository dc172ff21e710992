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
from tests.trainers.process.process_cases import ProcessWorld, alone, implicit, policy
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
