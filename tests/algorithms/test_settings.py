"""Defaults are part of the interface: a changed one changes every recipe that does not set it."""

import inspect
from typing import Any

import pytest
import torch

from rewardsmith.algorithms.advantages import ADVANTAGES, RewardTensors, grpo, process_value, rloo
from rewardsmith.algorithms.implicit_rewards import opponents
from rewardsmith.algorithms.policy_losses import (
    POLICY_LOSSES,
    REDUCTIONS,
    importance_weights,
    kl_estimate,
    kl_loss,
    kl_reward,
)
from rewardsmith.algorithms.preferences import PREFERENCE_LOSSES

REQUIRED = inspect.Parameter.empty

DEFAULTS: dict[str, dict[str, Any]] = {
    "gae": {"discount": 1.0, "lam": 1.0},
    "grpo": {"discount": 1.0, "scale": "group", "eps": 1e-6},
    "dr_grpo": {"discount": 1.0},
    "rloo": {"discount": 1.0, "leave_one_out": "exact"},
    "opo": {"discount": 1.0},
    "reinforce": {"discount": 1.0},
    "reinforce_plus_plus": {"discount": 1.0},
    "reinforce_plus_plus_baseline": {"discount": 1.0},
    "remax": {"discount": 1.0},
    "process_value": {"discount": 1.0, "link": "logit"},
    "clip loss": {"low": 0.2, "high": 0.2, "dual": None},
    "gspo loss": {"low": 3e-4, "high": 4e-4},
    "gmpo loss": {"low": 0.4, "high": 0.4},
    "cispo loss": {"low": 1.0, "high": 4.0},
    "reinforce loss": {},
    "bradley-terry loss": {"margin": False, "tie_width": 0.0, "smoothing": 0.0},
    "plackett-luce loss": {},
    "token-mean": {},
    "sequence-mean-token-mean": {},
    "sequence-mean-token-sum": {},
    "constant-length": {"length": REQUIRED},
    "kl_loss": {"estimator": "k2", "unbiased": False},
    "kl_reward": {"estimator": "k1"},
    "importance_weights": {"level": "token", "cap": 2.0, "floor": 0.0, "outside": "truncate"},
}

FUNCTIONS = {
    **ADVANTAGES,
    **{f"{name} loss": loss for name, loss in (POLICY_LOSSES | PREFERENCE_LOSSES).items()},
    **REDUCTIONS,
    "kl_loss": kl_loss,
    "kl_reward": kl_reward,
    "importance_weights": importance_weights,
}


def test_defaults() -> None:
    for name, function in FUNCTIONS.items():
        parameters = inspect.signature(function).parameters.values()
        found = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        assert found == DEFAULTS[name], name


ONE_BT, MASK_BT, GROUPS_B = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.long)
ONE, DENSE = RewardTensors(ONE_BT, MASK_BT, GROUPS_B, ONE_BT), RewardTensors(ONE_BT, MASK_BT, GROUPS_B, None, MASK_BT)


@pytest.mark.parametrize(
    ("function", "arguments", "option"),
    [
        (grpo, (ONE,), {"scale": "std"}),
        (rloo, (ONE,), {"leave_one_out": "exakt"}),
        (importance_weights, (ONE_BT, ONE_BT, MASK_BT), {"level": "seq"}),
        (importance_weights, (ONE_BT, ONE_BT, MASK_BT), {"outside": "mask"}),
        (kl_estimate, (ONE_BT, ONE_BT, MASK_BT), {"estimator": "k4"}),
        (process_value, (ONE,), {"link": "logistic"}),
        (opponents, (ONE_BT[0], ONE_BT[0], MASK_BT[0], GROUPS_B), {"weighting": "dpo"}),
        (grpo, (DENSE,), {"discount": 1.5}),
        (grpo, (DENSE,), {"discount": float("nan")}),
    ],
)
def test_a_misspelt_option_is_an_error_and_not_another_option(function, arguments, option) -> None:
    ((name, _),) = option.items()
    with pytest.raises(ValueError, match=rf"^{name} is "):
        inspect.unwrap(function)(*arguments, **option)
