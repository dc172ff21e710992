"""A judge as the policy that learns: the reasons for which its verdicts are not read arrive in the metrics."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewardsmith import Message, Prompt, Rollout, RolloutGroup
from rewardsmith.rewards import make_reward
from rewardsmith.rewards.base import score
from rewardsmith.text.rankings import write_ranking
from rewardsmith.trainers.evaluate.evaluate_policy import part_measures
from rewardsmith.trainers.metrics import reward_metrics
from rewardsmith.trainers.policy import PolicyTrainer
from tests.trainers.world import World, policy_stage, steps


class Judged:
    """Prompts for a judge, with the truth as answer."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def prompts(self, seed: int) -> Iterator[Prompt]:
        for i in itertools.count():
            yield Prompt(f"p{i}", [Message("user", f"Judge {i}.")], answer=self._answer)


@pytest.mark.parametrize(
    ("reward", "answer", "labels"),
    [
        ("grade_accuracy", "0.7", {"truncated", "no-marker"}),
        ("ranking_accuracy", json.dumps({"A": 8, "B": 3}), {"truncated", "too-few-lines"}),
    ],
)
def test_an_untrained_judge_says_why_nothing_was_read(
    reward: str, answer: str, labels: set[str], tmp_path: Path
) -> None:
    sources = {"train": Judged(answer), "held_out": Judged(answer)}
    stage = policy_stage(reward=reward, validation={"data": "held_out", "every": 1, "prompts": 2})
    world = World(tmp_path, sources=sources)
    for metrics in steps(PolicyTrainer(stage, world), 2):
        for prefix in ("", "validation/"):
            found = {name: share for name, share in metrics.items() if name.startswith(f"{prefix}labels/reward/")}
            assert {name.rpartition("/")[2] for name in found} <= labels
            assert sum(found.values()) == pytest.approx(1.0)
            assert metrics[f"{prefix}reward/readable"] == 0.0
        assert (metrics["reward/mean"], metrics["reward/failed"]) == (0.0, 0.0)
    kept = [scored for record in world.records for scored in record.scored.scores]
    assert all(one.label and one.feedback.startswith("not parsed") for one in kept)


def test_labels_are_shares_of_all_rollouts() -> None:
    prompt = Prompt("p", [Message("user", "?")], answer={"A": 8, "B": 3})
    texts = [write_ranking({"A": 8, "B": 3}, "So."), write_ranking({"A": 3, "B": 80}, "So."), "?", "!"]
    group = RolloutGroup(prompt, [Rollout(text) for text in texts])
    scored = [asyncio.run(score(make_reward("ranking_accuracy"), group))]
    for metrics in (reward_metrics(scored, 2.0), part_measures(scored)):
        assert metrics["labels/reward/score-out-of-range"] == 0.25
        assert metrics["labels/reward/too-few-lines"] == 0.5
        assert metrics["reward/readable"] == 0.25
        assert metrics["reward/order"] == 0.25
    within = {"type": "sum", "parts": {"rank": {"type": "ranking_accuracy"}}}
    scored = [asyncio.run(score(make_reward(within), group))]
    assert part_measures(scored)["labels/rank/too-few-lines"] == 0.5
