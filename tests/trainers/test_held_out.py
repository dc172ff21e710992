"""What every stage measures on is chosen by the data alone, not by the seed of the run or the name of the stage."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.data import Arithmetic
from rewardsmith.errors import UserError
from rewardsmith.trainers.evaluate.evaluate_reward import EvaluateReward
from rewardsmith.trainers.reward_model import RewardModelTrainer
from rewardsmith.trainers.sft import SftTrainer
from rewardsmith.trainers.trainer import held_out
from tests.trainers.compared import Letters, reward_model_stage
from tests.trainers.process.process_cases import ProcessWorld, alone, implicit
from tests.trainers.world import World, sft_stage, wait

HELD_OUT = {"data": "held_out"}


def sft(folder: Path, seed: int, name: str, source: Any) -> None:
    validation = HELD_OUT | {"demonstrations": 3}
    wait(SftTrainer(sft_stage(name=name, validation=validation), World(folder, seed=seed, sources=source)).begin())


def reward_model(folder: Path, seed: int, name: str, source: Any) -> None:
    stage = reward_model_stage(name=name, validation=HELD_OUT | {"items": 3})
    wait(RewardModelTrainer(stage, World(folder, seed=seed, sources={"train": Letters()} | source)).begin())


def process_model(folder: Path, seed: int, name: str, source: Any) -> None:
    validation = HELD_OUT | {"prompts": 3, "rollouts_per_prompt": 2}
    wait(alone(ProcessWorld(folder, seed=seed, sources=source), implicit(), name=name, validation=validation).begin())


def evaluate_reward(folder: Path, seed: int, name: str, source: Any) -> None:
    reward = "tests.trainers.world:Digits"
    stage = EvaluateReward(name=name, kind="rankings", data="held_out", items=3, reward=reward)
    wait(stage.run(World(folder, seed=seed, sources=source)))


@pytest.mark.parametrize(
    ("measure", "world", "of"),
    [
        (sft, Arithmetic, "demonstrations"),
        (reward_model, Letters, "preferences"),
        (process_model, Arithmetic, "prompts"),
        (evaluate_reward, Letters, "rankings"),
    ],
)
def test_two_seeds_and_two_stage_names_are_measured_on_the_same_items(
    measure: Callable[..., None], world: type, of: str, tmp_path: Path
) -> None:
    found = []
    for seed, name in ((0, "one"), (1, "one"), (0, "other")):
        source, taken = world(), []
        read = getattr(source, of)

        def recorded(order: int, read: Any = read, taken: list[Any] = taken) -> Iterator[Any]:
            for item in read(order):
                taken.append(item)
                yield item

        setattr(source, of, recorded)
        measure(tmp_path / f"{seed}{name}", seed, name, {"held_out": source})
        found.append([repr(item) for item in taken])
    assert len(found[0]) >= 3
    assert found[0] == found[1] == found[2]


def test_nothing_to_measure_on_is_said_as_such() -> None:
    with pytest.raises(UserError, match=r"data\.held_out is empty"):
        held_out(lambda seed: iter(()), 3, "held_out")
