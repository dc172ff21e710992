"""The example is the thin path through everything: it must learn, with every estimator and every loss."""

import copy
import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rewardsmith.algorithms.advantages import ADVANTAGES, values_from
from rewardsmith.algorithms.policy_losses import POLICY_LOSSES
from rewardsmith.data import Arithmetic
from rewardsmith.rewards import make_reward

pytestmark = pytest.mark.slow

_spec = importlib.util.spec_from_file_location("one_screen", Path(__file__).parents[1] / "examples" / "one_screen.py")
one_screen = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(one_screen)


@pytest.fixture(scope="module")
def start() -> Iterator[SimpleNamespace]:
    """A policy that has imitated sloppy sums, and how often it is right."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    world = Arithmetic(operations=1, held_out=0.0, forgets_carry=0.7, slips=0.4)
    reward, policy = make_reward({"type": "rule", "rule": "arithmetic"}), one_screen.Policy()
    one_screen.cold_start(policy, world, steps=150)
    test = list(itertools.islice(world.prompts(seed=99), 256))
    yield SimpleNamespace(
        world=world, reward=reward, policy=policy, test=test, accuracy=one_screen.accuracy(policy, reward, test)
    )
    torch.set_num_threads(threads)


CASES = [(name, "clip") for name in sorted(ADVANTAGES) if not values_from(ADVANTAGES[name])]
CASES += [("grpo", name) for name in sorted(set(POLICY_LOSSES) - {"clip"})]


@pytest.mark.parametrize(("advantage", "loss"), CASES)
def test_a_policy_learns_from_a_rule(start: SimpleNamespace, advantage: str, loss: str) -> None:
    torch.manual_seed(1)
    policy = copy.deepcopy(start.policy)
    list(one_screen.reinforce(policy, start.world, start.reward, advantage=advantage, loss=loss, steps=40))
    assert one_screen.accuracy(policy, start.reward, start.test) > start.accuracy + 0.1
