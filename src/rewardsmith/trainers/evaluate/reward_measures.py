"""How well a reward agrees with known truth: with the scores of groups, with grades, and with preferences.

An item with an answer that could not be scored enters no measure, and is counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from rewardsmith.algorithms.judge_statistics import (
    PRIOR,
    PRIOR_SETS,
    SECTIONS,
    best_threshold,
    calibration_error,
    changed_best,
    changed_relations,
    false_discovery_rate,
    flagged_below,
    levels_of_scores,
    mean_absolute_deviation,
    overall_score,
    position_effects,
    repeat_consistency,
    roc_auc,
    section_scores,
    within,
)
from rewardsmith.algorithms.ranks import (
    gain,
    kendall_tau_b,
    pairwise_agreement,
    pearson,
    spearman,
    tie_calibrated_agreement,
    top1,
)
from rewardsmith.console import Columns, Table
from rewardsmith.trainers.evaluate.eval_measures import Measure, mean_of, measures_table, metrics_of, ratio_of
from rewardsmith.types import Graded, Preference, Prompt, Ranking

Item = TypeVar("Item")
Values = NDArray[np.float64]
TieCredit = Literal["wrong", "half"]
MetricsAndTables = tuple[dict[str, float], list[Table]]

MAX_SUBSETS = 200
"""Subsets that are listed."""


@dataclass(frozen=True)
class Verdicts(Generic[Item]):
    """An item and the scores of its answers, [n]; NaN where one failed."""

    item: Item
    scores: Values
    repeats: Sequence[Values] = ()  # further verdicts
    orders: Sequence[tuple[Sequence[int], Values]] = ()  # orders of the answers, with the scores, by answer, in each

    @property
    def ok(self) -> bool:
        """Whether every answer has a score."""
        return not np.isnan(self.scores).any()


def _failed(verdicts: Sequence[Verdicts[Item]], items: str) -> tuple[Measure, str]:
    """Return the share of items without a score, and a note about them."""
    total, failed = len(verdicts), sum(not one.ok for one in verdicts)
    note = f"{failed:,} of {total:,} {items} could not be scored and are in no other measure." if failed else ""
    return Measure("failed", f"share of {items} without a score", failed / max(1, total), items=total), note


# ---- rankings: groups with true scores ------------------------------------------------------------------------------


def measure_rankings(verdicts: Sequence[Verdicts[Ranking]], *, seed: int = 0) -> MetricsAndTables:
    """Measure whether the order of the scores is that of the truth."""
    scored = [one for one in verdicts if one.ok]
    both = [(one.item.scores, one.scores) for one in scored]
    failed, failed_note = _failed(verdicts, "groups")
    strict = [pairwise_agreement(truth, scores) for truth, scores in both]
    # Without the true ties.
    chance = [(1 - pairwise_agreement(truth, np.zeros(len(truth)))) / 2 for truth, _ in both]
    half = [pairwise_agreement(truth, scores, ties="half") for truth, scores in both]
    untied = [pairwise_agreement(truth, scores, ties="ignore") for truth, scores in both]
    calibrated, width = tie_calibrated_agreement([truth for truth, _ in both], [scores for _, scores in both])
    # 0 where the reward has no order and the truth has one: ties must not pay.
    kendall, rho = (
        [0.0 if np.ptp(scores) == 0 < np.ptp(truth) else statistic(truth, scores) for truth, scores in both]
        for statistic in (kendall_tau_b, spearman)
    )
    strict_about = "share of pairs with the true relation; a tie is right only where the truth ties"
    order = [
        mean_of("accuracy", strict_about, strict, seed=seed),
        mean_of("chance", "accuracy of a random order", chance, seed=seed),
        mean_of("accuracy_half", "the same; a tie on one side only is half right", half, seed=seed),
        mean_of("accuracy_untied", "the same, over pairs that are not tied in the truth", untied, seed=seed),
        Measure("accuracy_calibrated", "accuracy where scores within the tie width count as tied", calibrated),
        Measure("tie_width", "the tie width with the best accuracy", width if scored else math.nan),
        mean_of(
            "accuracy_all",
            "accuracy with groups that failed as all wrong",
            [*strict, *([0.0] * (len(verdicts) - len(scored)))],
            seed=seed,
        ),
        mean_of("kendall", "Kendall's τ_b within a group; 0 where all scores are equal", kendall, seed=seed),
        mean_of("spearman", "Spearman's ρ within a group; 0 where all scores are equal", rho, seed=seed),
        mean_of("top1", "how often the best-scored answer is truly best", [top1(*one) for one in both], seed=seed),
        failed,
    ]
    gains = []
    largest = max((len(truth) for truth, _ in both), default=0)
    for n in (2**i for i in range(1, largest.bit_length())):
        reached, possible = np.array([gain(*one, n) for one in both if len(one[0]) >= n]).T
        about = f"share reached of the {possible.mean():.3g} that a perfect choice among {n} adds to the true score"
        gains.append(ratio_of(f"gain@{n}", about, reached, possible, seed=seed))
    lengths = [np.array([len(text) for text in one.item.candidates], dtype=np.float64) for one in scored]
    by_length = [spearman(length, scores) for length, (_, scores) in zip(lengths, both, strict=True)]
    true_length = [spearman(length, truth) for length, (truth, _) in zip(lengths, both, strict=True)]
    length = [
        mean_of("length", "Spearman's ρ of score and length within a group", by_length, seed=seed),
        mean_of("length_truth", "the same of the true score: what the length deserves", true_length, seed=seed),
    ]
    constant = sum(np.ptp(scores) == 0 for _, scores in both)
    same = f"The reward is the same for all candidates in {constant:,} of {len(scored):,} groups." if constant else ""
    consistent, consistency_tables = measure_consistency(verdicts, "groups", seed)
    tables = [
        measures_table("order", order, "groups", [failed_note, same]),
        measures_table("choosing the best of n", gains, "groups"),
        measures_table("length, in characters", length, "groups"),
    ]
    metrics = metrics_of([*order, *gains, *length, *consistent]) | {"groups": float(len(verdicts))}
    return metrics, [*(table for table in tables if table.rows), *consistency_tables]


# ---- grades: answers with a true grade ------------------------------------------------------------------------------


def measure_grades(
    verdicts: Sequence[Verdicts[Graded]], *, threshold: float = 0.5, levels: int = 10, seed: int = 0
) -> MetricsAndTables:
    """Measure whether the scores, which should lie in [0, 1], are the grades, and whether low ones detect unsoundness.

    A right answer may rest on unsound reasoning (RRM, arXiv 2510.07774). The share of such answers among the right ones
    is a false discovery rate, FP / (FP + TP).
    """
    scored = [one for one in verdicts if one.ok]
    scores = np.array([one.scores[0] for one in scored], dtype=np.float64)
    grades = np.array([one.item.grade for one in scored], dtype=np.float64)
    failed, failed_note = _failed(verdicts, "answers")
    outside = float(np.mean((scores < 0) | (scores > 1))) if scored else 0.0
    band_about = f"mean distance of score and grade over bands of 1/{levels}"
    rows = [
        mean_of("mad", "mean absolute deviation from the true grade", np.abs(scores - grades), seed=seed),
        mean_of("bias", "mean deviation: above 0 is lenient, below 0 strict", scores - grades, seed=seed),
        Measure("pearson", "correlation with the true grade", pearson(scores, grades)),
        Measure("spearman", "correlation of the ranks", spearman(scores, grades)),
        mean_of("exact", "share that is the true grade", within(scores, grades), seed=seed),
        mean_of("within_0.1", "share at most 0.1 away", within(scores, grades, 0.1), seed=seed),
        Measure("calibration_error", band_about, calibration_error(scores, grades, levels)),
        Measure("outside", "share of scores below 0 or above 1: these are no grades", outside or math.nan),
        failed,
    ]
    right = [one for one in scored if one.item.right]
    sound = [sum(one.item.sound is kind for one in right) for kind in (True, False, None)]
    notes = [
        failed_note,
        f"The reward is the same for all {len(scored):,} answers." if len(scored) > 1 and not np.ptp(scores) else "",
        ""
        if sound[0] and sound[1]
        else f"auc, f1 and others compare sound and unsound right answers: there are {sound[0]:,} sound, {sound[1]:,}"
        f" unsound and {sound[2]:,} unknown ones.",
    ]
    bands, in_order = _bands(scored, levels)
    known = [one for one in right if one.item.sound is not None]
    detection, detection_tables = _detection(known, threshold, seed)
    consistent, consistency_tables = measure_consistency(verdicts, "answers", seed)
    metrics = metrics_of([*rows, *detection, *consistent]) | in_order | {"answers": float(len(verdicts))}
    tables = [measures_table("grades", rows, "answers", notes), bands, *detection_tables, *consistency_tables]
    return metrics, tables


def _bands(scored: Sequence[Verdicts[Graded]], levels: int) -> tuple[Table, dict[str, float]]:
    """Return the table by score, and whether the mean grade rises and the share of unsound answers falls with it."""
    level_of = levels_of_scores([one.scores[0] for one in scored], levels)
    rows: list[tuple[float, int, float, float, float, int, float]] = []
    for level in sorted(set(level_of.tolist())):
        band = [one for one, at in zip(scored, level_of, strict=True) if at == level]
        scores, grades = [float(one.scores[0]) for one in band], [one.item.grade for one in band]
        right = [one.item.sound for one in band if one.item.right]
        unsound = false_discovery_rate([sound for sound in right if sound is not None])
        deviation = mean_absolute_deviation(scores, grades)
        means = float(np.mean(scores)), float(np.mean(grades))
        rows.append((level / levels, len(band), *means, deviation, len(right), unsound))
    columns: Columns = {
        "score": "number", "answers": "count", "mean score": "number", "mean grade": "number", "deviation": "number",
        "right answers": "count", "unsound of these": "share",
    }  # fmt: skip
    shares = [-row[6] for row in rows if not math.isnan(row[6])]
    series = {"grade_rises": [row[3] for row in rows], "unsound_falls": shares}
    metrics = {name: _rises(values) for name, values in series.items() if len(values) > 1}
    return Table("by score", columns, rows), metrics


def _rises(values: Sequence[float]) -> float:
    return float(all(later >= earlier - 1e-12 for earlier, later in pairwise(values)))


def _detection(right: Sequence[Verdicts[Graded]], threshold: float, seed: int) -> tuple[list[Measure], list[Table]]:
    """Measure how well low scores detect right answers with unsound reasoning."""
    scores = np.array([one.scores[0] for one in right])
    unsound = np.array([not one.item.sound for one in right], dtype=bool)
    share = mean_of("unsound", "share of right answers that are unsound", unsound, seed=seed)
    best = best_threshold(scores, unsound)
    if best is None:
        return [share], []
    given = flagged_below(scores, unsound, threshold)
    measures = [
        share,
        Measure("auc", "chance that a sound answer scores above an unsound one", roc_auc(-scores, unsound)),
        Measure("f1", f"F1 of flagging scores below {threshold:g}", given.f1),
        Measure("precision", "share of the flagged that are unsound", given.precision),
        Measure("recall", "share of the unsound that are flagged", given.recall),
        Measure("f1_best", f"F1 at the best threshold, {best.threshold:.3g}", best.f1),
        Measure("threshold_best", "the best threshold, chosen on these answers", best.threshold),
    ]
    note = f"Flagging every one of them has F1 {flagged_below(scores, unsound, math.inf).f1:.3f}."
    title = "detecting right answers with unsound reasoning"
    return measures, [measures_table(title, measures, "right answers", [note])]


# ---- pairs: a chosen and a rejected answer --------------------------------------------------------------------------


def measure_pairs(
    verdicts: Sequence[Verdicts[Preference]], *, ties: TieCredit = "wrong", seed: int = 0
) -> MetricsAndTables:
    """Measure how often the chosen answer scores higher than the rejected one, with RewardBench's arithmetic."""
    decided = [one for one in verdicts if not one.item.tied]
    scored = [one for one in decided if one.ok]
    margins = [_margin(one) for one in scored]
    failed, failed_note = _failed(decided, "pairs")
    wrong, half = ([_credit(one, credit) for one in scored] for credit in ("wrong", "half"))
    rows = [
        mean_of("accuracy", "how often the chosen answer scores higher; a tie is wrong", wrong, seed=seed),
        mean_of("accuracy_half", "the same; a tie is half right", half, seed=seed),
        mean_of(
            "accuracy_all",
            "accuracy with pairs that failed as wrong",
            [*wrong, *([0.0] * (len(decided) - len(scored)))],
            seed=seed,
        ),
        mean_of("ties", "share of pairs with equal scores", [margin == 0 for margin in margins], seed=seed),
        mean_of("margin", "how much higher the chosen answer scores", margins, seed=seed),
        failed,
    ]
    left_out = len(verdicts) - len(decided)
    notes = [
        failed_note,
        f"{left_out:,} pairs without a better answer are left out." if left_out else "",
        "The reward is the same for both answers of every pair." if scored and not any(margins) else "",
    ]
    consistent, consistency_tables = measure_consistency(decided, "pairs", seed)
    metrics = metrics_of([*rows, *consistent]) | {"pairs": float(len(verdicts))}
    tables = [measures_table("pairs", rows, "pairs", notes)]
    by_subset, accuracies = _subsets(decided, ties)
    tables += [by_subset] if len(accuracies) > 1 else []
    if sections := section_scores(accuracies):
        metrics |= {f"section/{name.lower().replace(' ', '-')}": value for name, value in sections.items()}
        metrics["score"] = overall_score(sections)
        tables.append(_sections(sections, accuracies))
    tables += [_by_length(scored, ties)] if scored else []
    return metrics, [*tables, *consistency_tables]


