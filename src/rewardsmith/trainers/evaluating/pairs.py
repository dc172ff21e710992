"""Does a reward prefer the better of two answers? Pairs in the form of RewardBench, with its arithmetic.

    Preference --score--> JudgedPair --measure--> Evaluation

The two answers stand in a group, in an order that is drawn: a judge that likes the first one gains nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rewardsmith.algorithms.consistency import changed_relations, position_effects, repeat_consistency
from rewardsmith.algorithms.rewardbench import PRIOR, PRIOR_SETS, SECTIONS, overall_score, section_scores
from rewardsmith.trainers.evaluating.scoring import Scorer, group_of
from rewardsmith.trainers.evaluating.tables import (
    Column,
    Evaluation,
    Measure,
    Table,
    mean_of,
    metrics_of,
    table_of,
)
from rewardsmith.types import Preference, Prompt

Ties = Literal["wrong", "half"]
MAIN = ("score", "accuracy", "accuracy_all", "accuracy_half", "ties", "failed")
MOST_SUBSETS = 200
"""Subsets that are listed."""


@dataclass(frozen=True)
class JudgedPair:
    """What a reward said of a pair.

    Attributes:
        subset: which part of the data it belongs to.
        margin: score of the chosen answer minus that of the rejected one; NaN where one has none.
        longer: characters of the chosen answer minus those of the rejected one.
        tied: whether neither is better in truth.
        in_orders: (chosen, rejected) as said with the chosen answer shown first, and then second; NaN where not known.
        repeats: further verdicts, each as (chosen, rejected); the first is the first verdict.
    """

    subset: str
    margin: float
    longer: int = 0
    tied: bool = False
    in_orders: tuple[tuple[float, float], ...] = ()
    repeats: tuple[tuple[float, float], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether both answers have a score."""
        return not math.isnan(self.margin)

    def credit(self, ties: Ties) -> float:
        """Return 1 where the chosen answer scores higher, 0 where the other one does."""
        if self.margin == 0:
            return 0.5 if ties == "half" else 0.0
        return float(self.margin > 0)


def subset_of(prompt: Prompt) -> str:
    """Return the subset of a prompt: the column `subset`, or else its source."""
    named = prompt.info.get("subset")
    return named if isinstance(named, str) and named else prompt.source or "all"


async def evaluate_pairs(
    name: str,
    preferences: Sequence[Preference],
    scorer: Scorer,
    *,
    ties: Ties = "wrong",
    orders: int = 1,
    repeats: int = 1,
    seed: int = 0,
) -> Evaluation:
    """Score pairs, and measure how often the chosen answer has the higher score.

    Args:
        name: of the evaluation.
        preferences: the pairs.
        scorer: the reward.
        ties: what a tie of the reward counts in subsets, sections and score: 0, as RewardBench counts scalar models, or
            one half.
        orders: 2 shows each pair in both orders to see whether the position matters; below 2 that is not asked.
        repeats: how many verdicts on each pair are compared; below 2 that is not asked.
        seed: of the orders and of the intervals.
    """
    rng = random.Random(seed)
    sides = [rng.random() < 0.5 for _ in preferences]
    groups = [
        group_of(p.prompt, [p.rejected, p.chosen] if turned else [p.chosen, p.rejected])
        for p, turned in zip(preferences, sides, strict=True)
    ]

    def upright(values: Sequence[np.ndarray]) -> list[tuple[float, float]]:
        pairs = zip(values, sides, strict=True)
        return [(float(v[1]), float(v[0])) if turned else (float(v[0]), float(v[1])) for v, turned in pairs]

    verdicts = [upright(await scorer.score(groups))]
    verdicts += [upright(await scorer.score_again(groups, number)) for number in range(1, repeats)]
    shown: list[list[tuple[float, float]]] = []
    if orders > 1:
        first = await scorer.score_in_order(group_of(p.prompt, [p.chosen, p.rejected]) for p in preferences)
        last = await scorer.score_in_order(group_of(p.prompt, [p.rejected, p.chosen]) for p in preferences)
        shown = [[(float(v[0]), float(v[1])) for v in first], [(float(v[1]), float(v[0])) for v in last]]
    judged = [
        JudgedPair(
            subset_of(p.prompt),
            verdicts[0][i][0] - verdicts[0][i][1],
            len(p.chosen) - len(p.rejected),
            p.tied,
            tuple(side[i] for side in shown),
            tuple(verdict[i] for verdict in verdicts) if repeats > 1 else (),
        )
        for i, p in enumerate(preferences)
    ]
    metrics, tables = measure_pairs(judged, ties=ties, seed=seed)
    return Evaluation(name, "pairs", metrics | scorer.notes.counts(), MAIN, tables, scorer.notes.details)


def measure_pairs(
    pairs: Sequence[JudgedPair], *, ties: Ties = "wrong", seed: int = 0
) -> tuple[dict[str, float], list[Table]]:
    """Return all that the verdicts say about the reward: metrics by name, and tables."""
    decided = [pair for pair in pairs if not pair.tied]
    scored = [pair for pair in decided if pair.ok]
    rows = list(_agreement(decided, scored, seed))
    steady = [*_orders(decided, seed), *_repeats(decided, seed)]
    failed = len(decided) - len(scored)
    notes = [
        f"{failed:,} of {len(decided):,} pairs could not be scored and are in no other measure." if failed else "",
        f"{len(pairs) - len(decided):,} pairs without a better answer are left out."
        if len(decided) < len(pairs)
        else "",
        "The reward is the same for both answers of every pair: it tells nothing apart."
        if scored and not any(pair.margin for pair in scored)
        else "",
    ]
    shown = [one for one in rows if failed or one.name != "accuracy_all"]  # else it is the accuracy again
    tables = [table_of("pairs", shown, "pairs", " ".join(note for note in notes if note))]
    metrics = metrics_of([*rows, *steady]) | {"pairs": float(len(pairs))}
    subsets, accuracies = _subsets(decided, ties)
    tables += [subsets] if len(accuracies) > 1 else []
    sections = section_scores(accuracies)
    if sections:
        tables.append(_sections(sections, accuracies))
        metrics |= {f"section/{name.lower().replace(' ', '-')}": value for name, value in sections.items()}
        metrics["score"] = overall_score(sections)
    tables += [_by_length(scored, ties)] if scored else []
    tables += [table_of("consistency", steady, "pairs")] if steady else []
    return metrics, tables


