"""Does a reward order answers as they should be? Groups with true scores, each scored as a whole.

    Ranking --score--> RankedGroup --measure--> Evaluation

A group of which one candidate could not be scored is an error: it enters no measure, and is counted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rewardsmith.algorithms.best_of_n import gain
from rewardsmith.algorithms.consistency import (
    changed_best,
    changed_relations,
    position_effects,
    repeat_consistency,
)
from rewardsmith.algorithms.ranks import kendall_tau_b, pairwise_agreement, spearman, top1
from rewardsmith.algorithms.tie_calibration import tie_calibrated_agreement
from rewardsmith.trainers.evaluating.orders import inverse, spread_orders
from rewardsmith.trainers.evaluating.scoring import Scorer, group_of
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
from rewardsmith.types import Ranking

Scores = NDArray[np.float64]
MAIN = ("accuracy", "accuracy_all", "accuracy_half", "kendall", "top1", "gain@2", "gain@4", "failed")


@dataclass(frozen=True)
class RankedGroup:
    """What a reward said of one group.

    Attributes:
        truth: [n] true scores.
        lengths: [n] characters of each candidate.
        said: [n] what the reward said; NaN where it could not.
        repeats: further verdicts on the same, each [n].
        orders: orders of the candidates, each with what the reward said then, [n] by candidate.
    """

    truth: Scores
    lengths: Scores
    said: Scores
    repeats: Sequence[Scores] = ()
    orders: Sequence[tuple[Sequence[int], Scores]] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether every candidate has a score."""
        return not bool(np.isnan(self.said).any())


async def evaluate_rankings(
    name: str, rankings: Sequence[Ranking], scorer: Scorer, *, orders: int = 1, repeats: int = 1, seed: int = 0
) -> Evaluation:
    """Score groups and measure how well the order of the scores is that of the truth.

    Args:
        name: of the evaluation.
        rankings: groups with true scores.
        scorer: the reward.
        orders: in how many orders each group is shown to see whether positions matter; below 2 that is not asked.
        repeats: how many verdicts on each group are compared; below 2 that is not asked.
        seed: of the orders and of the intervals.
    """
    groups = [group_of(ranking.prompt, ranking.candidates) for ranking in rankings]
    said = await scorer.score(groups)
    again = [await scorer.score_again(groups, number) for number in range(1, repeats)]
    shown: list[list[tuple[Sequence[int], Scores]]] = [[] for _ in rankings]
    if orders > 1:
        shown = await _in_orders(rankings, scorer, orders, seed)
    ranked = [
        RankedGroup(
            ranking.scores,
            np.array([len(text) for text in ranking.candidates], dtype=np.float64),
            said[i],
            [repeat[i] for repeat in again],
            shown[i],
        )
        for i, ranking in enumerate(rankings)
    ]
    measures, tables = measure_rankings(ranked, seed=seed)
    return Evaluation(name, "rankings", measures | scorer.notes.counts(), MAIN, tables, scorer.notes.details)


async def _in_orders(
    rankings: Sequence[Ranking], scorer: Scorer, count: int, seed: int
) -> list[list[tuple[Sequence[int], Scores]]]:
    rng = random.Random(seed)
    orders = [spread_orders(len(ranking.candidates), count, rng) for ranking in rankings]
    where = [(i, order) for i, some in enumerate(orders) for order in some]
    texts = [[rankings[i].candidates[candidate] for candidate in order] for i, order in where]
    values = await scorer.score_in_order(
        group_of(rankings[i].prompt, shown) for (i, _), shown in zip(where, texts, strict=True)
    )
    found: list[list[tuple[Sequence[int], Scores]]] = [[] for _ in rankings]
    for (i, order), value in zip(where, values, strict=True):
        found[i].append((order, value[list(inverse(order))]))
    return found


def measure_rankings(groups: Sequence[RankedGroup], *, seed: int = 0) -> tuple[dict[str, float], list[Table]]:
    """Return all that the verdicts say about the reward: metrics by name, and tables."""
    scored = [group for group in groups if group.ok]
    agreement = list(_agreement(scored, len(groups), seed))
    picks = list(_gains(scored, seed))
    length = list(_length(scored, seed))
    steady = [*_orders(groups, seed), *_repeats(groups, seed)]
    failed = len(groups) - len(scored)
    share = failed / len(groups) if groups else 0.0
    flat = sum(_flat(group.said) for group in scored)
    notes = [
        f"{failed:,} of {len(groups):,} groups could not be scored and are in no other measure." if failed else "",
        f"The reward is the same for all candidates in {flat:,} of {len(scored):,} groups." if flat else "",
    ]
    note = " ".join(one for one in notes if one)
    titles = {
        "order": [
            *(one for one in agreement if failed or one.name != "accuracy_all"),  # else it is the accuracy again
            Measure("failed", "share of groups without a score", share, items=len(groups)),
        ],
        "choosing the best of n": picks,
        "length, in characters": length,
        "consistency": steady,
    }
    tables = [table_of(title, rows, "groups", note if title == "order" else "") for title, rows in titles.items()]
    tables = [table for table in tables if table.rows]
    metrics = metrics_of([*agreement, *picks, *length, *steady]) | {"failed": share, "groups": float(len(groups))}
    effects = _positions(groups)
    if effects is not None:
        tables.append(effects)
        metrics["order_bias"] = max(abs(float(row[1] or 0)) for row in effects.rows)
    return metrics, tables