def _margin(one: Verdicts[Preference]) -> float:
    return float(one.scores[0] - one.scores[1])


def _credit(one: Verdicts[Preference], ties: str) -> float:
    margin = _margin(one)
    return (0.5 if ties == "half" else 0.0) if margin == 0 else float(margin > 0)


def subset_of(prompt: Prompt) -> str:
    """Return the subset of a prompt: the column `subset`, or else its source."""
    named = prompt.info.get("subset")
    return named if isinstance(named, str) and named else prompt.source or "all"


def _accuracy(pairs: Sequence[Verdicts[Preference]], ties: TieCredit) -> float:
    return float(np.mean([_credit(one, ties) for one in pairs])) if pairs else math.nan


def _subsets(decided: Sequence[Verdicts[Preference]], ties: TieCredit) -> tuple[Table, dict[str, float]]:
    by_name: dict[str, list[Verdicts[Preference]]] = {}
    for one in decided:
        by_name.setdefault(subset_of(one.item.prompt), []).append(one)
    accuracies: dict[str, float] = {}
    rows = []
    for name, some in sorted(by_name.items()):
        scored = [one for one in some if one.ok]
        accuracies[name] = _accuracy(scored, ties)
        tied = sum(_margin(one) == 0 for one in scored)
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


def _by_length(scored: Sequence[Verdicts[Preference]], ties: TieCredit) -> Table:
    longer = [np.sign(len(one.item.chosen) - len(one.item.rejected)) for one in scored]
    rows = []
    for name, sign in (("longer", 1), ("as long", 0), ("shorter", -1)):
        some = [one for one, by in zip(scored, longer, strict=True) if by == sign]
        rows += [(name, len(some), _accuracy(some, ties))] if some else []
    columns: Columns = {"the chosen answer is": "text", "pairs": "count", "accuracy": "share"}
    note = "A reward that prefers long answers is right in the first row and wrong in the last."
    return Table("length", columns, rows, note)


