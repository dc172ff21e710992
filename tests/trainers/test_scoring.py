"""Writing and waiting for rewards are told apart."""

import asyncio
from pathlib import Path

import pytest

from rewardsmith.engines.protocol import Sampling
from rewardsmith.trainers.collect import generate_and_score
from rewardsmith.trainers.policy import PolicyTrainer
from rewardsmith.types import RolloutGroup, Score
from tests.trainers.world import World, new_engine, policy_stage, prompt, steps, wait


class AfterWriting:
    """Scores nothing before the last token is written."""

    def __init__(self) -> None:
        self.written = asyncio.Event()
        self.scored = 0

    async def score(self, group: RolloutGroup) -> list[Score]:
        async with asyncio.timeout(60):
            await self.written.wait()
        self.scored += 1
        return [Score(1.0)] * len(group.rollouts)


def test_writing_ends_with_the_last_token_and_not_with_the_last_reward() -> None:
    reward, laps = AfterWriting(), []

    def lap(name: str) -> None:
        laps.append((name, reward.scored))
        if name == "write":
            reward.written.set()

    prompts = [prompt(i) for i in range(3)]
    found = wait(generate_and_score(new_engine(), reward, prompts, Sampling(max_tokens=2), n=2, seeds=[0] * 3, lap=lap))
    assert all(score.ok for group in found for score in group.scores)
    assert laps == [("wait", 0), ("write", 0), ("wait", 3)]


@pytest.mark.parametrize(("needed", "ends"), [(False, False), (False, True), (True, False)])
def test_rollouts_say_where_their_tokens_end_if_somebody_must_know(needed: bool, ends: bool) -> None:
    class Looking:
        reads_ends = needed

        async def score(self, group: RolloutGroup) -> list[Score]:
            return [Score(float(rollout.ends is not None)) for rollout in group.rollouts]

    found = wait(
        generate_and_score(new_engine(), Looking(), [prompt(0)], Sampling(max_tokens=2), n=2, seeds=[0], ends=ends)
    )
    assert [score.value for score in found[0].scores] == [float(needed or ends)] * 2


# ---- how far a step is -----------------------------------------------------------------------------------------------


def phases(world: World) -> list[str]:
    return list(dict.fromkeys(phase for phase, _, _, _ in world.reported))


def test_a_step_reports_how_far_writing_scoring_and_learning_are(tmp_path: Path) -> None:
    validation = {"data": "held_out", "every": 1, "prompts": 2, "rollouts_per_prompt": 2}
    world = World(tmp_path)
    engine = world.engine("policy")
    engine._token_budget = 30  # several micro-batches
    stage = policy_stage(validation=validation, epochs=2, mini_batches=2, entropy=0.01)
    (metrics,) = steps(PolicyTrainer(stage, world), 1)
    assert phases(world)[:2] == ["validation: writing rollouts", "validation: scoring groups"]
    assert {"writing rollouts", "scoring groups", "learning rollouts"} <= set(phases(world))
    writing = [(done, total, tokens) for phase, done, total, tokens in world.reported if phase == "writing rollouts"]
    assert writing[-1][:2] == (16, 16)
    assert writing == sorted(writing)
    assert metrics["tokens/sampled"] <= writing[-1][2] <= 16 * 8
    learning = [(done, total) for phase, done, total, _ in world.reported if phase == "learning rollouts"]
    assert len(learning) > 4  # more than one to an update
    assert learning == sorted(learning)
    assert learning[0] == (0, 2 * 16)
    assert learning[-1][0] < 2 * 16
