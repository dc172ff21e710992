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
from rewardsmith.trainers.evaluating.policies import soundness
from rewardsmith.trainers.evaluating.soundness import judged, with_soundness
from rewardsmith.trainers.held_out import Count
from rewardsmith.trainers.protocol import Report, derive, no_report
from rewardsmith.trainers.scoring import Turn, generate_and_score
from rewardsmith.trainers.settings import DataName, RewardChoice, SamplingSettings
from rewardsmith.types import Prompt, ScoredGroup


class ValidationSettings(Settings):
    """How a policy is measured while it learns: before the first step, every few steps, and after the last."""

    rare: ClassVar[frozenset[str]] = frozenset({"sampling", "reward", "sound", "sound_from"})

    data: DataName = Field(description="where the prompts come from; the same ones in every run and stage")
    every: int = Field(default=10, ge=1, description="steps between two validations")
    prompts: Count = Field(default=128, description="how many prompts; all takes every one of the data")
    rollouts_per_prompt: int = Field(default=1, ge=1, description="answers to each prompt: n of mean@n")
    sampling: SamplingSettings | None = Field(
        default=None, description="how answers are sampled; not set: as in training"
    )
    reward: RewardChoice | None = Field(default=None, description="what scores them; not set: as in training")
    sound: RewardChoice | None = Field(
        default=None, description="says whether the steps of a right answer hold: verified, verified@k, unsound"
    )
    sound_from: float = Field(default=1.0, description="a value of `sound` of at least this counts as sound")


async def validate(
    engine: Engine,
    reward: Reward,
    prompts: Sequence[Prompt],
    sampling: SamplingSettings,
    *,
    n: int,
    seed: int,
    version: int,
    right_from: float,
    sound: Component | None = None,
    sound_from: float = 1.0,
    pause: Callable[[], None] = lambda: None,
    turn: Turn = nullcontext,
    report: Report = no_report,
) -> tuple[dict[str, float], list[ScoredGroup]]:
    """Return metrics and the scored groups. The randomness is the same each time, so that changes are the policy's.

    With `sound`, a second reward, the scores of the groups have a part of that name, which is asked of right answers.
    """
    asked = len(prompts)
    prompts = [p for p in prompts if len(engine.encode(p)) <= engine.max_length - sampling.max_tokens]
    if not prompts:
        raise UserError(
            f"of {asked} prompts to validate with, none leaves room for max_tokens = {sampling.max_tokens} in the"
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
        ends=sound is not None and reads_ends(sound),
        pause=pause,
        turn=turn,
        report=report,
    )
    metrics = measures(scored, n=n, right_from=right_from if sound else right_of(reward, right_from))
    if sound is not None:
        report("checking reasoning", 0, 0)
        scored = await with_soundness(scored, sound, right_from, pause)
        metrics |= soundness([judged(group, right_from, sound_from) for group in scored])
    dropped = {"overlong_prompts": float(asked - len(prompts))} if len(prompts) < asked else {}
    return metrics | dropped | part_measures(scored), scored


def part_measures(scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return the mean of each part of the reward, the share of failures by part and cause, and of labels."""
    metrics: dict[str, float] = {}
    for name, part in measure(scored).items():
        metrics |= {f"reward/{name}": part.mean} if name and part.mean is not None else {}
        metrics |= {f"failures/{name or 'reward'}/{kind}": share for kind, share in part.failed.items()}
        metrics |= {f"labels/{name or 'reward'}/{label}": share for label, share in part.labels.items()}
    return metrics


def right_of(reward: Reward, right_from: float) -> float | None:
    """Return from where on a reward means right; None where nothing tells.

    That is so for a scalar model whose numbers only compare answers, as long as `right_from` is left at its default.
    """
    inner = reward.reward if isinstance(reward, Component) else reward
    return None if right_from == 1 and getattr(inner, "scaleless", False) else right_from


def measures(scored: Sequence[ScoredGroup], *, n: int, right_from: float | None) -> dict[str, float]:
    """Return mean@n, best@n, pass@k and more of scored groups.

    A failed score counts in none of the means; `failed` says how many there were. pass@k is the unbiased estimate
    (arXiv 2107.03374) over the rollouts that could be scored, for k = 1, 2, 4, … up to n, where a reward of at least
    `right_from` passes; a group with fewer than k scored rollouts does not count. Without `right_from` there is none.
    """
    values = [[s.value for s in group.scores if s.value is not None] for group in scored]
    voting = [group for group in values if group]
    rollouts = [rollout for group in scored for rollout in group.group.rollouts]
    metrics: dict[str, float] = {}
    if voting:
        metrics[f"mean@{n}"] = mean([mean(group) for group in voting])
        if n > 1:
            metrics[f"best@{n}"] = mean([max(group) for group in voting])
    least = math.inf if right_from is None else right_from
    for k in (2**i for i in range(n.bit_length()) if 2**i <= n and right_from is not None):
        passed = [pass_at_k(len(group), sum(v >= least for v in group), k) for group in values if len(group) >= k]
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
