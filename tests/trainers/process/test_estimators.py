"""Every estimator of the advantage, with every way in which a process reward model learns: steps of a real stage."""

import math
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch

from rewardsmith.algorithms.advantages import ADVANTAGES, compares, values_from
from rewardsmith.engines.protocol import Row
from rewardsmith.types import ScoredGroup
from tests.trainers.process.process_cases import ProcessWorld, implicit, policy
from tests.trainers.world import distance, new_engine, steps, weights

UPDATES = ("none", "before", "after", "reverse")
SMALL: dict[str, Any] = {"prompts_per_step": 2, "rollouts_per_prompt": 3, "sampling": {"max_tokens": 4}}
LORA = {"init": "tiny-llama", "lora": {"rank": 4}}


def places(name: str) -> list[str]:
    """Return where the parts of the reward may be summed with this estimator."""
    estimator = ADVANTAGES[name]
    if values_from(estimator):
        return ["before"]
    return ["after"] if compares(estimator) else ["before", "after"]


CASES = [(name, combine) for name in ADVANTAGES for combine in places(name)]


def stage_of(name: str, combine: str) -> dict[str, Any]:
    critic = {"critic": {"model": "critic", "optimizer": {"lr": 1e-3}}} if name == "gae" else {}
    return {"advantage": {"type": name, "combine": combine}, **critic}


@pytest.mark.parametrize(
    ("name", "combine", "update"),
    [
        *((name, combine, UPDATES[i % len(UPDATES)]) for i, (name, combine) in enumerate(CASES)),
        *(("rloo", "after", update) for update in UPDATES),
    ],
)
def test_two_steps(name: str, combine: str, update: str, tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path)
    scale = "none" if values_from(ADVANTAGES[name]) == "process" else "batch"
    process = implicit(update=update, reference_model="other", normalise=scale, learn={"mini_batch": 4})
    metrics = steps(policy(world, process, **SMALL | stage_of(name, combine)), 2)
    assert all(math.isfinite(value) for m in metrics for value in m.values())
    assert all(m["policy/grad_norm"] > 0 and m["streams/process/reward_high"] != 0 for m in metrics)
    start = weights(new_engine())
    assert distance(weights(world.engine("policy")), start) > 0
    moved = distance(weights(world.engine("prm")), start)
    assert (moved > 0) == (update != "none")
    assert all(("learned/process/loss" in m) == (update != "none") for m in metrics)
    assert all(len(record.advantages) == 3 and None not in record.advantages for record in world.records)


# ---- what comes of the rewards ---------------------------------------------------------------------------------------


def returns(values: np.ndarray, discount: float) -> list[float]:
    """Return the discounted sum from each token on."""
    found = [0.0]
    for value in values[::-1]:
        found.append(float(value) + discount * found[-1])
    return found[:0:-1]


def rloo(scored: ScoredGroup) -> list[float]:
    """Equation 5 of the paper, with weights 2 and 3 and discounts 0.9 and 1: the mean over each rollout's tokens."""
    outcomes = [score.parts["answer"].value for score in scored.scores]
    tokens = [np.asarray(score.parts["process"].token_values, dtype=np.float64) for score in scored.scores]
    found = []
    for i, own in enumerate(tokens):
        others = [j for j in range(len(tokens)) if j != i]
        outcome = outcomes[i] - mean(outcomes[j] for j in others)  # type: ignore[operator, type-var]
        process = returns(own - mean(float(tokens[j].mean()) for j in others), 0.9)
        found.append(mean(2 * outcome + 3 * r for r in process))
    return found


def reinforce(scored: ScoredGroup) -> list[float]:
    """The return of everything, no baseline, one discount."""
    found = []
    for score in scored.scores:
        values = 3 * np.asarray(score.parts["process"].token_values, dtype=np.float64)
        values[-1] += 2 * score.parts["answer"].value
        found.append(mean(returns(values, 1.0)))
    return found


def process_value(scored: ScoredGroup) -> list[float]:
    """The outcome, less what the process rewards before each token add up to."""
    found = []
    for score in scored.scores:
        values = np.asarray(score.parts["process"].token_values, dtype=np.float64)
        before = np.cumsum(values) - values
        found.append(mean(2 * score.parts["answer"].value - 3 * v for v in before))
    return found


@pytest.mark.parametrize(
    ("by_hand", "combine", "granularity"),
    [
        (rloo, "after", "token"),
        (reinforce, "before", "token"),
        (reinforce, "before", "whole"),
        (process_value, "before", "token"),
    ],
)
def test_the_advantages_are_what_the_equations_say(
    by_hand: Callable[[ScoredGroup], list[float]], combine: str, granularity: str, tmp_path: Path
) -> None:
    world = ProcessWorld(tmp_path)
    scale = "none" if by_hand is process_value else "batch"
    process = implicit(reference_model="other", weight=3.0, granularity=granularity, normalise=scale)
    process |= {"discount": 0.9} if combine == "after" else {}
    answer = {"type": "tests.trainers.process.process_cases:Share", "weight": 2.0}
    advantage = {"type": by_hand.__name__, "combine": combine}
    steps(policy(world, process, answer=answer, advantage=advantage), 2)
    found = [a for record in world.records for a in record.advantages]
    expected = [a for record in world.records for a in by_hand(record.scored)]
    assert found == pytest.approx(expected, abs=2e-5)
    assert np.std(expected) > 0.1


# ---- kinds of models -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["before", "after"])
def test_adapters_of_policy_and_process_model(update: str, tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path, {"policy": LORA, "prm": LORA})
    metrics = steps(policy(world, implicit(update=update, reference="adapter-off"), kl={"coefficient": 0.1}), 2)
    assert all(math.isfinite(value) for m in metrics for value in m.values())
    for name in ("policy", "prm"):
        moved = {n: bool(p.any()) for n, p in world.engine(name).model.named_parameters() if ".lora_B." in n}
        assert all(moved.values())
        row = [Row(np.array([5, 6, 7], np.int32), np.array([20, 30], np.int32))]
        assert torch.allclose(world.engine(name).reference_logprobs(row), new_engine().logprobs(row), atol=1e-5)


def test_two_process_rewards_learn_side_by_side(tmp_path: Path) -> None:
    world = ProcessWorld(tmp_path, {"second": {"copy_of": "policy"}})
    parts = {
        "answer": "tests.trainers.process.process_cases:AnyDigit",
        "share": {"type": "tests.trainers.process.process_cases:Share", "weight": 0.0, "watch": True},
        "process": implicit(outcome="answer"),
        "finer": implicit(outcome="share", model="second", update="before", granularity="whole", weight=0.5),
    }
    metrics = steps(policy(world, reward={"type": "sum", "parts": parts}), 2)
    assert all(m[f"learned/{part}/loss"] > 0 for m in metrics for part in ("process", "finer"))
    assert distance(weights(world.engine("prm")), weights(world.engine("second"))) > 0
    one = ProcessWorld(tmp_path)
    steps(policy(one, implicit(outcome="answer")), 1)
    both = {r.scored.group.prompt.id: r.scored for r in world.records if r.step == 1}
    for record in one.records:  # what one learns does not depend on the other
        for a, b in zip(record.scored.scores, both[record.scored.group.prompt.id].scores, strict=True):
            assert a.parts["process"] == b.parts["process"]
