"""How good is a policy? Sample answers to held-out prompts; are they right, and does their reasoning hold?

A right answer with unsound reasoning passes the standard measures and not the verified ones (RRM, arXiv 2510.07774).
The false discovery rate is the share of right answers that are unsound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from rewardsmith.console import Columns, Table
from rewardsmith.engines.protocol import Engine, Sampling
from rewardsmith.errors import UserError
from rewardsmith.jobs import Job, Result
from rewardsmith.rewards.base import Reward
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.measure import measure
from rewardsmith.rewards.tree import check, components_of, reads_ends
from rewardsmith.trainers.collect import OnDevice, generate_and_score
from rewardsmith.trainers.evaluate.eval_measures import (
    Measure,
    evaluation_result,
    mean,
    mean_of,
    measure_sources,
    measures_table,
    metrics_of,
    pass_chances,
    ratio_of,
    sources_table,
)
from rewardsmith.trainers.evaluate.fault_measures import fault_of, measure_faults
from rewardsmith.trainers.evaluate.scorer import FailureLog, nothing, score_rollouts
from rewardsmith.trainers.settings import RewardChoice, Stage
from rewardsmith.trainers.trainer import Count, GroupRecord, Report, derive, held_out, no_report
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
    source: str = ""  # of the prompt
    faults: tuple[str, ...] = ()  # labels of the reasoning checks, "" for none

    @property
    def known(self) -> list[bool]:
        """The verdicts on the answers, without the unknown ones."""
        return [right for right in self.right if right is not None]

    @property
    def checked(self) -> list[bool]:
        """The known verdicts on the reasoning of right answers."""
        return [sound for right, sound in zip(self.right, self.sound, strict=True) if right and sound is not None]

    @property
    def unsound_faults(self) -> list[str]:
        """The labels of the right answers that are unsound."""
        labels = self.faults or ("",) * len(self.right)
        return [label for r, s, label in zip(self.right, self.sound, labels, strict=True) if r and s is False]

    @property
    def unchecked(self) -> int:
        """How many right answers have no verdict on their reasoning."""
        return sum(self.known) - len(self.checked)

    @property
    def verified(self) -> list[bool]:
        """Whether each rollout of `known` is both right and sound; only for groups without `unchecked` ones."""
        return [bool(r and s) for r, s in zip(self.right, self.sound, strict=True) if r is not None]


def judge_group(group: ScoredGroup, correct_threshold: float, reasoning_threshold: float | None = None) -> JudgedGroup:
    """Return the verdicts of a scored group; without `reasoning_threshold` none on the reasoning."""
    right, source = tuple(at_least(score, correct_threshold) for score in group.scores), group.group.prompt.source
    if reasoning_threshold is None:
        return JudgedGroup(right, source=source)
    checks = [score.parts[REASONING] for score in group.scores]
    sound = tuple(at_least(check, reasoning_threshold) for check in checks)
    return JudgedGroup(right, sound, source=source, faults=tuple(map(fault_of, checks)))


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
    scored: Sequence[ScoredGroup], reward: Component, correct_threshold: float, pause: Callable[[], None] = nothing
) -> list[ScoredGroup]:
    """Return the groups with one part more: the reasoning check of right answers; it is `skipped` for others."""
    right = [[bool(at_least(score, correct_threshold)) for score in group.scores] for group in scored]
    verdicts = await score_rollouts(reward, [group.group for group in scored], right, pause=pause)
    return [
        ScoredGroup(
            group.group,
            [replace(s, parts={**s.parts, REASONING: part}) for s, part in zip(group.scores, parts, strict=True)],
        )
        for group, parts in zip(scored, verdicts, strict=True)
    ]


def evaluate_policy(
    groups: Sequence[JudgedGroup],
    *,
    seed: int = 0,
    failures: Sequence[FailureLog] = (),
    also: Mapping[str, float] | None = None,
) -> Result:
    """Return the evaluation of a policy from the verdicts on its rollouts; `also` are metrics to add."""
    metrics, tables = measure_policy(groups, seed=seed)
    tables += sources_table(metrics | dict(also or {}))
    largest = max((int(metric.removeprefix("pass@")) for metric in metrics if metric.startswith("pass@")), default=1)
    several = [f"pass@{largest}", f"verified@{largest}"] if largest > 1 else []
    main = ["accuracy", "verified", "unsound", *several, "failed", f"{REASONING}_failed"]
    failed = max(metrics["failed"], metrics.get(f"{REASONING}_failed", 0.0))
    return evaluation_result("policy", metrics | dict(also or {}), main, tables, failures, failed)


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
    rows = [ratio_of(name, about, t, c, seed=seed) for name, (about, t, c) in _shares(groups).items()]
    for (name, k), chances in _passes(groups).items():
        about = "right" if name == "pass" else "right and sound"
        rows.append(mean_of(f"{name}@{k}", f"chance that one of {k} answers is {about}", chances, seed=seed))
    rows.append(Measure("failed", "share of rollouts without a verdict", missing / max(1, rollouts)))
    tables = [measures_table("answers", rows, "prompts", _notes(groups))]
    places = _by_place(groups)
    tables += [places] if len(places.rows) > 1 else []
    faults, tables_of_faults = measure_faults(groups, seed=seed)
    metrics = metrics_of(rows) | faults | {"prompts": float(len(groups)), "rollouts": float(rollouts)}
    metrics |= measure_sources(
        [group.source for group in groups], lambda at: _values([groups[i] for i in at]) | {"prompts": float(len(at))}
    )
    return metrics, tables + tables_of_faults


def _values(groups: Sequence[JudgedGroup]) -> dict[str, float]:
    """Return the measures of `measure_policy` without intervals."""
    metrics = {name: sum(t) / sum(c) for name, (_, t, c) in _shares(groups).items() if any(c)}
    metrics |= {f"{name}@{k}": mean(some) for (name, k), some in _passes(groups).items() if some}
    return metrics | {"failed": mean([right is None for group in groups for right in group.right])}


def reasoning_metrics(groups: Sequence[JudgedGroup]) -> dict[str, float]:
    """Return the metrics of the reasoning check alone; see `measure_policy`."""
    others = ("accuracy", "pass@", "failed")
    return {name: value for name, value in _values(groups).items() if not name.startswith(others)}


def _shares(groups: Sequence[JudgedGroup]) -> dict[str, tuple[str, list[float], list[int]]]:
    """Return shares of answers by name: what each is, and the totals and counts of each group."""
    known, right = [len(group.known) for group in groups], [float(sum(group.known)) for group in groups]
    shares = {"accuracy": ("share of right answers", right, known)}
    groups = [group for group in groups if group.sound]
    if not groups:
        return shares
    checked = [len(group.checked) for group in groups]
    unchecked, sound = [float(group.unchecked) for group in groups], [float(sum(group.checked)) for group in groups]
    if any(checked) or not any(unchecked):
        rate = sum(sound) / max(1, sum(checked))  # unchecked ones are as sound as the others
        verified = [s + rate * u for s, u in zip(sound, unchecked, strict=True)]
        about = "share of answers that are right and sound"
        shares["verified"] = (about, verified, [len(group.known) for group in groups])
    unsound = [c - s for c, s in zip(checked, sound, strict=True)]
    shares["unsound"] = ("share of right answers that are unsound: the false discovery rate", unsound, checked)
    about = "share of right answers without a verdict on their reasoning"
    shares[f"{REASONING}_failed"] = (about, unchecked, [sum(group.known) for group in groups])
    return shares


def _passes(groups: Sequence[JudgedGroup]) -> dict[tuple[str, int], list[float]]:
    """Return pass@k, and where reasoning was checked verified@k, of each group with at least k verdicts."""
    found = {("pass", k): some for k, some in pass_chances([group.known for group in groups]).items()}
    checked = [group for group in groups if group.sound]
    if any(group.checked for group in checked) or not any(group.unchecked for group in checked):
        complete = [group.verified for group in checked if not group.unchecked]
        found |= {("verified", k): some for k, some in pass_chances(complete).items()}
    return found


def _notes(groups: Sequence[JudgedGroup]) -> Iterator[str]:
    checked = [group for group in groups if group.sound]
    if unchecked := sum(group.unchecked for group in checked):
        yield f"The reasoning of {unchecked:,} right answers has no verdict."
        yield (
            "They count as sound at the rate of the others; verified@k is over prompts that have none."
            if any(group.checked for group in checked)
            else "So nothing is verified."
        )
    if checked and len(checked) < len(groups):
        yield f"{len(groups) - len(checked):,} of {len(groups):,} prompts have no reasoning check."


def _by_place(groups: Sequence[JudgedGroup]) -> Table:
    by_place: dict[str, list[JudgedGroup]] = defaultdict(list)
    for group in groups:
        by_place[group.place].append(group)
    rows = []
    for place, some in list(by_place.items())[:MAX_PLACES]:
        shares = {name: sum(t) / sum(c) for name, (_, t, c) in _shares(some).items() if any(c)}
        rows.append((place, len(some), *(shares.get(name) for name in ("accuracy", "verified", "unsound"))))
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
    if reasoning_check is not None:
        report("checking reasoning", 0, 0)
        scored = await with_reasoning_check(scored, reasoning_check, correct_threshold, pause)

    def measured(at: Sequence[int]) -> dict[str, float]:
        some = [scored[i] for i in at]
        found = measures(some, n=n, correct_threshold=threshold)
        if reasoning_check is not None:
            found |= reasoning_metrics([judge_group(one, correct_threshold, reasoning_threshold) for one in some])
        return found

    metrics = measured(range(len(scored)))
    metrics |= {"overlong_prompts": float(total - len(prompts))} if len(prompts) < total else {}
    sources = [group.group.prompt.source for group in scored]
    metrics |= measure_sources(sources, lambda at: measured(at) | {"prompts": float(len(at))})
    return metrics | part_measures(scored), scored


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

    A failed score counts in none of the means; `failed` is their share. A reward of at least `correct_threshold` passes
    (None: there is no pass@k).
    """
    values = [[s.value for s in group.scores if s.value is not None] for group in scored]
    voting = [group for group in values if group]
    rollouts = [rollout for group in scored for rollout in group.group.rollouts]
    metrics: dict[str, float] = {}
    if voting:
        metrics[f"mean@{n}"] = mean([mean(group) for group in voting])
        if n > 1:
            metrics[f"best@{n}"] = mean([max(group) for group in voting])
    if correct_threshold is not None:
        passed = pass_chances([[value >= correct_threshold for value in group] for group in values])
        metrics |= {f"pass@{k}": mean(some) for k, some in passed.items()}
    return metrics | {
        "length": mean([len(r.tokens) for r in rollouts]),
        "truncated": mean([r.stop_reason == "length" for r in rollouts]),
        "failed": 1 - sum(map(len, values)) / len(rollouts),
    }