def _agreement(decided: Sequence[JudgedPair], scored: Sequence[JudgedPair], seed: int) -> Iterator[Measure]:
    wrong = [pair.credit("wrong") for pair in scored]
    yield mean_of("accuracy", "how often the chosen answer scores higher; a tie is wrong", wrong, seed=seed)
    half = [pair.credit("half") for pair in scored]
    yield mean_of("accuracy_half", "the same; a tie is half right", half, seed=seed)
    every = [*wrong, *([0.0] * (len(decided) - len(scored)))]
    yield mean_of("accuracy_all", "accuracy with pairs that failed as wrong", every, seed=seed)
    yield mean_of("ties", "share of pairs with equal scores", [float(pair.margin == 0) for pair in scored], seed=seed)
    yield mean_of("margin", "how much higher the chosen answer scores", [pair.margin for pair in scored], seed=seed)
    failed = 1 - len(scored) / len(decided) if decided else 0.0
    yield Measure("failed", "share of pairs without a score", failed, items=len(decided))


def _subsets(decided: Sequence[JudgedPair], ties: Ties) -> tuple[Table, dict[str, float]]:
    by_name: dict[str, list[JudgedPair]] = {}
    for pair in decided:
        by_name.setdefault(pair.subset, []).append(pair)
    accuracies: dict[str, float] = {}
    rows = []
    for name, some in by_name.items():
        scored = [pair for pair in some if pair.ok]
        accuracies[name] = float(np.mean([pair.credit(ties) for pair in scored])) if scored else math.nan
        tied = sum(pair.margin == 0 for pair in scored)
        rows.append((name, len(some), accuracies[name], tied, len(some) - len(scored)))
    columns = (
        Column("subset", "text"),
        Column("pairs", "count"),
        Column("accuracy", "share"),
        Column("ties", "count"),
        Column("failed", "count"),
    )
    left = f" {len(rows) - MOST_SUBSETS:,} more are not listed." if len(rows) > MOST_SUBSETS else ""
    note = f"A tie counts as {'half right' if ties == 'half' else 'wrong'}.{left}"
    return Table("by subset", columns, sorted(rows)[:MOST_SUBSETS], note), accuracies


def _sections(sections: dict[str, float], accuracies: dict[str, float]) -> Table:
    wanted = {**{name: list(weights) for name, weights in SECTIONS.items()}, PRIOR: list(PRIOR_SETS)}
    rows = [
        (
            name,
            value,
            sum(not math.isnan(accuracies.get(subset, math.nan)) for subset in wanted[name]),
            len(wanted[name]),
        )
        for name, value in sections.items()
    ]
    columns = (
        Column("section", "text"),
        Column("accuracy", "share"),
        Column("subsets", "count"),
        Column("of", "count"),
    )
    score = overall_score(sections)
    return Table("RewardBench", columns, rows, f"Score: {score:.1%}, the mean of the sections; prior sets weigh half.")


def _by_length(scored: Sequence[JudgedPair], ties: Ties) -> Table:
    kinds = {
        "longer": [pair for pair in scored if pair.longer > 0],
        "as long": [pair for pair in scored if pair.longer == 0],
        "shorter": [pair for pair in scored if pair.longer < 0],
    }
    rows = [
        (name, len(some), float(np.mean([pair.credit(ties) for pair in some]))) for name, some in kinds.items() if some
    ]
    columns = (Column("the chosen answer is", "text"), Column("pairs", "count"), Column("accuracy", "share"))
    return Table("length", columns, rows, "A reward that likes length is right in the first row and wrong in the last.")


def _orders(decided: Sequence[JudgedPair], seed: int) -> Iterator[Measure]:
    found = [np.array(p.in_orders) for p in decided if p.in_orders and not np.isnan(np.array(p.in_orders)).any()]
    if not found:
        return
    changed, flipped = zip(*(changed_relations(said) for said in found), strict=True)
    yield mean_of("order_changed", "chance that the other order changes the verdict", changed, seed=seed)
    yield mean_of("order_flipped", "chance that the other order turns it around", flipped, seed=seed)
    effects, _ = position_effects(found, [np.array([[0, 1], [1, 0]])] * len(found))
    first = float(effects[0] - effects[1])
    yield Measure("order_bias", "what standing first adds to the score, over standing second", first, items=len(found))


def _repeats(decided: Sequence[JudgedPair], seed: int) -> Iterator[Measure]:
    verdicts = [[one for one in p.repeats if not math.isnan(sum(one))] for p in decided if p.repeats]
    found = [np.array(some) for some in verdicts if len(some) > 1]
    if not found:
        return
    same, spread = zip(*(repeat_consistency(some) for some in found), strict=True)
    yield mean_of("repeat_same", "chance that two verdicts on an answer are equal", same, seed=seed)
    yield mean_of("repeat_spread", "standard deviation of the verdicts on an answer", spread, seed=seed)
    changed = [changed_relations(some)[0] for some in found]
    yield mean_of("repeat_changed", "chance that asking again changes the verdict", changed, seed=seed)
