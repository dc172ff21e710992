"""The evaluations that are stages of a run: `evaluate` (a policy) and `evaluate_reward`, which is a command too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from math import factorial
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from rewardsmith.data import Jsonl, Parquet
from rewardsmith.data.source import Reads
from rewardsmith.engines.protocol import Sampling
from rewardsmith.errors import UserError
from rewardsmith.jobs import Job, JobContext, Result
from rewardsmith.rewards.tree import check
from rewardsmith.trainers.evaluate.eval_measures import RewardEvalSettings, evaluation_result
from rewardsmith.trainers.evaluate.evaluate_grades import evaluate_grades
from rewardsmith.trainers.evaluate.evaluate_pairs import evaluate_pairs
from rewardsmith.trainers.evaluate.evaluate_policy import (
    correct_threshold_of,
    evaluate_policy,
    judge_group,
    require_free,
    validate,
)
from rewardsmith.trainers.evaluate.evaluate_rankings import evaluate_rankings
from rewardsmith.trainers.evaluate.scorer import Scorer
from rewardsmith.trainers.settings import DataName, RewardChoice, Stage
from rewardsmith.trainers.trainer import HELD_OUT_SEED, Count, GroupRecord, derive, held_out

RewardEvalKind = Literal["rankings", "grades", "pairs"]

DEFAULT_ITEMS = 512
"""Items of a built-in world, which has no end."""


class RewardEval(NamedTuple):
    """A kind of evaluation: what it reads of its data, what an item is called, and what measures it."""

    reads: Reads
    unit: str
    measure: Callable[[Any, Scorer, RewardEvalSettings, int], Awaitable[Result]]


REWARD_EVALS: dict[RewardEvalKind, RewardEval] = {
    "rankings": RewardEval("rankings", "groups", evaluate_rankings),
    "grades": RewardEval("graded", "answers", evaluate_grades),
    "pairs": RewardEval("preferences", "pairs", evaluate_pairs),
}


class EvaluateReward(RewardEvalSettings):
    """Measure a reward against known truth; nothing is trained.

    KIND is what the data has. rankings: does the reward order the answers of a group as their true scores do? grades:
    do its grades mean what they say, and does it detect right answers with unsound reasoning? pairs: does it prefer
    the better of two answers? An item that could not be scored is counted, and is in no mean.

    `rewardsmith evaluate rankings groups.jsonl --reward judge.toml --orders 4 --repeats 3`

    `rewardsmith evaluate grades graded.jsonl --reward judge.toml --threshold 0.7`

    `rewardsmith evaluate pairs reward-bench.parquet --reward recipes/judges/several.toml --ties half`

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

    @property
    def reads(self) -> Reads:
        """What it reads of its data."""
        return REWARD_EVALS[self.kind].reads

    @model_validator(mode="after")
    def _fits_together(self) -> EvaluateReward:
        if self.kind == "grades" and self.orders > 1:
            raise ValueError("grades have one answer in a group, so there is one order: leave out orders")
        return self

    async def run(self, context: JobContext) -> Result:
        """Score groups whose truth is known, once, and measure the reward."""
        items = self._items(context.source(self.data))
        scored, total = 0, scoring_passes(self.kind, items, self)

        def tick() -> None:
            nonlocal scored
            scored += 1
            context.progress("scoring", scored, total, unit=REWARD_EVALS[self.kind].unit)

        scorer = Scorer(
            self.reward,
            context.model,
            log=context.log,
            concurrency=self.concurrency,
            pause=context.pause,
            tick=tick,
        )
        await scorer.check()
        # The seed is that of the data and not of the stage, so that evaluations can be compared.
        seed = derive(context.seed, "evaluate", self.data)
        return await evaluate_reward(self.kind, items, scorer, self, seed)

    def _items(self, source: Any) -> list[Any]:
        read = getattr(source, self.reads, None)
        if read is None:
            raise UserError(f"data.{self.data} has no {self.reads}, which kind = {self.kind!r} measures")
        if hasattr(source, "check"):
            try:
                source.check(of=self.reads)
            except UserError as error:
                raise UserError(f"{error}{_other_kind(source, self.kind)}") from None
        default: Count = "all" if isinstance(source, Jsonl | Parquet) else DEFAULT_ITEMS
        return held_out(read, default if self.items is None else self.items, self.data)


