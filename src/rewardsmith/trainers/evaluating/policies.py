"""How good is a policy? Whether its answers are right, and whether the way to them holds.

    JudgedGroup --measure--> Evaluation

A right answer that was reached by unsound steps passes the standard measures and not the verified ones (RRM, arXiv
2510.07774). The false discovery rate is the share of right answers that are unsound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rewardsmith.algorithms.ranks import pass_at_k
from rewardsmith.trainers.evaluating.tables import (
    Column,
    Evaluation,
    Measure,
    Table,
    mean_of,
    metrics_of,
    ratio_of,
    table_of,
)

MOST_STEPS = 60
"""Steps of a run that are listed."""


@dataclass(frozen=True)
class JudgedGroup:
    """What is known of the rollouts of one prompt.

    Attributes:
        right: of each rollout whether its answer is right; None where that is not known.
        sound: of each rollout whether its steps hold; None where that is not known, or was not asked: of an answer that
            is wrong it does not matter.
        place: where it comes from, such as `policy 40`; "" where there is but one place.
    """

    right: tuple[bool | None, ...]
    sound: tuple[bool | None, ...] = ()
    place: str = ""

    @property
    def verified(self) -> list[bool]:
        """Whether each rollout of which that is known is both right and sound."""
        pairs = zip(self.right, self.sound, strict=True)
        return [bool(right and sound) for right, sound in pairs if right is False or (right and sound is not None)]

    @property
    def discoveries(self) -> tuple[int, int]:
        """How many right answers are unsound, and of how many right answers that is known."""
        known = [sound for right, sound in zip(self.right, self.sound, strict=True) if right and sound is not None]
        return sum(not sound for sound in known), len(known)


def powers(most: int) -> list[int]:
    """Return 1, 2, 4, … up to `most`."""
    return [2**i for i in range(most.bit_length()) if 2**i <= most]


def passes(verdicts: Sequence[Sequence[bool]], k: int) -> list[float]:
    """Return the unbiased pass@k of each group that has at least k verdicts."""
    return [pass_at_k(len(group), sum(group), k) for group in verdicts if len(group) >= k]


def soundness(groups: Sequence[JudgedGroup]) -> dict[str, float]:
    """Return `verified`, `verified@k` and `unsound` of groups whose soundness was asked for; see `measure_policy`."""
    return metrics_of(_verified(groups, 0))


def measure_policy(groups: Sequence[JudgedGroup], *, seed: int = 0) -> tuple[dict[str, float], list[Table]]:
    """Return accuracy, pass@k, and where soundness is known verified accuracy, verified@k and false discoveries.

    pass@k is the unbiased estimate (Chen et al. 2021, arXiv 2107.03374) over the rollouts with a verdict, for k = 1, 2,
    4, …; a group with fewer than k of them does not count. Intervals are over prompts.
    """
    rows = [*_right(groups, seed), *_verified(groups, seed)]
    missing = sum(verdict is None for group in groups for verdict in group.right)
    rollouts = sum(len(group.right) for group in groups)
    rows.append(Measure("failed", "share of rollouts without a verdict", missing / rollouts if rollouts else 0.0))
    open_ = sum(len(group.right) - group.right.count(None) - len(group.verified) for group in groups if group.sound)
    note = f"Of {open_:,} right answers it is not known whether they are sound: they are in no verified measure."
    tables = [table_of("answers", rows, "prompts", note if open_ else "")]
    places = _places(groups)
    tables += [places] if len(places.rows) > 1 else []
    counts = {"prompts": float(len(groups)), "rollouts": float(rollouts)}
    return metrics_of(rows) | counts, tables


def evaluation_of(name: str, groups: Sequence[JudgedGroup], *, seed: int = 0) -> Evaluation:
    """Return the evaluation of a policy from what is known of its rollouts."""
    metrics, tables = measure_policy(groups, seed=seed)
    largest = max((int(metric.removeprefix("pass@")) for metric in metrics if metric.startswith("pass@")), default=1)
    several = [f"pass@{largest}", f"verified@{largest}"] if largest > 1 else []
    return Evaluation(name, "policy", metrics, ["accuracy", "verified", "unsound", *several, "failed"], tables)


def _right(groups: Sequence[JudgedGroup], seed: int) -> Iterator[Measure]:
    verdicts = [[bool(one) for one in group.right if one is not None] for group in groups]
    totals, counts = [sum(some) for some in verdicts], [len(some) for some in verdicts]
    yield ratio_of("accuracy", "share of answers that are right", totals, counts, seed=seed)
    for k in powers(max(counts, default=0)):
        about = "chance that one answer is right" if k == 1 else f"chance that one of {k} answers is right"
        yield mean_of(f"pass@{k}", about, passes(verdicts, k), seed=seed)


def _verified(groups: Sequence[JudgedGroup], seed: int) -> Iterator[Measure]:
    asked = [group for group in groups if group.sound]
    if not asked:
        return
    verdicts = [group.verified for group in asked]
    totals, counts = [sum(some) for some in verdicts], [len(some) for some in verdicts]
    yield ratio_of("verified", "share of answers that are right and sound", totals, counts, seed=seed)
    for k in powers(max(counts, default=0)):
        about = f"chance that one of {k} answers is right and sound" if k > 1 else "the same for one answer to a prompt"
        yield mean_of(f"verified@{k}", about, passes(verdicts, k), seed=seed)
    unsound, right = zip(*(group.discoveries for group in asked), strict=True)
    about = "share of right answers that are unsound: the false discovery rate"
    yield ratio_of("unsound", about, unsound, right, seed=seed)


def _places(groups: Sequence[JudgedGroup]) -> Table:
    by_place: dict[str, list[JudgedGroup]] = defaultdict(list)
    for group in groups:
        by_place[group.place].append(group)
    rows = []
    for place, some in list(by_place.items())[:MOST_STEPS]:
        right = [bool(one) for group in some for one in group.right if one is not None]
        verified = [one for group in some if group.sound for one in group.verified]
        wrong, found = np.sum([group.discoveries for group in some if group.sound] or [(0, 0)], axis=0)
        rows.append(
            (
                place,
                len(some),
                float(np.mean(right)) if right else None,
                float(np.mean(verified)) if verified else None,
                float(wrong / found) if found else None,
            )
        )
    columns = (
        Column("where", "text"),
        Column("prompts", "count"),
        Column("right", "share"),
        Column("right and sound", "share"),
        Column("unsound of the right", "share"),
    )
    left = len(by_place) - len(rows)
    return Table("by stage and step", columns, rows, f"{left:,} more are not listed." if left else "")
