"""Draws without end and where they go on; learning rates; seeds; what is measured on."""

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardsmith.data import Arithmetic
from rewardsmith.errors import UserError
from rewardsmith.learning import OptimizerSettings, lr_factor
from rewardsmith.trainers.evaluate.evaluate_reward import EvaluateReward
from rewardsmith.trainers.reward_model import RewardModelTrainer
from rewardsmith.trainers.sft import SftTrainer
from rewardsmith.trainers.trainer import Draws, derive, held_out
from rewardsmith.types import Demonstration
from tests.trainers.compared import Letters, reward_model_stage
from tests.trainers.process.process_cases import ProcessWorld, alone, implicit
from tests.trainers.world import World, prompt, sft_stage, steps, wait


def shuffled(count: int) -> Draws[int]:
    def items(seed: int) -> Iterator[int]:
        return iter(random.Random(seed).sample(range(count), count))

    return Draws(items, 7, "train")


@given(count=st.integers(1, 6), sizes=st.lists(st.integers(0, 9), max_size=5))
def test_every_pass_has_every_item_once(count: int, sizes: list[int]) -> None:
    draws = shuffled(count)
    taken = [item for size in sizes for item in draws.take(size)]
    assert len(taken) == sum(sizes)
    for start in range(0, len(taken) - count + 1, count):
        assert sorted(taken[start : start + count]) == list(range(count))
    assert taken == shuffled(count).take(len(taken))  # the sizes do not matter


@given(count=st.integers(1, 6), before=st.integers(0, 20), after=st.integers(1, 8))
def test_a_restored_position_goes_on_with_the_next_item(count: int, before: int, after: int) -> None:
    draws, again = shuffled(count), shuffled(count)
    draws.take(before)
    again.restore(draws.state())
    assert again.take(after) == draws.take(after)


def test_a_source_that_has_shrunk_is_named() -> None:
    draws = shuffled(5)
    draws.take(4)
    with pytest.raises(UserError, match=r"data\.train has fewer than 4 items now: the data changed"):
        shuffled(3).restore(draws.state())


def test_an_empty_source_is_named() -> None:
    with pytest.raises(UserError, match=r"data\.train is empty"):
        shuffled(0).take(1)


@given(warmup=st.integers(0, 6), total=st.integers(1, 12), schedule=st.sampled_from(["constant", "linear", "cosine"]))
def test_no_step_is_lost_and_the_peak_is_reached(warmup: int, total: int, schedule: str) -> None:
    optimizer = OptimizerSettings(lr=0.5, warmup=warmup, schedule=schedule)  # type: ignore[arg-type]
    rates = [optimizer.rate(done, total) for done in range(total)]
    assert all(0 < rate <= 0.5 for rate in rates)
    assert rates[:warmup] == pytest.approx([0.5 * (i + 1) / warmup for i in range(min(warmup, total))])
    if total > warmup:
        assert rates[warmup] == pytest.approx(0.5)
        assert rates[warmup:] == sorted(rates[warmup:], reverse=True)


@given(share=st.integers(0, 99), total=st.integers(1, 400))
def test_a_warmup_below_one_is_a_share_of_the_steps_rounded_up(share: int, total: int) -> None:
    warm = -(-share * total // 100)  # in integers, which no rounding touches
    for schedule in ("constant", "cosine"):
        by_share, by_steps = (
            OptimizerSettings(lr=0.5, warmup=warmup, schedule=schedule)  # type: ignore[arg-type]
            for warmup in (share / 100, warm)
        )
        done = [0, warm // 2, warm, total - 1]
        assert [by_share.rate(d, total) for d in done] == [by_steps.rate(d, total) for d in done]


@pytest.mark.parametrize("warmup", [-1, 1.0, 2.5, -0.1, math.nan, True, "0.1"])
def test_a_warmup_that_is_neither_steps_nor_a_share_is_refused(warmup: Any) -> None:
    with pytest.raises(ValueError, match=r"an integer, or a share of all of them, such as 0\.1"):
        OptimizerSettings(lr=0.5, warmup=warmup)


def test_a_share_of_the_warmup_counts_the_steps_that_epochs_come_to(tmp_path: Path) -> None:
    optimizer = {"lr": 0.01, "warmup": 0.5}
    data = [Demonstration(prompt(i), "1") for i in range(8)]
    world = World(tmp_path, sources={"train": SimpleNamespace(demonstrations=lambda seed: iter(data))})  # type: ignore[dict-item]
    trainer = SftTrainer(sft_stage(steps=None, epochs=2, batch_size=4, optimizer=optimizer), world)
    assert [metrics["lr"] for metrics in steps(trainer, trainer.steps)] == pytest.approx([0.005, 0.01, 0.01, 0.01])


def test_seeds_are_apart() -> None:
    seeds = {derive(0), derive(1), derive(0, 1), derive(0, "1", 2), derive(0, "a"), derive(0, 1, 0), derive(0, 0, 1)}
    assert len(seeds) == 7
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("floor", [0.0, 0.2, 1.0])
def test_schedules_follow_their_formula(floor: float) -> None:
    for step in (0, 4, 10, 11, 35, 60, 109, 110, 500):
        progress = min(1, (step - 10) / 100)
        half_cosine = (1 + math.cos(math.pi * progress)) / 2
        expected = {"constant": 1, "linear": 1 - (1 - floor) * progress, "cosine": floor + (1 - floor) * half_cosine}
        for schedule, factor in expected.items():
            found = lr_factor(schedule, step, total=110, warmup=10, floor=floor)  # type: ignore[arg-type]
            assert found == pytest.approx(step / 10 if step < 10 else factor, abs=1e-12)


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


def test_an_empty_source_cannot_be_measured_on() -> None:
    with pytest.raises(UserError, match=r"data\.held_out is empty"):
        held_out(lambda seed: iter(()), 3, "held_out")
