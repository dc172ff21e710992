"""A GPU gives what a CPU gives. Runs where there is a GPU."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from rewardsmith.algorithms import implicit_rewards, policy_losses, preferences
from rewardsmith.algorithms.advantages import ADVANTAGES, RewardTensors, Stream, estimate_advantages
from rewardsmith.algorithms.policy_losses import POLICY_LOSSES, REDUCTIONS, importance_weights, reduce
from tests.algorithms.tensors import pairwise_loss

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

Inputs = dict[str, Tensor]


def inputs(dtype: torch.dtype, rows: int = 64, tokens: int = 100) -> Inputs:
    rng = torch.Generator().manual_seed(0)
    mask_BT = torch.arange(tokens) < torch.randint(0, tokens + 1, (rows, 1), generator=rng)
    names = ("rewards", "values", "logprobs", "old")
    normal = {name: torch.randn(rows, tokens, generator=rng, dtype=dtype) for name in names}
    return normal | {
        "mask": mask_BT,
        "gaps": mask_BT & (torch.arange(tokens) != 5),
        "support": mask_BT & (torch.rand(rows, tokens, generator=rng) < 0.4),
        "groups": torch.randint(0, 12, (rows,), generator=rng),
        "outcomes": torch.randint(0, 2, (rows,), generator=rng).to(dtype),
        "steps": torch.randint(0, 5, (rows, tokens), generator=rng).sort(-1)[0],
    }


def loss_gradient(x: Inputs, loss: Callable, weights: Callable) -> Tensor:
    logprobs_BT = x["logprobs"].clone().requires_grad_()
    losses_BT, _ = loss(logprobs_BT, x["old"], x["values"], x["mask"])
    reduce(losses_BT, weights(x["mask"], x["rewards"].dtype)).backward()
    return logprobs_BT.grad


CASES: dict[str, Callable[[Inputs], Tensor]] = {
    "credit": lambda x: estimate_advantages(
        [Stream("a", x["rewards"], weight=0.5), Stream("b", x["values"])],
        x["mask"],
        x["groups"],
        estimator=ADVANTAGES["rloo"],
        combine="after",
        whiten=True,
    ),
    "kl": lambda x: policy_losses.kl_loss(x["logprobs"], x["old"], x["mask"], estimator="k3", unbiased=True),
    "importance": lambda x: importance_weights(x["logprobs"], x["old"], x["mask"], level="sequence"),
    "value loss": lambda x: policy_losses.value_loss(x["values"], x["rewards"], x["old"], x["mask"], clip=0.2)[0],
    "cross-entropy": lambda x: implicit_rewards.outcome_cross_entropy(x["rewards"], x["mask"], x["outcomes"]),
    "pairwise": lambda x: pairwise_loss(x["rewards"], x["mask"], x["outcomes"], x["groups"]),
    "best of n": lambda x: pairwise_loss(
        x["rewards"], x["mask"], x["outcomes"], x["groups"], weighting="best-of-n-outcome"
    ),
    "offsets": lambda x: implicit_rewards.group_offsets(x["outcomes"], x["mask"][:, 3], x["groups"]),
    "values before": lambda x: implicit_rewards.values_before(x["rewards"], x["gaps"]),
    "Bradley-Terry": lambda x: preferences.bradley_terry(
        x["rewards"][:, 0], x["rewards"][:, 1], margin_N=x["outcomes"], tied_N=x["mask"][:, 9], tie_width=0.3
    ),
    "Plackett-Luce": lambda x: preferences.plackett_luce(x["rewards"], x["steps"], x["mask"]),
}
for _name, _estimator in ADVANTAGES.items():
    for _mask, _support in (("mask", None), ("mask", "support"), ("gaps", None)):
        CASES[f"{_name} {_mask} {_support}"] = lambda x, f=_estimator, m=_mask, s=_support: f(
            RewardTensors(x["rewards"], x[m], x["groups"], x["values"], s and x[s]), discount=0.9
        )
for _name, _loss in POLICY_LOSSES.items():
    for _reduction, _weights in REDUCTIONS.items():
        _bound = partial(_weights, length=7) if _reduction == "constant-length" else _weights
        CASES[f"{_name} {_reduction}"] = lambda x, f=_loss, w=_bound: loss_gradient(x, f, w)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-4)])
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_gives_what_a_cpu_gives(name: str, dtype: torch.dtype, tolerance: float) -> None:
    on_cpu = inputs(dtype)
    expected, actual = CASES[name](on_cpu), CASES[name]({key: value.cuda() for key, value in on_cpu.items()})
    assert actual.is_cuda
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance)


def test_rewards_are_summed_in_full_precision_also_where_products_may_be_coarse() -> None:
    x = inputs(torch.float32)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        actual_BT = ADVANTAGES["reinforce"](
            RewardTensors(x["rewards"].cuda(), x["mask"].cuda(), x["groups"].cuda()), discount=0.99
        )
    finally:
        torch.set_float32_matmul_precision(precision)
    expected_BT = ADVANTAGES["reinforce"](RewardTensors(x["rewards"].double(), x["mask"], x["groups"]), discount=0.99)
    torch.testing.assert_close(actual_BT.cpu().double(), expected_BT, rtol=1e-6, atol=1e-5)