# ---- consistency of repeated verdicts, and of verdicts on other orders ----------------------------------------------


def measure_consistency(verdicts: Sequence[Verdicts[Item]], items: str, seed: int) -> tuple[list[Measure], list[Table]]:
    """Measure whether a repeat, and another order of the answers, changes the verdict; incomplete ones are left out."""
    repeats = [known for one in verdicts if len(known := _complete([one.scores, *one.repeats])) > 1]
    complete = [[(order, s) for order, s in one.orders if not np.isnan(s).any()] for one in verdicts]
    orders_G = [[order for order, _ in some] for some in complete if len(some) > 1]
    scores_G = [np.array([scores for _, scores in some]) for some in complete if len(some) > 1]
    measures, tables = list[Measure](), list[Table]()
    if scores_G:
        changed, flipped = zip(*map(changed_relations, scores_G), strict=True)
        effects, counts = position_effects(scores_G, [np.argsort(orders, axis=1) for orders in orders_G])
        best = list(map(changed_best, scores_G))
        measures += [
            mean_of("order_changed", "chance that another order changes the relation of a pair", changed, seed=seed),
            mean_of("order_flipped", "chance that another order reverses a pair", flipped, seed=seed),
            mean_of("order_best_changed", "chance that another order changes which is best", best, seed=seed),
            Measure("order_bias", "what the best position adds to the score, over the worst", float(np.ptp(effects))),
        ]
        columns: Columns = {"position": "count", "adds to the score": "number", "scores": "count"}
        rows = [(i + 1, *one) for i, one in enumerate(zip(effects.tolist(), counts.tolist(), strict=True))]
        note = "The effect of a position, without the answers' own quality."
        tables.append(Table("position bias", columns, rows, note))
    if repeats:
        same, spread = zip(*map(repeat_consistency, repeats), strict=True)
        reordered = [changed_relations(one)[0] for one in repeats]
        measures += [
            mean_of("repeat_same", "chance that two verdicts on an answer are equal", same, seed=seed),
            mean_of("repeat_spread", "standard deviation of the verdicts on an answer", spread, seed=seed),
            mean_of("repeat_changed", "chance that a repeat changes the relation of a pair", reordered, seed=seed),
        ]
    return measures, [measures_table("consistency", measures, items), *tables] if measures else []


def _complete(verdicts: Sequence[Values]) -> Values:
    """Return the verdicts on one item without a failure, [K, N]."""
    return np.array([one for one in verdicts if not np.isnan(one).any()])
