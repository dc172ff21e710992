"""What is wrong with right answers whose reasoning does not hold: how often there is a fault of each kind.

The kind is the label of the reasoning check, such as `miracle-steps`: an answer has one, the one that weighs most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rewardsmith.console import Columns, Table
from rewardsmith.text.rubrics import FAILURES
from rewardsmith.trainers.evaluate.eval_measures import ratio_of
from rewardsmith.types import Score

if TYPE_CHECKING:
    from rewardsmith.trainers.evaluate.evaluate_policy import JudgedGroup

UNNAMED = "unnamed"
"""The kind of a fault that the reasoning check gave no label."""


def fault_of(score: Score) -> str:
    """Return the label of a reasoning check, or else of the first of its parts that has one."""
    return next((one.label for one in (score, *(part for _, part in score.named_parts())) if one.label), "")


def measure_faults(groups: Sequence[JudgedGroup], *, seed: int = 0) -> tuple[dict[str, float], list[Table]]:
    """Return `fault/KIND`, the share of checked right answers with a fault of that kind, and a table of the kinds.

    The shares add up to `unsound`. Where no unsound answer has a label, there is nothing to tell apart.
    """
    groups = [group for group in groups if group.sound]
    unsound = [[label or UNNAMED for label in group.unsound_faults] for group in groups]
    counts = Counter(kind for some in unsound for kind in some)
    if not set(counts) - {UNNAMED}:
        return {}, []
    checked, total = [len(group.checked) for group in groups], sum(counts.values())
    metrics: dict[str, float] = {}
    rows = []
    for kind, count in sorted(counts.items(), key=lambda one: (one[0] == UNNAMED, -one[1], one[0])):
        share = ratio_of(kind, "", [some.count(kind) for some in unsound], checked, seed=seed)
        metrics[f"fault/{kind}"] = share.value
        rows.append((kind, count, count / total, share.value, share.low, share.high, FAILURES.get(kind, "")))
    columns: Columns = {
        "fault": "text", "answers": "count", "of the unsound": "share", "of the right": "share", "95% from": "share",
        "to": "share", "meaning": "text",
    }  # fmt: skip
    return metrics, [Table("faults of right answers", columns, rows)]