def _other_kind(source: Any, kind: RewardEvalKind) -> str:
    """Return the kind that the first row of a source looks like, as a hint; "" where it is the right one, or none."""

    def readable(other: RewardEvalKind) -> bool:
        try:
            return next(getattr(source, REWARD_EVALS[other].reads)(HELD_OUT_SEED), None) is not None
        except (UserError, AttributeError):
            return False

    other = None if readable(kind) else next((one for one in REWARD_EVALS if readable(one)), None)
    return f"\nThe rows look like {other}: use kind {other}" if other else ""


async def evaluate_reward(
    kind: RewardEvalKind, items: Sequence[Any], scorer: Scorer, settings: RewardEvalSettings, seed: int = 0
) -> Result:
    """Measure a reward on rankings, graded answers or preferences; a `UserError` if no model of it was called."""
    result = await REWARD_EVALS[kind].measure(items, scorer, settings, seed)
    if result.failed < 1:  # else the causes are reported already
        scorer.require_called()
    return result


def scoring_passes(kind: RewardEvalKind, items: Sequence[Any], settings: RewardEvalSettings) -> int:
    """Return how many groups are scored in all, for a progress bar: a small group has few orders."""
    total = len(items) * settings.repeats
    if settings.orders < 2 or kind == "grades":
        return total
    if kind == "pairs":
        return total + 2 * len(items)
    return total + sum(min(settings.orders, factorial(min(len(item.candidates), 12))) for item in items)


class EvaluateStage(Stage, Job):
    """Sample answers to held-out prompts and score them."""

    rare: ClassVar[frozenset[str]] = frozenset({"correct_threshold", "reasoning_check", "reasoning_threshold"})
    runs_by: ClassVar[str] = Job.runs_by

    name: str = Field(default="evaluate", min_length=1, description="name of this stage in the run's files")
    prompts: Count = Field(default=256, description="how many prompts; all takes every one of the data")
    rollouts_per_prompt: int = Field(default=1, ge=1, description="answers to each prompt")
    correct_threshold: float = Field(default=1.0, description="a reward of at least this counts as right: pass@k")
    sampling: Sampling = Field(default=Sampling(), description="how answers are sampled")
    reward: RewardChoice = Field(description="what scores them")
    reasoning_check: RewardChoice | None = Field(
        default=None, description="a reward for the reasoning of right answers: verified, verified@k, unsound"
    )
    reasoning_threshold: float = Field(default=1.0, description="a reasoning_check of at least this counts as sound")

    async def run(self, context: Any) -> Result:
        """Sample, score, and measure; needs the `Context` of a run."""
        reward = context.reward(self.reward)
        await check(reward)
        reasoning_check = None
        if self.reasoning_check is not None:
            require_free(reward)
            reasoning_check = context.reward(self.reasoning_check)
            await check(reasoning_check)
        seed = derive(context.seed, "evaluate", self.data)
        metrics, scored = await validate(
            context.engine(self.model),
            reward,
            held_out(context.source(self.data).prompts, self.prompts, self.data),
            self.sampling,
            n=self.rollouts_per_prompt,
            seed=seed,
            version=0,
            correct_threshold=self.correct_threshold,
            reasoning_check=reasoning_check,
            reasoning_threshold=self.reasoning_threshold,
            pause=context.pause,
            on_device=partial(context.on_device, self.model),
            report=context.progress,
        )
        none = [None] * self.rollouts_per_prompt
        context.keep([GroupRecord(1, "validation", "", group, none) for group in scored])
        if reasoning_check is None and correct_threshold_of(reward, self.correct_threshold) is None:
            means = [name for name in metrics if name.startswith(("mean@", "best@"))]
            return evaluation_result("policy", metrics, [*means, "failed"], [], [], 0.0)
        threshold = self.reasoning_threshold if reasoning_check else None
        result = evaluate_policy([judge_group(group, self.correct_threshold, threshold) for group in scored], seed=seed)
        return replace(result, metrics={**result.metrics, **metrics}, failed=0.0)
