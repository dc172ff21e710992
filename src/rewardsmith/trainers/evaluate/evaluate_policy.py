"""How good is a policy? Whether its answers are right, and whether the reasoning behind them holds.

A right answer with unsound reasoning passes the standard measures and not the verified ones (RRM, arXiv 2510.07774).
The false discovery rate is the share of right answers that are unsound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rewardsmith.algorithms.ranks import pass_at_k
from rewardsmith.console import Columns, Table
from rewardsmith.errors import UserError
from rewardsmith.jobs import Result
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.tree import components_of
from rewardsmith.trainers.evaluate.eval_measures import (
    Measure,
    evaluation_result,
    mean_of,
    measures_table,
    metrics_of,
    ratio_of,
)
from rewardsmith.trainers.evaluate.scorer import FailureLog, nothing, score_rollouts
from rewardsmith.types import Score, ScoredGroup

MAX_PLACES = 60
"""Stages and steps of a run that are listed."""

REASONING = "reasoning_check"
"""The part of a score that holds the verdict of the reasoning check."""


@dataclass(frozen=True)
class JudgedGroup:
    """The verdicts on the rollouts of one prompt.

    Attributes:
        right: whether the answer of each rollout is right; None where unknown.
        sound: whether the reasoning of each rollout holds; None where unknown, or not checked because the answer is
            wrong. () where the group was not checked.
        place: where the group comes from, such as `policy, validation, step 40`.
    """

    right: tuple[bool | None, ...]
    sound: tuple[bool | None, ...] = ()
    place: str = ""

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
    wanted = [[bool(at_least(score, correct_threshold)) for score in group.scores] for group in scored]
    verdicts = await score_rollouts(check, [group.group for group in scored], wanted, pause=pause)
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
