"""Does a reward order answers as their true scores do? Groups with true scores, each scored as a whole.

A group with a candidate that could not be scored enters no measure, and is counted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from rewardsmith.algorithms.judge_statistics import changed_best, position_effects
from rewardsmith.algorithms.ranks import (
    gain,
    kendall_tau_b,
    pairwise_agreement,
    spearman,
    tie_calibrated_agreement,
    top1,
)
from rewardsmith.console import Columns, Table
from rewardsmith.jobs import Result
from rewardsmith.trainers.evaluate.eval_measures import (
    Measure,
    RewardEvalSettings,
    Values,
    complete,
    evaluation_result,
    mean_of,
    measures_table,
    metrics_of,
    order_measures,
    ratio_of,
    repeat_measures,
)
from rewardsmith.trainers.evaluate.scorer import Scorer, group_of
from rewardsmith.types import Ranking

MAIN = ("accuracy", "accuracy_all", "accuracy_half", "kendall", "top1", "gain@2", "gain@4", "failed")

Order = Sequence[int]


@dataclass(frozen=True)
class RankedGroup:
    """A group and its scores.

    Attributes:
        truth: [n] true scores.
        lengths: [n] characters of each candidate.
        scores: [n] of the reward; NaN where it failed.
        repeats: further verdicts, each [n].
        orders: orders of the candidates, each with the scores in that order, [n] by candidate.
    """

    truth: Values
    lengths: Values
    scores: Values
    repeats: Sequence[Values] = ()
    orders: Sequence[tuple[Order, Values]] = ()

    @property
    def ok(self) -> bool:
        """Whether every candidate has a score."""
        return not bool(np.isnan(self.scores).any())


async def evaluate_rankings(
    rankings: Sequence[Ranking], scorer: Scorer, settings: RewardEvalSettings, seed: int = 0
) -> Result:
    """Score groups, and measure how well the order of the scores is that of the truth."""
    groups = [group_of(ranking.prompt, ranking.candidates) for ranking in rankings]
    scores = await scorer.score(groups)
    again = [await scorer.score(groups, repeat=number) for number in range(1, settings.repeats)]
    in_orders: list[list[tuple[Order, Values]]] = [[] for _ in rankings]
    if settings.orders > 1:
        rng = random.Random(seed)
        orders = [spread_orders(len(ranking.candidates), settings.orders, rng) for ranking in rankings]
        jobs = [(i, order) for i, some in enumerate(orders) for order in some]
        shown = (group_of(rankings[i].prompt, [rankings[i].candidates[c] for c in order]) for i, order in jobs)
        for (i, order), values in zip(jobs, await scorer.score(shown, in_given_order=True), strict=True):
            in_orders[i].append((order, values[np.argsort(order)]))
    ranked = [
        RankedGroup(
            ranking.scores,
            np.array([len(text) for text in ranking.candidates], dtype=np.float64),
            scores[i],
            [repeat[i] for repeat in again],
            in_orders[i],
        )
        for i, ranking in enumerate(rankings)
    ]
    metrics, tables = measure_rankings(ranked, seed=seed)
    return evaluation_result("rankings", metrics, MAIN, tables, [scorer.failures], metrics["failed"])


def spread_orders(n: int, count: int, rng: random.Random) -> list[tuple[int, ...]]:
    """Return up to `count` distinct orders of n candidates; each n of them put every candidate into every position.

    They are the rotations of random orders.
    """

    def rotations() -> Iterator[tuple[int, ...]]:
        used: set[tuple[int, ...]] = set()
        while len(used) < math.factorial(min(max(n, 1), 12) - 1):
            rest, shifts = list(range(1, n)), list(range(n))
            rng.shuffle(rest)
            ring = (0, *rest)[:n]
            if ring in used:  # rotations of one ring are those of no other
                continue
            used.add(ring)
            rng.shuffle(shifts)
            yield from (ring[shift:] + ring[:shift] for shift in shifts)

    return list(islice(rotations(), min(count, math.factorial(min(n, 12)))))


def measure_rankings(groups: Sequence[RankedGroup], *, seed: int = 0) -> tuple[dict[str, float], list[Table]]:
    """Return metrics by name, and tables."""
    scored = [group for group in groups if group.ok]
    failed = len(groups) - len(scored)
    constant = sum(_constant(group.scores) for group in scored)
    share = Measure("failed", "share of groups without a score", failed / max(1, len(groups)), items=len(groups))
    in_orders = [both for group in groups if (both := _in_orders(group)) is not None]
    repeats = [again for g in groups if g.repeats and (again := complete((g.scores, *g.repeats))) is not None]
    sections = {
        "order": [*_agreement(scored, len(groups), seed), share],
        "choosing the best of n": list(_gains(scored, seed)),
        "length, in characters": list(_length(scored, seed)),
        "consistency": [
            *order_measures([scores for scores, _ in in_orders], seed),
            *_best_changed([scores for scores, _ in in_orders], seed),
            *repeat_measures(repeats, seed),
        ],
    }
    metrics = metrics_of(one for rows in sections.values() for one in rows) | {"groups": float(len(groups))}
    if not failed:  # it would be the accuracy again
        sections["order"] = [one for one in sections["order"] if one.name != "accuracy_all"]
    notes = [
        f"{failed:,} of {len(groups):,} groups could not be scored and are in no other measure." if failed else "",
        f"The reward is the same for all candidates in {constant:,} of {len(scored):,} groups." if constant else "",
    ]
    tables = [
        measures_table(title, rows, "groups", notes if title == "order" else ()) for title, rows in sections.items()
    ]
    tables = [table for table in tables if table.rows]
    if in_orders:
        tables.append(_positions(in_orders))
        metrics["order_bias"] = max(abs(float(row[1] or 0)) for row in tables[-1].rows)
    return metrics, tables


def _agreement(scored: Sequence[RankedGroup], total: int, seed: int) -> Iterator[Measure]:
    strict = [pairwise_agreement(g.truth, g.scores) for g in scored]
    about = "share of pairs with the true relation; a tie is right only where the truth ties"
    yield mean_of("accuracy", about, strict, seed=seed)
    chance = [(1 - pairwise_agreement(g.truth, np.zeros(len(g.truth)))) / 2 for g in scored]  # without the true ties
    yield mean_of("chance", "accuracy of a random order", chance, seed=seed)
    half = [pairwise_agreement(g.truth, g.scores, ties="half") for g in scored]
    yield mean_of("accuracy_half", "the same; a tie on one side only is half right", half, seed=seed)
    untied = [pairwise_agreement(g.truth, g.scores, ties="ignore") for g in scored]
    yield mean_of("accuracy_untied", "the same, over pairs that are not tied in the truth", untied, seed=seed)
    calibrated, width = tie_calibrated_agreement([g.truth for g in scored], [g.scores for g in scored])
    about = "accuracy where scores within the tie width count as tied"
    yield Measure("accuracy_calibrated", about, calibrated, items=len(scored))
    yield Measure("tie_width", "the tie width with the best accuracy", width if scored else math.nan, items=len(scored))
    wrong = [*strict, *([0.0] * (total - len(scored)))]
    yield mean_of("accuracy_all", "accuracy with groups that failed as all wrong", wrong, seed=seed)
    # 0 where the reward has no order and the truth has one: ties must not pay.
    kendall, rho = (
        [0.0 if _constant(g.scores) and not _constant(g.truth) else statistic(g.truth, g.scores) for g in scored]
        for statistic in (kendall_tau_b, spearman)
    )
    yield mean_of("kendall", "Kendall's τ_b within a group; 0 where all scores are equal", kendall, seed=seed)
    yield mean_of("spearman", "Spearman's ρ within a group; 0 where all scores are equal", rho, seed=seed)
    best = [top1(g.truth, g.scores) for g in scored]
    yield mean_of("top1", "how often the best-scored answer is truly best", best, seed=seed)


def _constant(values: Values) -> bool:
    return bool(values.min() == values.max())


def _gains(scored: Sequence[RankedGroup], seed: int) -> Iterator[Measure]:
    """Yield, for n = 2, 4, 8 …, the gain of choosing the best of n as a share of what a perfect judge would gain."""
    largest = max((len(g.truth) for g in scored), default=0)
    n = 2
    while n <= largest:
        pairs = [gain(g.truth, g.scores, n) for g in scored if len(g.truth) >= n]
        reached, possible = (np.array(side) for side in zip(*pairs, strict=True))
        about = f"share reached of the {possible.mean():.3g} that a perfect choice among {n} adds to the true score"
        yield ratio_of(f"gain@{n}", about, reached, possible, seed=seed)
        n *= 2


def _length(scored: Sequence[RankedGroup], seed: int) -> Iterator[Measure]:
    correlations = [spearman(g.lengths, g.scores) for g in scored]
    if all(map(math.isnan, correlations)):
        return
    yield mean_of("length", "Spearman's ρ of score and length within a group", correlations, seed=seed)
    truth = [spearman(g.lengths, g.truth) for g in scored]
    yield mean_of("length_truth", "the same of the true score: what the length deserves", truth, seed=seed)


def _in_orders(group: RankedGroup) -> tuple[Values, Values] | None:
    """Return the scores in the orders without a failure, [K, N], and each candidate's position; None for too few."""
    known = [(order, scores) for order, scores in group.orders if not np.isnan(scores).any()]
    if len(known) < 2:
        return None
    return np.array([scores for _, scores in known]), np.array([np.argsort(order) for order, _ in known])


def _best_changed(verdicts: Sequence[Values], seed: int) -> Iterator[Measure]:
    if verdicts:
        about = "chance that another order changes which is best"
        yield mean_of("order_best_changed", about, list(map(changed_best, verdicts)), seed=seed)


def _positions(in_orders: Sequence[tuple[Values, Values]]) -> Table:
    effects, counts = position_effects([scores for scores, _ in in_orders], [places for _, places in in_orders])
    rows = [(i + 1, float(effect), int(count)) for i, (effect, count) in enumerate(zip(effects, counts, strict=True))]
    columns: Columns = {"position": "count", "adds to the score": "number", "scores": "count"}
    return Table("position bias", columns, rows, "The effect of a position, without the candidates' own quality.")