class EvaluateStage(Stage, Job):
    """Sample answers to held-out prompts and score them."""

    rare: ClassVar[frozenset[str]] = frozenset({"correct_threshold", "reasoning_check", "reasoning_threshold"})
    runs_by: ClassVar[str] = Job.runs_by

    name: str = Field(default="evaluate", min_length=1, description="name of this stage in the run's files")
    prompts: Count = Field(default=256, description="how many prompts; all takes every one of the data")
    rollouts_per_prompt: int = Field(default=1, ge=1, description="answers to each prompt")
    correct_threshold: float = Field(default=1.0, description="a reward of at least this counts as right: pass@k")
    sampling: Sampling = Field(default=Sampling(), description="how answers are sampled")
    reward: RewardChoice = Field(description="what scores them")
    reasoning_check: RewardChoice | None = Field(
        default=None, description="a reward for the reasoning of right answers: verified, verified@k, unsound"
    )
    reasoning_threshold: float = Field(default=1.0, description="a reasoning_check of at least this counts as sound")

    async def run(self, context: Any) -> Result:
        """Sample, score, and measure; needs the `Context` of a run."""
        reward = context.reward(self.reward)
        await check(reward)
        reasoning_check = None
        if self.reasoning_check is not None:
            require_free(reward)
            reasoning_check = context.reward(self.reasoning_check)
            await check(reasoning_check)
        seed = derive(context.seed, "evaluate", self.data)
        metrics, scored = await validate(
            context.engine(self.model),
            reward,
            held_out(context.source(self.data).prompts, self.prompts, self.data),
            self.sampling,
            n=self.rollouts_per_prompt,
            seed=seed,
            version=0,
            correct_threshold=self.correct_threshold,
            reasoning_check=reasoning_check,
            reasoning_threshold=self.reasoning_threshold,
            pause=context.pause,
            on_device=partial(context.on_device, self.model),
            report=context.progress,
        )
        none = [None] * self.rollouts_per_prompt
        context.keep([GroupRecord(1, "validation", "", group, none) for group in scored])
        if reasoning_check is None and correct_threshold_of(reward, self.correct_threshold) is None:
            means = [name for name in metrics if name.startswith(("mean@", "best@"))]
            return evaluation_result("policy", metrics, [*means, "failed"], sources_table(metrics), [], 0.0)
        threshold = self.reasoning_threshold if reasoning_check else None
        judged = [judge_group(group, self.correct_threshold, threshold) for group in scored]
        return replace(evaluate_policy(judged, seed=seed, also=metrics), failed=0.0)
