"""Does a reward prefer the better of two answers? Pairs in the form of RewardBench, with its arithmetic.

The two answers form a group in a random order, so that a judge that prefers the first one gains nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rewardsmith.algorithms.judge_statistics import (
    PRIOR,
    PRIOR_SETS,
    SECTIONS,
    overall_score,
    position_effects,
    section_scores,
)
from rewardsmith.console import Columns, Table
from rewardsmith.jobs import Result
from rewardsmith.trainers.evaluate.eval_measures import (
    Measure,
    RewardEvalSettings,
    TieCredit,
    Values,
    complete,
    evaluation_result,
    mean_of,
    measures_table,
    metrics_of,
    order_measures,
    repeat_measures,
)
from rewardsmith.trainers.evaluate.scorer import Scorer, group_of
from rewardsmith.types import Preference, Prompt, RolloutGroup

MAIN = ("score", "accuracy", "accuracy_all", "accuracy_half", "ties", "failed")
MAX_SUBSETS = 200
"""Subsets that are listed."""

Verdict = tuple[float, float]
"""The scores of the chosen and the rejected answer; NaN where one failed."""


@dataclass(frozen=True)
class JudgedPair:
    """A pair and its scores."""

    subset: str  # of the data
    margin: float  # score of the chosen answer minus that of the rejected one; NaN where one has none
    longer: int = 0  # characters of the chosen answer minus those of the rejected one
    tied: bool = False  # whether neither is better in truth
    in_orders: tuple[Verdict, ...] = ()  # the verdict with the chosen answer first, and then second
    repeats: tuple[Verdict, ...] = ()  # all verdicts, the first included

    @property
    def ok(self) -> bool:
        """Whether both answers have a score."""
        return not math.isnan(self.margin)

    def credit(self, ties: TieCredit) -> float:
        """Return 1 where the chosen answer scores higher, 0 where the other one does."""
        if self.margin == 0:
            return 0.5 if ties == "half" else 0.0
        return float(self.margin > 0)


def subset_of(prompt: Prompt) -> str:
    """Return the subset of a prompt: the column `subset`, or else its source."""
    named = prompt.info.get("subset")
    return named if isinstance(named, str) and named else prompt.source or "all"


async def evaluate_pairs(
    pairs: Sequence[Preference], scorer: Scorer, settings: RewardEvalSettings, seed: int = 0
) -> Result:
    """Score pairs, and measure how often the chosen answer has the higher score."""
    rng = random.Random(seed)
    swapped = [rng.random() < 0.5 for _ in pairs]
    groups = [_group(pair, swap) for pair, swap in zip(pairs, swapped, strict=True)]

    def verdicts(values: Sequence[Values], swaps: Sequence[bool]) -> list[Verdict]:
        return [
            (float(v[1]), float(v[0])) if swap else (float(v[0]), float(v[1]))
            for v, swap in zip(values, swaps, strict=True)
        ]

    found = [verdicts(await scorer.score(groups, repeat=number), swapped) for number in range(settings.repeats)]
    in_orders = []
    for swap in (False, True) if settings.orders > 1 else ():
        shown = [_group(pair, swap) for pair in pairs]
        in_orders.append(verdicts(await scorer.score(shown, in_given_order=True), [swap] * len(pairs)))
    judged = [
        JudgedPair(
            subset_of(pair.prompt),
            found[0][i][0] - found[0][i][1],
            len(pair.chosen) - len(pair.rejected),
            pair.tied,
            tuple(one[i] for one in in_orders),
            tuple(one[i] for one in found) if settings.repeats > 1 else (),
        )
        for i, pair in enumerate(pairs)
    ]
    metrics, tables = measure_pairs(judged, ties=settings.ties, seed=seed)
    return evaluation_result("pairs", metrics, MAIN, tables, [scorer.failures], metrics["failed"])


def _group(pair: Preference, swap: bool) -> RolloutGroup:
    return group_of(pair.prompt, [pair.rejected, pair.chosen] if swap else [pair.chosen, pair.rejected])


def measure_pairs(
    pairs: Sequence[JudgedPair], *, ties: TieCredit = "wrong", seed: int = 0
) -> tuple[dict[str, float], list[Table]]:
    """Return metrics by name, and tables."""
    decided = [pair for pair in pairs if not pair.tied]
    scored = [pair for pair in decided if pair.ok]
    failed = len(decided) - len(scored)
    rows = list(_agreement(decided, scored, seed))
    consistency = list(_consistency(decided, seed))
    notes = [
        f"{failed:,} of {len(decided):,} pairs could not be scored and are in no other measure." if failed else "",
        f"{len(pairs) - len(decided):,} pairs without a better answer are left out."
        if len(decided) < len(pairs)
        else "",
        "The reward is the same for both answers of every pair."
        if scored and not any(pair.margin for pair in scored)
        else "",
    ]
    shown = [one for one in rows if failed or one.name != "accuracy_all"]  # else it is the accuracy again
    tables = [measures_table("pairs", shown, "pairs", notes)]
    metrics = metrics_of([*rows, *consistency]) | {"pairs": float(len(pairs))}
    subsets, accuracies = _subsets(decided, ties)
    tables += [subsets] if len(accuracies) > 1 else []
    if sections := section_scores(accuracies):
        metrics |= {f"section/{name.lower().replace(' ', '-')}": value for name, value in sections.items()}
        metrics["score"] = overall_score(sections)
        tables.append(_sections(sections, accuracies))
    tables += [_by_length(scored, ties)] if scored else []
    tables += [measures_table("consistency", consistency, "pairs")] if consistency else []
    return metrics, tables


def _agreement(decided: Sequence[JudgedPair], scored: Sequence[JudgedPair], seed: int) -> Iterator[Measure]:
    wrong = [pair.credit("wrong") for pair in scored]
    yield mean_of("accuracy", "how often the chosen answer scores higher; a tie is wrong", wrong, seed=seed)
    half = [pair.credit("half") for pair in scored]
    yield mean_of("accuracy_half", "the same; a tie is half right", half, seed=seed)
    every = [*wrong, *([0.0] * (len(decided) - len(scored)))]
    yield mean_of("accuracy_all", "accuracy with pairs that failed as wrong", every, seed=seed)
    yield mean_of("ties", "share of pairs with equal scores", [pair.margin == 0 for pair in scored], seed=seed)
    yield mean_of("margin", "how much higher the chosen answer scores", [pair.margin for pair in scored], seed=seed)
    failed = 1 - len(scored) / len(decided) if decided else 0.0
    yield Measure("failed", "share of pairs without a score", failed, items=len(decided))


def _accuracy(pairs: Sequence[JudgedPair], ties: TieCredit) -> float:
    return float(np.mean([pair.credit(ties) for pair in pairs])) if pairs else math.nan


def _subsets(decided: Sequence[JudgedPair], ties: TieCredit) -> tuple[Table, dict[str, float]]:
    by_name: dict[str, list[JudgedPair]] = {}
    for pair in decided:
        by_name.setdefault(pair.subset, []).append(pair)
    accuracies: dict[str, float] = {}
    rows = []
    for name, some in sorted(by_name.items()):
        scored = [pair for pair in some if pair.ok]
        accuracies[name] = _accuracy(scored, ties)
        tied = sum(pair.margin == 0 for pair in scored)
        rows.append((name, len(some), accuracies[name], tied, len(some) - len(scored)))
    columns: Columns = {"subset": "text", "pairs": "count", "accuracy": "share", "ties": "count", "failed": "count"}
    left_out = f" {len(rows) - MAX_SUBSETS:,} more are not listed." if len(rows) > MAX_SUBSETS else ""
    note = f"A tie counts as {'half right' if ties == 'half' else 'wrong'}.{left_out}"
    return Table("by subset", columns, rows[:MAX_SUBSETS], note), accuracies


def _sections(sections: dict[str, float], accuracies: dict[str, float]) -> Table:
    subsets = {**{name: list(weights) for name, weights in SECTIONS.items()}, PRIOR: list(PRIOR_SETS)}
    known = {name for name, accuracy in accuracies.items() if not math.isnan(accuracy)}
    rows = [(name, value, len(known & set(subsets[name])), len(subsets[name])) for name, value in sections.items()]
    columns: Columns = {"section": "text", "accuracy": "share", "subsets": "count", "of": "count"}
    note = f"Score: {overall_score(sections):.1%}, the mean of the sections; prior sets weigh half."
    return Table("RewardBench", columns, rows, note)


def _by_length(scored: Sequence[JudgedPair], ties: TieCredit) -> Table:
    kinds = {
        "longer": [pair for pair in scored if pair.longer > 0],
        "as long": [pair for pair in scored if pair.longer == 0],
        "shorter": [pair for pair in scored if pair.longer < 0],
    }
    rows = [(name, len(some), _accuracy(some, ties)) for name, some in kinds.items() if some]
    columns: Columns = {"the chosen answer is": "text", "pairs": "count", "accuracy": "share"}
    note = "A reward that prefers long answers is right in the first row and wrong in the last."
    return Table("length", columns, rows, note)


def _consistency(decided: Sequence[JudgedPair], seed: int) -> Iterator[Measure]:
    in_orders = [found for p in decided if (found := complete(map(np.array, p.in_orders))) is not None]
    yield from order_measures(in_orders, seed)
    if in_orders:
        effects, _ = position_effects(in_orders, [np.array([[0, 1], [1, 0]])] * len(in_orders))
        about = "what the first position adds to the score, over the second"
        yield Measure("order_bias", about, float(effects[0] - effects[1]), items=len(in_orders))
    repeats = [found for p in decided if (found := complete(map(np.array, p.repeats))) is not None]
    yield from repeat_measures(repeats, seed)
