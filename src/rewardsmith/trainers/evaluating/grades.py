"""Do grades mean what they say? Answers with a true grade, each graded alone.

    Graded --score--> GradedAnswer --measure--> Evaluation

What matters most is whether a judge sees through a right answer that was reached by unsound steps (RRM, arXiv
2510.07774). Their share is a false discovery rate, FP / (FP + TP): of the answers that are right, those that should not
have been accepted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rewardsmith.algorithms.calibration import (
    Flagged,
    best_threshold,
    calibration_error,
    false_discovery_rate,
    flagged_below,
    levels_of_scores,
    mean_absolute_deviation,
    pearson,
    roc_auc,
    within,
)
from rewardsmith.algorithms.consistency import repeat_consistency
from rewardsmith.algorithms.ranks import spearman
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
from rewardsmith.types import Graded

MAIN = ("mad", "bias", "pearson", "calibration_error", "auc", "f1", "f1_best", "failed")


@dataclass(frozen=True)
class GradedAnswer:
    """What a reward said of one answer.

    Attributes:
        grade: the true one, 0 to 1.
        said: the reward's; NaN where it had none.
        right: whether the final answer is right; None where unknown.
        sound: whether every step holds; None where unknown.
        repeats: further verdicts on the same.
    """

    grade: float
    said: float
    right: bool | None = None
    sound: bool | None = None
    repeats: tuple[float, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it has a score."""
        return not math.isnan(self.said)


async def evaluate_grades(
    name: str,
    graded: Sequence[Graded],
    scorer: Scorer,
    *,
    threshold: float = 0.5,
    levels: int = 10,
    repeats: int = 1,
    seed: int = 0,
) -> Evaluation:
    """Score graded answers, and measure how well the scores are the grades.

    Args:
        name: of the evaluation.
        graded: answers with true grades.
        scorer: the reward; its scores should lie between 0 and 1.
        threshold: a right answer that scores below it is flagged as unsound.
        levels: scores are looked at in bands around 0, 1/levels, …, 1.
        repeats: how many verdicts on each answer are compared; below 2 that is not asked.
        seed: of the intervals.
    """
    groups = [group_of(item.prompt, [item.response]) for item in graded]
    said = await scorer.score(groups)
    again = [await scorer.score_again(groups, number) for number in range(1, repeats)]
    answers = [
        GradedAnswer(
            item.grade, float(said[i][0]), item.right, item.sound, tuple(float(repeat[i][0]) for repeat in again)
        )
        for i, item in enumerate(graded)
    ]
    metrics, tables = measure_grades(answers, threshold=threshold, levels=levels, seed=seed)
    return Evaluation(name, "grades", metrics | scorer.notes.counts(), MAIN, tables, scorer.notes.details)


def measure_grades(
    answers: Sequence[GradedAnswer], *, threshold: float = 0.5, levels: int = 10, seed: int = 0
) -> tuple[dict[str, float], list[Table]]:
    """Return all that the verdicts say about the reward: metrics by name, and tables."""
    scored = [answer for answer in answers if answer.ok]
    said, grades = (np.array([getattr(a, side) for a in scored]) for side in ("said", "grade"))
    deviations = [*_deviations(said, grades, levels, seed), *_repeats(answers, seed)]
    failed = len(answers) - len(scored)
    share = failed / len(answers) if answers else 0.0
    rows = [*deviations, Measure("failed", "share of answers without a score", share, items=len(answers))]
    notes = [
        f"{failed:,} of {len(answers):,} answers could not be scored and are in no other measure." if failed else "",
        f"The reward is the same for all {len(scored):,} answers." if len(scored) > 1 and not np.ptp(said) else "",
        _lacking([answer for answer in scored if answer.right]),
    ]
    tables = [table_of("grades", rows, "answers", " ".join(note for note in notes if note))]
    metrics = metrics_of(rows) | {"answers": float(len(answers))}
    bands, rising, falling = _bands(scored, levels)
    tables.append(bands)
    metrics |= {} if rising is None else {"grade_rises": float(rising)}
    metrics |= {} if falling is None else {"unsound_falls": float(falling)}
    right = [answer for answer in scored if answer.right and answer.sound is not None]
    caught, table = _catching(right, threshold, levels, seed)
    return metrics | metrics_of(caught), [*tables, *table]


def _lacking(right: Sequence[GradedAnswer]) -> str:
    """Return which measures of soundness there cannot be, and why; "" where there are all."""
    sound, unsound, unknown = (sum(answer.sound is kind for answer in right) for kind in (True, False, None))
    if sound and unsound:
        return ""
    without = "f1, precision, recall and f1_best" if not unsound else ""
    without = f"{'unsound, ' if not sound + unsound else ''}auc{', ' if without else ''}{without}"
    return (
        f"There is no {without}: they compare right answers that are sound with others that are not. Here are"
        f" {sound:,} and {unsound:,}" + (f", and {unknown:,} of which it is not known." if unknown else ".")
    )


