"""A user's own estimator, loss or reduction that goes wrong is named, with what it did and what is expected of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rewardsmith.algorithms.advantages import RewardTensors
from rewardsmith.errors import UserError
from rewardsmith.trainers.policy import PolicyTrainer
from rewardsmith.trainers.reward_model import RewardModelTrainer
from tests.trainers.compared import THREE, reward_model_stage, world
from tests.trainers.world import World, policy_stage, steps

HERE = "tests.trainers.test_user_functions"

# ---- advantages ------------------------------------------------------------------------------------------------------


def per_row(inputs: RewardTensors) -> Tensor:
    return inputs.rewards_BT.sum(-1)


def nothing(inputs: RewardTensors) -> None:
    return None


def not_a_number(inputs: RewardTensors) -> Any:
    return inputs.rewards_BT * torch.nan


def raising(inputs: RewardTensors) -> Tensor:
    raise KeyError("no such row")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("per_row", ["[4]", "[4, 8]"]),
        ("nothing", ["NoneType", "[4, 8]"]),
        ("not_a_number", ["nan", "finite"]),
        ("raising", ["KeyError", "no such row", "test_user_functions.py:"]),
    ],
)
def test_an_advantage_that_goes_wrong_is_named(name: str, words: list[str], tmp_path: Path) -> None:
    stage = policy_stage(advantage=f"{HERE}:{name}", prompts_per_step=2, rollouts_per_prompt=2)
    with pytest.raises(UserError) as caught:
        steps(PolicyTrainer(stage, World(tmp_path)), 1)
    for word in ["advantage", f"{HERE}:{name}", *words]:
        assert word in str(caught.value)


# ---- losses and reductions -------------------------------------------------------------------------------------------


def without_statistics(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Any:
    return -logprobs * advantages


def a_number_as_statistic(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Any:
    return -logprobs * advantages, {"share": 0.5}


def without_gradient(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Any:
    return (-logprobs * advantages).detach(), {}


def nan_loss(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Any:
    return -logprobs * advantages * torch.nan, {}


def total(mask_BT: Tensor, dtype: torch.dtype) -> Tensor:
    return mask_BT.sum().to(dtype)


@pytest.mark.parametrize(
    ("what", "name", "words"),
    [
        ("loss", "without_statistics", ["Tensor", "losses, statistics"]),
        ("loss", "a_number_as_statistic", ["share", "float"]),
        ("loss", "without_gradient", ["gradient"]),
        ("loss", "nan_loss", ["nan", "finite"]),
        ("reduction", "total", ["[]", "[16, 8]"]),
    ],
)
def test_a_loss_or_reduction_that_goes_wrong_is_named(what: str, name: str, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        steps(PolicyTrainer(policy_stage(**{what: f"{HERE}:{name}"}), World(tmp_path)), 1)
    for word in [what, f"{HERE}:{name}", *words]:
        assert word in str(caught.value)


# ---- losses of reward models -----------------------------------------------------------------------------------------


def per_answer(rewards: Tensor, levels: Tensor, quality: Tensor, mask: Tensor) -> Tensor:
    return -rewards


def no_loss(rewards: Tensor, levels: Tensor, quality: Tensor, mask: Tensor) -> Tensor:
    raise ZeroDivisionError("nothing to divide")


@pytest.mark.parametrize(
    ("name", "words"), [("per_answer", ["[3, 2]", "[3]"]), ("no_loss", ["ZeroDivisionError: nothing to divide"])]
)
def test_a_preference_loss_that_goes_wrong_is_named(name: str, words: list[str], tmp_path: Path) -> None:
    stage = reward_model_stage(batch_size=3, loss=f"{HERE}:{name}")
    with pytest.raises(UserError) as caught:
        steps(RewardModelTrainer(stage, world(tmp_path, *THREE)), 1)
    for word in ["loss", f"{HERE}:{name}", *words]:
        assert word in str(caught.value)