def _agreement(scored: Sequence[RankedGroup], total: int, seed: int) -> Iterator[Measure]:
    strict = [pairwise_agreement(g.truth, g.said) for g in scored]
    yield mean_of(
        "accuracy", "share of pairs with the true relation; a tie is right only where the truth ties", strict, seed=seed
    )
    chance = [pairwise_agreement(g.truth, np.zeros(len(g.truth))) for g in scored]  # the share of true ties
    yield mean_of("chance", "accuracy of an order that is drawn by lot", [(1 - tied) / 2 for tied in chance], seed=seed)
    half = [pairwise_agreement(g.truth, g.said, ties="half") for g in scored]
    yield mean_of("accuracy_half", "the same; a tie on one side only is half right", half, seed=seed)
    untied = [pairwise_agreement(g.truth, g.said, ties="ignore") for g in scored]
    yield mean_of("accuracy_untied", "the same, over pairs that the truth tells apart", untied, seed=seed)
    calibrated, width = tie_calibrated_agreement([g.truth for g in scored], [g.said for g in scored])
    about = "accuracy where scores as close as the tie width count as tied"
    yield Measure("accuracy_calibrated", about, calibrated, items=len(scored))
    yield Measure("tie_width", "the width that suits best", width if scored else math.nan, items=len(scored))
    wrong = [*strict, *([0.0] * (total - len(scored)))]
    yield mean_of("accuracy_all", "accuracy with groups that failed as all wrong", wrong, seed=seed)
    kendall = [_or_no_order(g, kendall_tau_b(g.truth, g.said)) for g in scored]
    yield mean_of("kendall", "Kendall's τ_b within a group; 0 where all scores are equal", kendall, seed=seed)
    rho = [_or_no_order(g, spearman(g.truth, g.said)) for g in scored]
    yield mean_of("spearman", "Spearman's ρ within a group, in the same way", rho, seed=seed)
    yield mean_of("top1", "how often the best-scored is truly best", [top1(g.truth, g.said) for g in scored], seed=seed)


def _or_no_order(group: RankedGroup, correlation: float) -> float:
    """Return 0 where the reward has no order and the truth has one: tying what it is unsure of must bring nothing."""
    return 0.0 if _flat(group.said) and not _flat(group.truth) else correlation


def _flat(values: Scores) -> bool:
    return bool(values.min() == values.max())


def _gains(scored: Sequence[RankedGroup], seed: int) -> Iterator[Measure]:
    """Yield, for n = 2, 4, 8 …, the gain of choosing the best of n as a share of what a perfect judge would gain."""
    largest = max((len(g.truth) for g in scored), default=0)
    n = 2
    while n <= largest:
        pairs = [gain(g.truth, g.said, n) for g in scored if len(g.truth) >= n]
        reached, possible = (np.array(side) for side in zip(*pairs, strict=True))
        about = (
            f"of the {possible.mean():.3g} that a perfect choice among {n} adds to the true score, the share reached"
        )
        yield ratio_of(f"gain@{n}", about, reached, possible, seed=seed)
        n *= 2


def _length(scored: Sequence[RankedGroup], seed: int) -> Iterator[Measure]:
    said = [spearman(g.lengths, g.said) for g in scored]
    if all(map(math.isnan, said)):
        return  # what the length deserves is of interest beside what it gets
    yield mean_of("length", "Spearman's ρ of score and length within a group", said, seed=seed)
    truth = [spearman(g.lengths, g.truth) for g in scored]
    yield mean_of("length_truth", "the same of the true score: what the length deserves", truth, seed=seed)


def _in_all_orders(group: RankedGroup) -> tuple[Scores, NDArray[np.int64]] | None:
    """Return what was said in the orders that could be scored [k, n], and where everyone stood; None for too few."""
    known = [(order, said) for order, said in group.orders if not np.isnan(said).any()]
    if len(known) < 2:
        return None
    return np.array([said for _, said in known]), np.array([inverse(order) for order, _ in known])


def _orders(groups: Sequence[RankedGroup], seed: int) -> Iterator[Measure]:
    found = [both[0] for group in groups if (both := _in_all_orders(group)) is not None]
    if not found:
        return
    changed, flipped = zip(*(changed_relations(said) for said in found), strict=True)
    yield mean_of("order_changed", "chance that another order changes the relation of a pair", changed, seed=seed)
    yield mean_of("order_flipped", "chance that another order turns a pair around", flipped, seed=seed)
    best = [changed_best(said) for said in found]
    yield mean_of("order_best_changed", "chance that another order changes which is best", best, seed=seed)


def _positions(groups: Sequence[RankedGroup]) -> Table | None:
    found = [both for group in groups if (both := _in_all_orders(group)) is not None]
    if not found:
        return None
    effects, counts = position_effects([said for said, _ in found], [places for _, places in found])
    rows = [(i + 1, float(effect), int(count)) for i, (effect, count) in enumerate(zip(effects, counts, strict=True))]
    columns = (Column("position", "count"), Column("adds to the score"), Column("scores", "count"))
    note = "What standing there adds, with the candidates' own quality taken out."
    return Table("liking for positions", columns, rows, note)


def _repeats(groups: Sequence[RankedGroup], seed: int) -> Iterator[Measure]:
    known = [[one for one in (g.said, *g.repeats) if not np.isnan(one).any()] for g in groups if g.repeats]
    found = [np.array(verdicts) for verdicts in known if len(verdicts) > 1]
    if not found:
        return
    same, spread = zip(*(repeat_consistency(verdicts) for verdicts in found), strict=True)
    yield mean_of("repeat_same", "chance that two verdicts on a candidate are equal", same, seed=seed)
    yield mean_of("repeat_spread", "standard deviation of the verdicts on a candidate", spread, seed=seed)
    changed = [changed_relations(verdicts)[0] for verdicts in found]
    yield mean_of("repeat_changed", "chance that asking again changes the relation of a pair", changed, seed=seed)
