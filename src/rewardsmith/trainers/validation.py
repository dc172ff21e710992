"""Measure a policy on prompts of its own, with sampling of its own: mean@n, best@n, pass@k."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import ClassVar

from pydantic import Field

from rewardsmith.algorithms.ranks import pass_at_k
from rewardsmith.config import Settings
from rewardsmith.engines.protocol import Engine
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import Reward
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.measure import measure
from rewardsmith.rewards.tree import reads_ends
from rewardsmith.trainers.evaluate.evaluate_policy import judge_group, reasoning_metrics, with_reasoning_check
from rewardsmith.trainers.held_out import Count
from rewardsmith.trainers.protocol import Report, derive, no_report
from rewardsmith.trainers.scoring import OnDevice, generate_and_score
from rewardsmith.trainers.settings import DataName, RewardChoice, SamplingSettings
from rewardsmith.types import Prompt, ScoredGroup


class ValidationSettings(Settings):
    """How a policy is measured while it learns: before the first step, every few steps, and after the last."""

    rare: ClassVar[frozenset[str]] = frozenset({"sampling", "reward", "reasoning_check", "reasoning_threshold"})

    data: DataName = Field(description="where the prompts come from; the same ones in every run and stage")
    every: int = Field(default=10, ge=1, description="steps between two validations")
    prompts: Count = Field(default=128, description="how many prompts; all takes every one of the data")
    rollouts_per_prompt: int = Field(default=1, ge=1, description="answers to each prompt: n of mean@n")
    sampling: SamplingSettings | None = Field(
        default=None, description="how answers are sampled; not set: as in training"
    )
    reward: RewardChoice | None = Field(default=None, description="what scores them; not set: as in training")
    reasoning_check: RewardChoice | None = Field(
        default=None, description="a reward for the reasoning of right answers: verified, verified@k, unsound"
    )
    reasoning_threshold: float = Field(default=1.0, description="a reasoning_check of at least this counts as sound")


async def validate(
    engine: Engine,
    reward: Reward,
    prompts: Sequence[Prompt],
    sampling: SamplingSettings,
    *,
    n: int,
    seed: int,
    version: int,
    correct_threshold: float,
    reasoning_check: Component | None = None,
    reasoning_threshold: float = 1.0,
    pause: Callable[[], None] = lambda: None,
    on_device: OnDevice = nullcontext,
    report: Report = no_report,
) -> tuple[dict[str, float], list[ScoredGroup]]:
    """Return metrics and the scored groups. The randomness is the same each time, so that changes are the policy's.

    With `reasoning_check`, a second reward, the scores of right answers have a part of that name.
    """
    total = len(prompts)
    prompts = [p for p in prompts if len(engine.encode(p)) <= engine.max_length - sampling.max_tokens]
    if not prompts:
        raise UserError(
            f"of {total} prompts to validate with, none leaves room for max_tokens = {sampling.max_tokens} in the"
            f" {engine.max_length} positions of the model"
        )
    seeds = [derive(seed, "validation", i) for i in range(len(prompts))]
    scored = await generate_and_score(
        engine,
        reward,
        prompts,
        sampling.sampling(),
        n=n,
        seeds=seeds,
        version=version,
        ends=reasoning_check is not None and reads_ends(reasoning_check),
        pause=pause,
        on_device=on_device,
        report=report,
    )
    threshold = correct_threshold if reasoning_check else correct_threshold_of(reward, correct_threshold)
    metrics = measures(scored, n=n, correct_threshold=threshold)
    if reasoning_check is not None:
        report("checking reasoning", 0, 0)
        scored = await with_reasoning_check(scored, reasoning_check, correct_threshold, pause)
        metrics |= reasoning_metrics([judge_group(group, correct_threshold, reasoning_threshold) for group in scored])
    dropped = {"overlong_prompts": float(total - len(prompts))} if len(prompts) < total else {}
    return metrics | dropped | part_measures(scored), scored


def part_measures(scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return the mean of each part of the reward, the share of failures by part and cause, and of labels."""
    metrics: dict[str, float] = {}
    for name, part in measure(scored).items():
        metrics |= {f"reward/{name}": part.mean} if name and part.mean is not None else {}
        metrics |= {f"failures/{name or 'reward'}/{kind}": share for kind, share in part.failed.items()}
        metrics |= {f"labels/{name or 'reward'}/{label}": share for label, share in part.labels.items()}
    return metrics


def correct_threshold_of(reward: Reward, correct_threshold: float) -> float | None:
    """Return the value from which on a reward means right; None where that is unknown.

    That is so for a scalar model whose numbers only compare answers, unless `correct_threshold` is set.
    """
    inner = reward.reward if isinstance(reward, Component) else reward
    return None if correct_threshold == 1 and getattr(inner, "scaleless", False) else correct_threshold


def measures(scored: Sequence[ScoredGroup], *, n: int, correct_threshold: float | None) -> dict[str, float]:
    """Return mean@n, best@n, pass@k and more of scored groups.

    A failed score counts in none of the means; `failed` is their share. pass@k is the unbiased estimate
    (arXiv 2107.03374) over the rollouts that could be scored, for k = 1, 2, 4, … up to n, where a reward of at least
    `correct_threshold` passes (None: there is no pass@k); a group with fewer than k scored rollouts does not count.
    """
    values = [[s.value for s in group.scores if s.value is not None] for group in scored]
    voting = [group for group in values if group]
    rollouts = [rollout for group in scored for rollout in group.group.rollouts]
    metrics: dict[str, float] = {}
    if voting:
        metrics[f"mean@{n}"] = mean([mean(group) for group in voting])
        if n > 1:
            metrics[f"best@{n}"] = mean([max(group) for group in voting])
    threshold = math.inf if correct_threshold is None else correct_threshold
    for k in (2**i for i in range(n.bit_length()) if 2**i <= n and correct_threshold is not None):
        passed = [pass_at_k(len(group), sum(v >= threshold for v in group), k) for group in values if len(group) >= k]
        if passed:
            metrics[f"pass@{k}"] = mean(passed)
    return metrics | {
        "length": mean([len(r.tokens) for r in rollouts]),
        "truncated": mean([r.stop_reason == "length" for r in rollouts]),
        "failed": 1 - sum(map(len, values)) / len(rollouts),
    }


def mean(values: Iterable[float]) -> float:
    """Return the mean of at least one number."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)