def _deviations(said: NDArray[np.float64], grades: NDArray[np.float64], levels: int, seed: int) -> Iterator[Measure]:
    yield mean_of("mad", "mean absolute deviation from the true grade", np.abs(said - grades), seed=seed)
    yield mean_of("bias", "mean deviation: above 0 is lenient, below 0 strict", said - grades, seed=seed)
    yield Measure("pearson", "correlation with the true grade", pearson(said, grades), items=len(said))
    yield Measure("spearman", "correlation of the ranks", spearman(said, grades), items=len(said))
    yield mean_of("exact", "share that is the true grade", within(said, grades), seed=seed)
    yield mean_of("within_0.1", "share at most 0.1 away", within(said, grades, 0.1), seed=seed)
    about = f"mean distance of score and grade over bands of 1/{levels}"
    yield Measure("calibration_error", about, calibration_error(said, grades, levels), items=len(said))
    outside = float(((said < 0) | (said > 1)).mean()) if len(said) else 0.0
    if outside:
        yield Measure("outside", "share of scores below 0 or above 1: these are no grades", outside, items=len(said))


def _repeats(answers: Sequence[GradedAnswer], seed: int) -> Iterator[Measure]:
    known = [[one for one in (a.said, *a.repeats) if not math.isnan(one)] for a in answers if a.repeats]
    found = [repeat_consistency(np.array(verdicts)[:, None]) for verdicts in known if len(verdicts) > 1]
    if not found:
        return
    same, spread = zip(*found, strict=True)
    yield mean_of("repeat_same", "chance that two verdicts on an answer are equal", same, seed=seed)
    yield mean_of("repeat_spread", "standard deviation of the verdicts on an answer", spread, seed=seed)


def _bands(scored: Sequence[GradedAnswer], levels: int) -> tuple[Table, bool | None, bool | None]:
    """Return the table by score, whether the mean grade rises with it, and whether the share of unsound falls."""
    band = levels_of_scores([answer.said for answer in scored], levels)
    rows: list[tuple[float, int, float, float, float, int, float]] = []
    for level in range(levels + 1):
        there = [answer for answer, at in zip(scored, band, strict=True) if at == level]
        if not there:
            continue
        said, grades = ([getattr(a, side) for a in there] for side in ("said", "grade"))
        right = [a.sound for a in there if a.right]
        rows.append(
            (
                level / levels,
                len(there),
                float(np.mean(said)),
                float(np.mean(grades)),
                mean_absolute_deviation(said, grades),
                len(right),
                false_discovery_rate([sound for sound in right if sound is not None]),
            )
        )
    columns = (
        Column("score"),
        Column("answers", "count"),
        Column("mean score"),
        Column("mean grade"),
        Column("deviation"),
        Column("right answers", "count"),
        Column("unsound of these", "share"),
    )
    unknown = sum(bool(answer.right) and answer.sound is None for answer in scored)
    unsound = [row[-1] for row in rows if not math.isnan(row[-1])]
    rising = _monotone([row[3] for row in rows]) if len(rows) > 1 else None
    falling = _monotone([-share for share in unsound]) if len(unsound) > 1 else None
    said_of = [
        f"The mean grade {'rises' if rising else 'does not rise'} with every score." if rising is not None else "",
        f"The share of unsound among right answers {'never rises' if falling else 'rises somewhere'} with the score."
        if falling is not None
        else "",
        f"Of {unknown:,} right answers it is not known whether they are sound." if unknown else "",
    ]
    return Table("by score", columns, rows, " ".join(text for text in said_of if text)), rising, falling


def _monotone(values: Sequence[float]) -> bool:
    return all(later >= earlier - 1e-12 for earlier, later in pairwise(values))


def _catching(
    right: Sequence[GradedAnswer], threshold: float, levels: int, seed: int
) -> tuple[list[Measure], list[Table]]:
    """Measure how well low scores catch right answers with unsound steps."""
    said = np.array([answer.said for answer in right])
    unsound = np.array([not answer.sound for answer in right], dtype=bool)
    share = mean_of("unsound", "share of right answers that are unsound", unsound, seed=seed)
    best = best_threshold(said, unsound)
    if best is None:
        return [share], []
    at = flagged_below(said, unsound, threshold)
    measures = [
        share,
        Measure(
            "auc", "chance that a sound one scores above an unsound one", roc_auc(-said, unsound), items=len(right)
        ),
        Measure("f1", f"F1 of flagging scores below {threshold:g}", at.f1, items=len(right)),
        Measure("precision", "share of the flagged that are unsound", at.precision, items=len(right)),
        Measure("recall", "share of the unsound that are flagged", at.recall, items=len(right)),
        Measure("f1_best", f"F1 at the best threshold, {best.threshold:.3g}", best.f1, items=len(right)),
        Measure("threshold_best", "which that is; chosen on these answers", best.threshold, items=len(right)),
    ]
    return measures, [
        table_of(
            "catching right answers with unsound steps",
            measures,
            "right answers",
            f"Flagging every one of them has F1 {flagged_below(said, unsound, math.inf).f1:.3f}.",
        ),
        _thresholds(said, unsound, [at, best], levels),
    ]


def _thresholds(said: NDArray[np.float64], unsound: NDArray[np.bool_], more: Sequence[Flagged], levels: int) -> Table:
    marks = {more[0].threshold: "given", more[1].threshold: "best"}
    every = {k / levels: flagged_below(said, unsound, k / levels) for k in range(1, levels + 1)}
    every |= {one.threshold: one for one in more}
    columns = (
        Column("flag below"),
        Column("flagged", "count"),
        Column("precision", "share"),
        Column("recall", "share"),
        Column("F1"),
        Column("", "text"),
    )
    rows = [
        (at, one.flagged, one.precision, one.recall, one.f1, marks.get(at, "")) for at, one in sorted(every.items())
    ]
    return Table("by threshold, over right answers", columns, rows)
