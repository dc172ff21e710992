"""Times the mathematics beside verl's own functions, in one run on the same tensors.

    make bench            # or: python benchmarks/algorithms.py [--rows 4096] [--tokens 1024] [--device cuda]

Needs verl in the environment (`make bench` makes one). Prints the median time of each and the ratio verl / rewardsmith:
above 1 means that rewardsmith is faster. Both sides get what they need beforehand; only the function itself is timed.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from rewardsmith.algorithms import advantages, policy_losses
from rewardsmith.algorithms.policy_losses import importance_weights, value_loss

warnings.filterwarnings("ignore")
try:
    import verl
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
    from verl.workers.config import ActorConfig
except ImportError as missing:
    sys.exit(f"this benchmark compares with verl, which cannot be imported ({missing}): run `make bench`")


@dataclass(frozen=True)
class Case:
    """One function of each side; `looped` marks those that verl writes as Python loops over rows or groups."""

    name: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    looped: bool = False


@dataclass(frozen=True)
class Inputs:
    """A ragged batch: rewards on the last token, groups of 8."""

    rewards_BT: Tensor
    mask_BT: Tensor
    groups_B: Tensor
    values_BT: Tensor
    logprobs_BT: Tensor
    old_BT: Tensor
    advantages_BT: Tensor

    @classmethod
    def random(cls, rows: int, tokens: int, device: str) -> Inputs:
        """Draw a batch, the same one for the same size."""
        rng = torch.Generator().manual_seed(0)
        lengths_B1 = torch.randint(tokens // 4, tokens + 1, (rows, 1), generator=rng)
        position_T = torch.arange(tokens)
        mask_BT = position_T < lengths_B1
        outcome_B1 = torch.randint(0, 2, (rows, 1), generator=rng).float()
        old_BT = -torch.rand(rows, tokens, generator=rng)
        tensors = (
            torch.where(position_T == lengths_B1 - 1, outcome_B1, 0.0),
            mask_BT,
            torch.arange(rows) // 8,
            torch.randn(rows, tokens, generator=rng),
            old_BT + 0.1 * torch.randn(rows, tokens, generator=rng),
            old_BT,
            torch.randn(rows, tokens, generator=rng) * mask_BT,
        )
        return cls(*(t.to(device) for t in tensors))


def advantage_cases(x: Inputs) -> list[Case]:
    """Pair each estimator with verl's."""
    mask = x.mask_BT.float()
    index = x.groups_B.cpu().numpy().astype(object)  # verl's uids are strings in an object array
    config = AlgoConfig(gamma=0.99)
    greedy_B = x.values_BT[:, 0]
    greedy_BT = greedy_B[:, None].expand_as(x.values_BT)

    def outcome(name: str, theirs: Callable[..., Any], *, looped: bool = True, **settings: Any) -> Case:
        ours = partial(advantages.ADVANTAGES[name], **settings)
        return Case(
            f"{name} {settings or ''}".strip(),
            lambda: ours(advantages.RewardTensors(x.rewards_BT, x.mask_BT, x.groups_B)),
            lambda: theirs(token_level_rewards=x.rewards_BT, response_mask=mask, index=index),
            looped,
        )

    grpo = core_algos.compute_grpo_outcome_advantage
    return [
        outcome("grpo", grpo),
        outcome("grpo", partial(grpo, norm_adv_by_std_in_grpo=False), scale="none"),
        outcome("rloo", core_algos.compute_rloo_outcome_advantage),
        outcome("opo", core_algos.compute_opo_outcome_advantage),
        outcome("reinforce_plus_plus_baseline", core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage),
        outcome("grpo", core_algos.compute_grpo_vectorized_outcome_advantage, looped=False),
        outcome("rloo", core_algos.compute_rloo_vectorized_outcome_advantage, looped=False),
        Case(
            "gae γ=.99 λ=.95",
            lambda: advantages.gae(
                advantages.RewardTensors(x.rewards_BT, x.mask_BT, x.groups_B, x.values_BT), discount=0.99, lam=0.95
            ),
            lambda: core_algos.compute_gae_advantage_return(x.rewards_BT, x.values_BT, mask, 0.99, 0.95),
        ),
        Case(
            "reinforce_plus_plus γ=.99",
            lambda: advantages.reinforce_plus_plus(
                advantages.RewardTensors(x.rewards_BT, x.mask_BT, x.groups_B), discount=0.99
            ),
            lambda: core_algos.compute_reinforce_plus_plus_outcome_advantage(x.rewards_BT, mask, config=config),
        ),
        Case(
            "remax",
            lambda: advantages.remax(advantages.RewardTensors(x.rewards_BT, x.mask_BT, x.groups_B, greedy_BT)),
            lambda: core_algos.compute_remax_outcome_advantage(x.rewards_BT, greedy_B, mask),
        ),
    ]


