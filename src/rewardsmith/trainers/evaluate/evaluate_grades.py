"""Do grades mean what they say? Answers with a true grade, each graded alone.

A right answer may rest on unsound reasoning (RRM, arXiv 2510.07774). The share of such answers among the right ones is
a false discovery rate, FP / (FP + TP), and a good grade detects them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rewardsmith.algorithms.judge_statistics import (
    best_threshold,
    calibration_error,
    false_discovery_rate,
    flagged_below,
    levels_of_scores,
    mean_absolute_deviation,
    roc_auc,
    within,
)
from rewardsmith.algorithms.ranks import pearson, spearman
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
    repeat_measures,
)
from rewardsmith.trainers.evaluate.scorer import Scorer, group_of
from rewardsmith.types import Graded

MAIN = ("mad", "bias", "pearson", "calibration_error", "auc", "f1", "f1_best", "failed")


@dataclass(frozen=True)
class GradedAnswer:
    """An answer and its score."""

    grade: float  # the true one, 0 to 1
    score: float  # of the reward; NaN where it failed
    right: bool | None = None  # whether the final answer is right; None where unknown
    sound: bool | None = None  # whether every step holds; None where unknown
    repeats: tuple[float, ...] = ()  # further verdicts

    @property
    def ok(self) -> bool:
        """Whether it has a score."""
        return not math.isnan(self.score)


async def evaluate_grades(
    graded: Sequence[Graded], scorer: Scorer, settings: RewardEvalSettings, seed: int = 0
) -> Result:
    """Score graded answers, and measure how well the scores, which should lie in [0, 1], are the grades."""
    groups = [group_of(item.prompt, [item.response]) for item in graded]
    scores = await scorer.score(groups)
    again = [await scorer.score(groups, repeat=number) for number in range(1, settings.repeats)]
    answers = [
        GradedAnswer(item.grade, float(scores[i][0]), item.right, item.sound, tuple(float(r[i][0]) for r in again))
        for i, item in enumerate(graded)
    ]
    metrics, tables = measure_grades(answers, threshold=settings.threshold, levels=settings.levels, seed=seed)
    return evaluation_result("grades", metrics, MAIN, tables, [scorer.failures], metrics["failed"])


def measure_grades(
    answers: Sequence[GradedAnswer], *, threshold: float = 0.5, levels: int = 10, seed: int = 0
) -> tuple[dict[str, float], list[Table]]:
    """Return metrics by name, and tables."""
    scored = [answer for answer in answers if answer.ok]
    scores, grades = np.array([a.score for a in scored]), np.array([a.grade for a in scored])
    failed = len(answers) - len(scored)
    verdicts = [complete(np.array([[one] for one in (a.score, *a.repeats)])) for a in answers if a.repeats]
    rows = [
        *_deviations(scores, grades, levels, seed),
        *repeat_measures([one for one in verdicts if one is not None], seed),
        Measure("failed", "share of answers without a score", failed / max(1, len(answers)), items=len(answers)),
    ]
    notes = [
        f"{failed:,} of {len(answers):,} answers could not be scored and are in no other measure." if failed else "",
        f"The reward is the same for all {len(scored):,} answers." if len(scored) > 1 and not np.ptp(scores) else "",
        _missing_detection([answer.sound for answer in scored if answer.right]),
    ]
    bands, in_order = _bands(scored, levels)
    right = [answer for answer in scored if answer.right and answer.sound is not None]
    detection, tables = _detection(right, threshold, levels, seed)
    metrics = metrics_of([*rows, *detection]) | in_order | {"answers": float(len(answers))}
    return metrics, [measures_table("grades", rows, "answers", notes), bands, *tables]


def _missing_detection(sound: Sequence[bool | None]) -> str:
    """Return which measures of detection do not exist for right answers of this soundness; "" where all do."""
    counts = [sound.count(kind) for kind in (True, False, None)]
    if counts[0] and counts[1]:
        return ""
    missing = [
        *(["unsound"] if not counts[0] + counts[1] else []),
        "auc",
        *(["f1", "precision", "recall", "f1_best"] if not counts[1] else []),
    ]
    return (
        f"Not available: {', '.join(missing)}, which compare sound and unsound right answers. There are {counts[0]:,}"
        f" sound, {counts[1]:,} unsound and {counts[2]:,} unknown ones."
    )


def _deviations(scores: Values, grades: Values, levels: int, seed: int) -> Iterator[Measure]:
    count = len(scores)
    yield mean_of("mad", "mean absolute deviation from the true grade", np.abs(scores - grades), seed=seed)
    yield mean_of("bias", "mean deviation: above 0 is lenient, below 0 strict", scores - grades, seed=seed)
    yield Measure("pearson", "correlation with the true grade", pearson(scores, grades), items=count)
    yield Measure("spearman", "correlation of the ranks", spearman(scores, grades), items=count)
    yield mean_of("exact", "share that is the true grade", within(scores, grades), seed=seed)
    yield mean_of("within_0.1", "share at most 0.1 away", within(scores, grades, 0.1), seed=seed)
    about = f"mean distance of score and grade over bands of 1/{levels}"
    yield Measure("calibration_error", about, calibration_error(scores, grades, levels), items=count)
    if outside := float(np.mean((scores < 0) | (scores > 1))) if count else 0.0:
        yield Measure("outside", "share of scores below 0 or above 1: these are no grades", outside, items=count)


def _bands(scored: Sequence[GradedAnswer], levels: int) -> tuple[Table, dict[str, float]]:
    """Return the table by score, and whether the mean grade rises and the share of unsound answers falls with it."""
    level_of = levels_of_scores([answer.score for answer in scored], levels)
    rows: list[tuple[float, int, float, float, float, int, float]] = []
    for level in sorted(set(level_of.tolist())):
        band = [answer for answer, at in zip(scored, level_of, strict=True) if at == level]
        scores, grades = [a.score for a in band], [a.grade for a in band]
        right = [a.sound for a in band if a.right]
        deviation = mean_absolute_deviation(scores, grades)
        unsound = false_discovery_rate([sound for sound in right if sound is not None])
        means = float(np.mean(scores)), float(np.mean(grades))
        rows.append((level / levels, len(band), *means, deviation, len(right), unsound))
    columns: Columns = {
        "score": "number", "answers": "count", "mean score": "number", "mean grade": "number", "deviation": "number",
        "right answers": "count", "unsound of these": "share",
    }  # fmt: skip
    metrics: dict[str, float] = {}
    notes = []
    if len(rows) > 1:
        metrics["grade_rises"] = _rises([row[3] for row in rows])
        notes.append(f"The mean grade {'rises' if metrics['grade_rises'] else 'does not rise'} with every score.")
    shares = [row[6] for row in rows if not math.isnan(row[6])]
    if len(shares) > 1:
        metrics["unsound_falls"] = _rises([-share for share in shares])
        verb = "never rises" if metrics["unsound_falls"] else "rises somewhere"
        notes.append(f"The share of unsound among right answers {verb} with the score.")
    unknown = sum(bool(answer.right) and answer.sound is None for answer in scored)
    notes += [f"The soundness of {unknown:,} right answers is unknown."] if unknown else []
    return Table("by score", columns, rows, " ".join(notes)), metrics


def _rises(values: Sequence[float]) -> float:
    return float(all(later >= earlier - 1e-12 for earlier, later in pairwise(values)))


def _detection(
    right: Sequence[GradedAnswer], threshold: float, levels: int, seed: int
) -> tuple[list[Measure], list[Table]]:
    """Measure how well low scores detect right answers with unsound reasoning."""
    scores = np.array([answer.score for answer in right])
    unsound = np.array([not answer.sound for answer in right], dtype=bool)
    share = mean_of("unsound", "share of right answers that are unsound", unsound, seed=seed)
    best = best_threshold(scores, unsound)
    if best is None:
        return [share], []
    given, count = flagged_below(scores, unsound, threshold), len(right)
    auc = roc_auc(-scores, unsound)
    measures = [
        share,
        Measure("auc", "chance that a sound answer scores above an unsound one", auc, items=count),
        Measure("f1", f"F1 of flagging scores below {threshold:g}", given.f1, items=count),
        Measure("precision", "share of the flagged that are unsound", given.precision, items=count),
        Measure("recall", "share of the unsound that are flagged", given.recall, items=count),
        Measure("f1_best", f"F1 at the best threshold, {best.threshold:.3g}", best.f1, items=count),
        Measure("threshold_best", "the best threshold, chosen on these answers", best.threshold, items=count),
    ]
    every = {k / levels: flagged_below(scores, unsound, k / levels) for k in range(1, levels + 1)}
    every |= {given.threshold: given, best.threshold: best}
    marks = {given.threshold: "given", best.threshold: "best"}
    columns: Columns = {
        "flag below": "number", "flagged": "count", "precision": "share", "recall": "share", "F1": "number",
        "": "text",
    }  # fmt: skip
    rows = [
        (at, one.flagged, one.precision, one.recall, one.f1, marks.get(at, "")) for at, one in sorted(every.items())
    ]
    note = f"Flagging every one of them has F1 {flagged_below(scores, unsound, math.inf).f1:.3f}."
    return measures, [
        measures_table("detecting right answers with unsound reasoning", measures, "right answers", [note]),
        Table("by threshold, over right answers", columns, rows),
    ]
