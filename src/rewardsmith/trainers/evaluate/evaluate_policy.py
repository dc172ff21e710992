"""How good is a policy? Sample answers to held-out prompts; are they right, and does their reasoning hold?

A right answer with unsound reasoning passes the standard measures and not the verified ones (RRM, arXiv 2510.07774).
The false discovery rate is the share of right answers that are unsound.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np

from rewardsmith.algorithms.ranks import pass_at_k
from rewardsmith.console import Columns, Table
from rewardsmith.engines.protocol import Engine, Sampling
from rewardsmith.errors import UserError
from rewardsmith.jobs import Result
from rewardsmith.rewards.base import Reward
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.measure import measure
from rewardsmith.rewards.tree import components_of, reads_ends
from rewardsmith.trainers.collect import OnDevice, generate_and_score
from rewardsmith.trainers.evaluate.eval_measures import (
    Measure,
    evaluation_result,
    mean_of,
    measures_table,
    metrics_of,
    ratio_of,
)
from rewardsmith.trainers.evaluate.scorer import FailureLog, nothing, score_rollouts
from rewardsmith.trainers.trainer import Report, derive, no_report
from rewardsmith.types import Prompt, Score, ScoredGroup

MAX_PLACES = 60
"""Stages and steps of a run that are listed."""

REASONING = "reasoning_check"
"""The part of a score that holds the verdict of the reasoning check."""


@dataclass(frozen=True)
class JudgedGroup:
    """The verdicts on the rollouts of one prompt."""

    right: tuple[bool | None, ...]  # None where unknown
    sound: tuple[bool | None, ...] = ()  # None: unknown, or the answer is wrong; (): the group was not checked
    place: str = ""  # where the group comes from, such as `policy, validation, step 40`

    @property
    def known(self) -> list[bool]:
        """The verdicts on the answers, without the unknown ones."""
        return [right for right in self.right if right is not None]

    @property
    def checked(self) -> list[bool]:
        """The known verdicts on the reasoning of right answers."""
        return [sound for right, sound in zip(self.right, self.sound, strict=True) if right and sound is not None]

    @property
    def unchecked(self) -> int:
        """How many right answers have no verdict on their reasoning."""
        return sum(self.known) - len(self.checked)

    @property
    def verified(self) -> list[bool]:
        """Whether each rollout of `known` is both right and sound; only for groups without `unchecked` ones."""
        return [bool(r and s) for r, s in zip(self.right, self.sound, strict=True) if r is not None]


def judge_group(
    group: ScoredGroup, correct_threshold: float, reasoning_threshold: float | None = None, place: str = ""
) -> JudgedGroup:
    """Return the verdicts of a scored group; without `reasoning_threshold` none on the reasoning."""
    right = tuple(at_least(score, correct_threshold) for score in group.scores)
    if reasoning_threshold is None:
        return JudgedGroup(right, place=place)
    sound = tuple(at_least(score.parts[REASONING], reasoning_threshold) for score in group.scores)
    return JudgedGroup(right, sound, place)


def at_least(score: Score, threshold: float) -> bool | None:
    """Return whether a score reaches a threshold; None where it failed."""
    return None if score.value is None else score.value >= threshold


def require_free(reward: Component) -> None:
    """Raise a `UserError` if the reward has a part with the name of the reasoning check."""
    if REASONING in components_of(reward.reward) or REASONING in reward.declared:
        raise UserError(
            f'the reward has a part "{REASONING}" of its own, where the verdict of the setting {REASONING} is stored:'
            " give the part another name"
        )


async def with_reasoning_check(
    scored: Sequence[ScoredGroup], check: Component, correct_threshold: float, pause: Callable[[], None] = nothing
) -> list[ScoredGroup]:
    """Return the groups with one part more: the reasoning check of right answers; it is `skipped` for others."""
    right = [[bool(at_least(score, correct_threshold)) for score in group.scores] for group in scored]
    verdicts = await score_rollouts(check, [group.group for group in scored], right, pause=pause)
    return [
        ScoredGroup(
            group.group,
            [replace(s, parts={**s.parts, REASONING: part}) for s, part in zip(group.scores, parts, strict=True)],
        )
        for group, parts in zip(scored, verdicts, strict=True)
    ]


def evaluate_policy(groups: Sequence[JudgedGroup], *, seed: int = 0, failures: Sequence[FailureLog] = ()) -> Result:
    """Return the evaluation of a policy from the verdicts on its rollouts."""
    metrics, tables = measure_policy(groups, seed=seed)
    largest = max((int(metric.removeprefix("pass@")) for metric in metrics if metric.startswith("pass@")), default=1)
    several = [f"pass@{largest}", f"verified@{largest}"] if largest > 1 else []
    main = ["accuracy", "verified", "unsound", *several, "failed", f"{REASONING}_failed"]
    failed = max(metrics["failed"], metrics.get(f"{REASONING}_failed", 0.0))
    return evaluation_result("policy", metrics, main, tables, failures, failed)


def reasoning_metrics(groups: Sequence[JudgedGroup]) -> dict[str, float]:
    """Return the metrics of the reasoning check alone; see `measure_policy`."""
    return metrics_of(_verified(groups, 0))


def measure_policy(groups: Sequence[JudgedGroup], *, seed: int = 0) -> tuple[dict[str, float], list[Table]]:
    """Return accuracy, pass@k, and where reasoning was checked verified accuracy, verified@k and false discoveries.

    pass@k is the unbiased estimate (Chen et al. 2021, arXiv 2107.03374) over the rollouts with a verdict, for k = 1, 2,
    4, …; a group with fewer than k of them does not count. Intervals are over prompts.

    A right answer without a verdict on its reasoning is neither sound nor unsound. `verified` is accuracy · (1 -
    unsound), as if such answers were as sound as the others. `verified@k` is over the groups that have none. Where no
    right answer has a verdict, neither exists.
    """
    rollouts = sum(len(group.right) for group in groups)
    missing = rollouts - sum(len(group.known) for group in groups)
    rows = [*_right(groups, seed), *_verified(groups, seed)]
    rows.append(Measure("failed", "share of rollouts without a verdict", missing / max(1, rollouts)))
    tables = [measures_table("answers", rows, "prompts", _notes(groups))]
    places = _by_place(groups)
    tables += [places] if len(places.rows) > 1 else []
    return metrics_of(rows) | {"prompts": float(len(groups)), "rollouts": float(rollouts)}, tables


def _notes(groups: Sequence[JudgedGroup]) -> Iterator[str]:
    checked = [group for group in groups if group.sound]
    unchecked = sum(group.unchecked for group in checked)
    if unchecked:
        yield f"The reasoning of {unchecked:,} right answers has no verdict."
        yield (
            "They count as sound at the rate of the others; verified@k is over prompts that have none."
            if any(group.checked for group in checked)
            else "So nothing is verified."
        )
    if checked and len(checked) < len(groups):
        yield f"{len(groups) - len(checked):,} of {len(groups):,} prompts have no reasoning check."


def _passes(name: str, verdicts: Sequence[Sequence[bool]], about: str, seed: int) -> Iterator[Measure]:
    """Yield the unbiased pass@k for k = 1, 2, 4, … over the groups with at least k verdicts."""
    largest = max(map(len, verdicts), default=0)
    for k in (2**i for i in range(largest.bit_length())):
        chances = [pass_at_k(len(group), sum(group), k) for group in verdicts if len(group) >= k]
        yield mean_of(f"{name}@{k}", f"chance that one of {k} answers is {about}", chances, seed=seed)


def _right(groups: Sequence[JudgedGroup], seed: int) -> Iterator[Measure]:
    verdicts = [group.known for group in groups]
    yield ratio_of("accuracy", "share of right answers", list(map(sum, verdicts)), list(map(len, verdicts)), seed=seed)
    yield from _passes("pass", verdicts, "right", seed)


def _verified(groups: Sequence[JudgedGroup], seed: int) -> Iterator[Measure]:
    groups = [group for group in groups if group.sound]
    if not groups:
        return
    if (sound := _sound_counts(groups)) is not None:
        about = "share of answers that are right and sound"
        yield ratio_of("verified", about, sound, [len(group.known) for group in groups], seed=seed)
        complete = [group.verified for group in groups if not group.unchecked]
        yield from _passes("verified", complete, "right and sound", seed)
    unsound = [group.checked.count(False) for group in groups]
    about = "share of right answers that are unsound: the false discovery rate"
    yield ratio_of("unsound", about, unsound, [len(group.checked) for group in groups], seed=seed)
    unchecked, right = [group.unchecked for group in groups], [sum(group.known) for group in groups]
    about = "share of right answers without a verdict on their reasoning"
    yield ratio_of(f"{REASONING}_failed", about, unchecked, right, seed=seed)


def _sound_counts(groups: Sequence[JudgedGroup]) -> list[float] | None:
    """Return how many answers of each group are right and sound, unchecked ones at the rate of the others."""
    checked = [sound for group in groups for sound in group.checked]
    if not checked and any(group.unchecked for group in groups):
        return None
    rate = float(np.mean(checked)) if checked else 0.0
    return [sum(group.checked) + group.unchecked * rate for group in groups]


def _by_place(groups: Sequence[JudgedGroup]) -> Table:
    by_place: dict[str, list[JudgedGroup]] = defaultdict(list)
    for group in groups:
        by_place[group.place].append(group)
    rows = []
    for place, some in list(by_place.items())[:MAX_PLACES]:
        right = [one for group in some for one in group.known]
        with_check = [group for group in some if group.sound]
        answers = sum(len(group.known) for group in with_check)
        sound = _sound_counts(with_check) if with_check else None
        checked = [one for group in with_check for one in group.checked]
        rows.append(
            (
                place,
                len(some),
                float(np.mean(right)) if right else None,
                sum(sound) / answers if sound is not None and answers else None,
                checked.count(False) / len(checked) if checked else None,
            )
        )
    columns: Columns = {
        "where": "text", "prompts": "count", "right": "share", "right and sound": "share",
        "unsound of the right": "share",
    }  # fmt: skip
    left_out = len(by_place) - len(rows)
    return Table("by stage and step", columns, rows, f"{left_out:,} more are not listed." if left_out else "")


# ---- validation of a policy while it learns --------------------------------------------------------------------------


async def validate(
    engine: Engine,
    reward: Reward,
    prompts: Sequence[Prompt],
    sampling: Sampling,
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
        sampling,
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