def loss_cases(x: Inputs) -> list[Case]:
    """Pair each loss, with its backward pass, with verl's."""
    mask = x.mask_BT.float()
    actor = ActorConfig(
        strategy="fsdp", rollout_n=8, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=0.2, clip_ratio_high=0.28
    )

    def backward(loss: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            logprobs_BT = x.logprobs_BT.clone().requires_grad_()
            loss(logprobs_BT).backward()  # type: ignore[no-untyped-call]

        return run

    def policy(name: str, peer: str, reduction: str, peer_mode: str, **settings: float) -> Case:
        ours, theirs = policy_losses.POLICY_LOSSES[name], core_algos.get_policy_loss_fn(peer)
        weights = policy_losses.REDUCTIONS[reduction]
        return Case(
            f"{name} loss + backward",
            backward(
                lambda logprobs_BT: policy_losses.reduce(
                    ours(logprobs_BT, x.old_BT, x.advantages_BT, x.mask_BT, **settings)[0], weights(x.mask_BT)
                )
            ),
            backward(
                lambda logprobs_BT: theirs(
                    x.old_BT, logprobs_BT, x.advantages_BT, mask, loss_agg_mode=peer_mode, config=actor
                )[0]
            ),
        )

    bounds = {"low": 0.2, "high": 0.28}
    return [
        policy("clip", "vanilla", "token-mean", "token-mean", dual=3.0, **bounds),
        policy("gspo", "gspo", "sequence-mean-token-mean", "seq-mean-token-mean", **bounds),
        policy("gmpo", "geo_mean", "sequence-mean-token-mean", "seq-mean-token-mean", **bounds),
        policy("cispo", "cispo", "token-mean", "token-mean", **bounds),
        Case(
            "k3 KL + backward",
            backward(lambda logprobs_BT: policy_losses.kl_loss(logprobs_BT, x.old_BT, x.mask_BT, estimator="k3").sum()),
            backward(lambda logprobs_BT: (core_algos.kl_penalty(logprobs_BT, x.old_BT, "k3") * mask).sum()),
        ),
        Case(
            "value loss + backward",
            backward(lambda v: value_loss(v, x.values_BT, x.old_BT, x.mask_BT, clip=0.2)[0].sum()),
            backward(lambda v: core_algos.compute_value_loss(v, x.old_BT, x.values_BT, mask, 0.2)[0]),
        ),
        Case(
            "importance weights",
            lambda: importance_weights(x.logprobs_BT, x.old_BT, x.mask_BT),
            lambda: compute_rollout_correction_weights(x.logprobs_BT - x.old_BT, mask),
        ),
    ]


def median_seconds(
    functions: tuple[Callable[[], Any], ...], device: str, *, least: int = 5, seconds: float = 3.0
) -> tuple[float, ...]:
    """Return the median time of a call of each: taken in turns, so that both meet the same state of the machine."""

    def once(function: Callable[[], Any]) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    rounds = [[once(f) for f in functions] for _ in range(2)][1:]  # the first is a warm-up
    started = time.perf_counter()
    while len(rounds) < least or (time.perf_counter() - started < seconds and len(rounds) < 100):
        rounds.append([once(f) for f in functions])
    return tuple(statistics.median(times) for times in zip(*rounds, strict=True))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    given = parser.parse_args()
    x = Inputs.random(given.rows, given.tokens, given.device)
    where = torch.cuda.get_device_name() if given.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    table = Table(
        title=f"{given.rows} x {given.tokens} float32, {where}, torch {torch.__version__}, verl {verl.__version__},"
        f" Python {platform.python_version()}",
        title_justify="left",
    )
    table.add_column("function")
    for heading in ("verl ms", "rewardsmith ms", "verl / rewardsmith"):
        table.add_column(heading, justify="right")
    table.add_column("verl's form")
    for case in advantage_cases(x) + loss_cases(x):
        theirs, ours = median_seconds((case.theirs, case.ours), given.device)
        form = "loop over rows and groups" if case.looped else ""
        table.add_row(case.name, f"{theirs * 1e3:.1f}", f"{ours * 1e3:.1f}", f"{theirs / ours:.1f}x", form)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
