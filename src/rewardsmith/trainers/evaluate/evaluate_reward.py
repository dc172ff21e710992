"""`evaluate_reward`, a stage and a command: a reward measured against known truth."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from rewardsmith.data.row_sources import RowSource
from rewardsmith.data.source import Reads
from rewardsmith.errors import UserError
from rewardsmith.jobs import Job, JobContext, Result
from rewardsmith.trainers.evaluate.eval_measures import evaluation_result, measure_sources, sources_table
from rewardsmith.trainers.evaluate.reward_measures import (
    MetricsAndTables,
    TieCredit,
    Verdicts,
    measure_grades,
    measure_pairs,
    measure_rankings,
    subset_of,
)
from rewardsmith.trainers.evaluate.scorer import Scorer, group_of
from rewardsmith.trainers.settings import DataName, RewardChoice
from rewardsmith.trainers.trainer import Count, derive, held_out

RewardEvalKind = Literal["rankings", "grades", "pairs"]

DEFAULT_ITEMS = 512
"""Items of a built-in world, which has no end."""


class RewardEval(NamedTuple):
    """A kind of evaluation."""

    reads: Reads
    unit: str
    answers: Callable[[Any], Sequence[str]]  # of an item, which are scored together
    measure: Callable[..., MetricsAndTables]
    settings: tuple[str, ...]  # of the job, that `measure` takes
    main: tuple[str, ...]  # metrics by which evaluations are compared


REWARD_EVALS: dict[RewardEvalKind, RewardEval] = {
    "rankings": RewardEval(
        "rankings", "groups", lambda ranking: ranking.candidates, measure_rankings, (),
        ("accuracy", "accuracy_all", "accuracy_half", "kendall", "top1", "gain@2", "gain@4", "failed"),
    ),
    "grades": RewardEval(
        "graded", "answers", lambda graded: [graded.response], measure_grades, ("threshold", "levels"),
        ("mad", "bias", "pearson", "calibration_error", "auc", "f1", "f1_best", "failed"),
    ),
    "pairs": RewardEval(
        "preferences", "pairs", lambda pair: [pair.chosen, pair.rejected], measure_pairs, ("ties",),
        ("score", "accuracy", "accuracy_all", "accuracy_half", "ties", "failed"),
    ),
}  # fmt: skip


class EvaluateReward(Job):
    """Measure a reward against known truth; nothing is trained.

    KIND is what the data has. rankings: does the reward order the answers of a group as their true scores do? grades:
    do its grades mean what they say, and does it detect right answers with unsound reasoning? pairs: does it prefer
    the better of two answers? An item that could not be scored is counted, and is in no mean.

    `rewardsmith evaluate rankings groups.jsonl --reward judge.toml --orders 4 --repeats 3`

    `rewardsmith evaluate grades graded.jsonl --reward judge.toml --threshold 0.7`

    `rewardsmith evaluate pairs reward-bench.parquet --reward judges/several --ties half`

    Other column names: `--source columns.candidates=mt_texts`
    """

    arguments: ClassVar[tuple[str, ...]] = ("kind", "data")

    name: str = Field(default="evaluate_reward", min_length=1, description="name of this stage in the run's files")
    kind: RewardEvalKind = Field(description="what the data has: groups with scores, answers with grades, or pairs")
    data: DataName = Field(description="data source; the same items in every run and stage")
    reward: RewardChoice = Field(description="the reward to measure")
    items: Count | None = Field(
        default=None, description=f"how many, or all; not set: all of a file, {DEFAULT_ITEMS} of another source"
    )
    orders: int = Field(default=1, ge=1, description="also show each group in K orders: does the position matter?")
    repeats: int = Field(default=1, ge=1, description="score K times, past the cache: are the verdicts the same?")
    threshold: float = Field(default=0.5, description="grades: flag a right answer that scores below it as unsound")
    levels: int = Field(default=10, ge=1, le=100, description="grades: bands of scores around 0, 1/levels, …, 1")
    ties: TieCredit = Field(
        default="wrong", description="pairs: credit for equal scores in subsets and sections; RewardBench: wrong"
    )
    concurrency: int = Field(default=256, ge=1, description="groups that are scored at a time")

    @property
    def reads(self) -> Reads:
        """What it reads of its data."""
        return REWARD_EVALS[self.kind].reads

    async def run(self, context: JobContext) -> Result:
        """Score groups whose truth is known, and measure the reward."""
        source = context.source(self.data)
        read = getattr(source, self.reads, None)
        if read is None:
            raise UserError(f"data.{self.data} has no {self.reads}, which kind = {self.kind!r} measures")
        if hasattr(source, "check"):
            source.check(of=self.reads)
        default: Count = "all" if isinstance(source, RowSource) else DEFAULT_ITEMS
        items = held_out(read, default if self.items is None else self.items, self.data)
        scorer = Scorer(self.reward, context.model, log=context.log, concurrency=self.concurrency, pause=context.pause)
        await scorer.check()
        # The seed is that of the data and not of the stage, so that evaluations can be compared.
        seed = derive(context.seed, "evaluate", self.data)
        unit = REWARD_EVALS[self.kind].unit
        return await self.evaluate(
            items, scorer, seed, lambda done, total: context.progress("scoring", done, total, unit=unit)
        )

    async def evaluate(
        self,
        items: Sequence[Any],
        scorer: Scorer,
        seed: int = 0,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Result:
        """Measure a reward on items of the kind; a `UserError` if no model of it was called.

        The answers of an item form a group in a drawn order, so that a judge that prefers the first gains nothing.
        """
        kind = REWARD_EVALS[self.kind]
        answers, rng = [kind.answers(item) for item in items], random.Random(seed)
        drawn = [(i, tuple(rng.sample(range(len(texts)), len(texts)))) for i, texts in enumerate(answers)]
        spread = [
            (i, order)
            for i, texts in enumerate(answers)
            if self.orders > 1 and len(texts) > 1
            for order in spread_orders(len(texts), self.orders, rng)
        ]
        done, total = 0, self.repeats * len(drawn) + len(spread)

        def tick() -> None:
            nonlocal done
            done += 1
            progress(done, total)

        async def score(shown: Sequence[tuple[int, Sequence[int]]], **how: Any) -> list[Any]:
            groups = (group_of(items[i].prompt, [answers[i][at] for at in order]) for i, order in shown)
            found = await scorer.score(groups, **how, tick=tick)
            return [values[np.argsort(order)] for (_, order), values in zip(shown, found, strict=True)]

        first, *again = [await score(drawn, repeat=number) for number in range(self.repeats)]
        orders: list[list[tuple[Sequence[int], Any]]] = [[] for _ in items]
        for (i, order), values in zip(spread, await score(spread, in_given_order=True), strict=True):
            orders[i].append((order, values))
        verdicts = [
            Verdicts(item, first[i], [repeat[i] for repeat in again], orders[i]) for i, item in enumerate(items)
        ]
        settings = {name: getattr(self, name) for name in kind.settings}
        metrics, tables = kind.measure(verdicts, **settings, seed=seed)

        def measured(at: Sequence[int]) -> dict[str, float]:
            found, _ = kind.measure([verdicts[i] for i in at], **settings, seed=seed)
            return {name: found[name] for name in (kind.unit, *kind.main) if name in found}

        by_source = measure_sources([subset_of(item.prompt) for item in items], measured)
        metrics |= by_source
        tables += [] if self.kind == "pairs" else sources_table(by_source)  # pairs have a table by subset
        if metrics["failed"] < 1:  # else the causes are reported
            scorer.require_called()
        return evaluation_result(self.kind, metrics, kind.main, tables, [scorer.failures], metrics["failed"])


def spread_orders(n: int, count: int, rng: random.Random) -> list[tuple[int, ...]]:
    """Return up to `count` distinct orders of n answers; each n of them put every answer into every position.

    They are the rotations of random orders.
    """

    def rotations() -> Iterator[tuple[int, ...]]:
        used: set[tuple[int, ...]] = set()
        while len(used) < math.factorial(min(n, 12) - 1):
            rest, shifts = list(range(1, n)), list(range(n))
            rng.shuffle(rest)
            ring = (0, *rest)
            if ring in used:  # rotations of one ring are those of no other
                continue
            used.add(ring)
            rng.shuffle(shifts)
            yield from (ring[shift:] + ring[:shift] for shift in shifts)

    return list(islice(rotations(), min(count, math.factorial(min(n, 12)))))
