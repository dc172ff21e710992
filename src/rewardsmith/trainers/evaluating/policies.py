"""How good is a policy? Whether its answers are right, and whether the way to them holds.

    JudgedGroup --measure--> Evaluation

A right answer that was reached by unsound steps passes the standard measures and not the verified ones (RRM, arXiv
2510.07774). The false discovery rate is the share of right answers that are unsound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
    def known(self) -> list[bool]:
        """Whether each rollout of which that is known is right."""
        return [right for right in self.right if right is not None]

    @property
    def verified(self) -> list[bool] | None:
        """Whether each rollout of `known` is both right and sound; None where that is open for a right answer."""
        return None if self.open else [bool(r and s) for r, s in self._pairs if r is not None]

    @property
    def discoveries(self) -> tuple[int, int]:
        """How many right answers are unsound, and of how many right answers that is known."""
        known = [sound for right, sound in self._pairs if right and sound is not None]
        return sum(not sound for sound in known), len(known)

    @property
    def open(self) -> int:
        """Of how many right answers it is not known whether they are sound."""
        return sum(bool(right) and sound is None for right, sound in self._pairs)

    @property
    def _pairs(self) -> list[tuple[bool | None, bool | None]]:
        return list(zip(self.right, self.sound, strict=True))


def powers(most: int) -> list[int]:
    """Return 1, 2, 4, … up to `most`."""
    return [2**i for i in range(most.bit_length()) if 2**i <= most]


def passes(verdicts: Sequence[Sequence[bool]], k: int) -> list[float]:
    """Return the unbiased pass@k of each group that has at least k verdicts."""
    return [pass_at_k(len(group), sum(group), k) for group in verdicts if len(group) >= k]


def soundness(groups: Sequence[JudgedGroup]) -> dict[str, float]:
    """Return `verified`, `verified@k`, `unsound` and `sound_failed` where soundness was asked for: `measure_policy`."""
    return metrics_of(_verified(groups, 0))


def measure_policy(groups: Sequence[JudgedGroup], *, seed: int = 0) -> tuple[dict[str, float], list[Table]]:
    """Return accuracy, pass@k, and where soundness is known verified accuracy, verified@k and false discoveries.

    pass@k is the unbiased estimate (Chen et al. 2021, arXiv 2107.03374) over the rollouts with a verdict, for k = 1, 2,
    4, …; a group with fewer than k of them does not count. Intervals are over prompts.

    A right answer whose soundness is open is neither sound nor unsound. `verified` is accuracy · (1 - unsound): such
    answers are taken to be as sound as the others. `verified@k` is over the groups that have none. Where all right
    answers are open, neither exists.
    """
    rows = [*_right(groups, seed), *_verified(groups, seed)]
    missing = sum(verdict is None for group in groups for verdict in group.right)
    rollouts = sum(len(group.right) for group in groups)
    rows.append(Measure("failed", "share of rollouts without a verdict", missing / rollouts if rollouts else 0.0))
    tables = [table_of("answers", rows, "prompts", _note(groups))]
    places = _places(groups)
    tables += [places] if len(places.rows) > 1 else []
    counts = {"prompts": float(len(groups)), "rollouts": float(rollouts)}
    return metrics_of(rows) | counts, tables


def _note(groups: Sequence[JudgedGroup]) -> str:
    asked = [group for group in groups if group.sound]
    open_, known = sum(group.open for group in asked), sum(group.discoveries[1] for group in asked)
    taken = "They are taken to be as sound as the others; verified@k is over prompts that have none."
    unasked = len(groups) - len(asked)
    notes = [
        f"Of {open_:,} right answers it is not known whether they are sound." if open_ else "",
        (taken if known else "So nothing is verified.") if open_ else "",
        f"Of {unasked:,} of {len(groups):,} prompts nothing was said about soundness." if asked and unasked else "",
    ]
    return " ".join(note for note in notes if note)


def evaluation_of(
    name: str,
    groups: Sequence[JudgedGroup],
    *,
    seed: int = 0,
    counts: Mapping[str, float] | None = None,
    details: Mapping[str, str] | None = None,
) -> Evaluation:
    """Return the evaluation of a policy from what is known of its rollouts.

    Args:
        name: of the evaluation.
        groups: what is known.
        seed: of the intervals.
        counts: further metrics, such as failures by cause.
        details: what the first failure of each cause said.
    """
    metrics, tables = measure_policy(groups, seed=seed)
    largest = max((int(metric.removeprefix("pass@")) for metric in metrics if metric.startswith("pass@")), default=1)
    several = [f"pass@{largest}", f"verified@{largest}"] if largest > 1 else []
    main = ["accuracy", "verified", "unsound", *several, "failed", "sound_failed"]
    return Evaluation(name, "policy", metrics | dict(counts or {}), main, tables, details or {})


def _right(groups: Sequence[JudgedGroup], seed: int) -> Iterator[Measure]:
    verdicts = [group.known for group in groups]
    totals, counts = [sum(some) for some in verdicts], [len(some) for some in verdicts]
    yield ratio_of("accuracy", "share of answers that are right", totals, counts, seed=seed)
    for k in powers(max(counts, default=0)):
        about = "chance that one answer is right" if k == 1 else f"chance that one of {k} answers is right"
        yield mean_of(f"pass@{k}", about, passes(verdicts, k), seed=seed)


def _verified(groups: Sequence[JudgedGroup], seed: int) -> Iterator[Measure]:
    asked = [group for group in groups if group.sound]
    if not asked:
        return
    unsound, found = zip(*(group.discoveries for group in asked), strict=True)
    right, open_ = [sum(group.known) for group in asked], [group.open for group in asked]
    sound = _sound(asked)
    if sound is not None:
        counts = [len(group.known) for group in asked]
        yield ratio_of("verified", "share of answers that are right and sound", sound, counts, seed=seed)
        verdicts = [verified for group in asked if (verified := group.verified) is not None]
        for k in powers(max(map(len, verdicts), default=0)):
            about = f"chance that one of {k} answers is right and sound" if k > 1 else "the same, a prompt at a time"
            yield mean_of(f"verified@{k}", about, passes(verdicts, k), seed=seed)
    about = "share of right answers that are unsound: the false discovery rate"
    yield ratio_of("unsound", about, unsound, found, seed=seed)
    yield ratio_of("sound_failed", "share of right answers without a verdict on soundness", open_, right, seed=seed)


def _sound(asked: Sequence[JudgedGroup]) -> list[float] | None:
    """Return how many right answers of each group are sound, open ones at the rate of the others; None if all are."""
    unsound, found = np.sum([group.discoveries for group in asked], axis=0)
    if not found and any(group.open for group in asked):
        return None  # a share of 0 would be made up
    rate = 1 - unsound / found if found else 0.0
    return [group.discoveries[1] - group.discoveries[0] + group.open * rate for group in asked]


def _places(groups: Sequence[JudgedGroup]) -> Table:
    by_place: dict[str, list[JudgedGroup]] = defaultdict(list)
    for group in groups:
        by_place[group.place].append(group)
    rows = []
    for place, some in list(by_place.items())[:MOST_STEPS]:
        right = [one for group in some for one in group.known]
        asked = [group for group in some if group.sound]
        answers, sound = sum(len(group.known) for group in asked), _sound(asked) if asked else None
        wrong, found = np.sum([group.discoveries for group in asked] or [(0, 0)], axis=0)
        rows.append(
            (
                place,
                len(some),
                float(np.mean(right)) if right else None,
                float(sum(sound) / answers) if sound is not None and answers else None,
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
