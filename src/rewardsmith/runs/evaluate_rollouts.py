"""`rewardsmith evaluate-policy`: measure the policy that wrote stored rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

from pydantic import Field

from rewardsmith.config import Chosen
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.jobs import JobContext, Result
from rewardsmith.rewards.tree import check
from rewardsmith.runs.stored_rollouts import RolloutJob, StoredGroup, StoredRollouts
from rewardsmith.trainers.evaluate.evaluate_policy import REASONING, JudgedGroup, at_least, evaluate_policy
from rewardsmith.trainers.evaluate.fault_measures import fault_of
from rewardsmith.trainers.evaluate.scorer import FailureLog, score_rollouts
from rewardsmith.trainers.settings import RewardChoice
from rewardsmith.types import Failure, Score, ScoredGroup

_SKIPPED = Score(failure=Failure("skipped"))

Wanted = Sequence[Sequence[bool]]
"""Which rollouts of each group need a score."""


class EvaluateRollouts(RolloutJob):
    """How good is the policy that wrote stored rollouts, and how many of its right answers rest on sound reasoning?

    Accuracy and pass@k; with a reasoning check also verified accuracy and verified@k, where the answer is right and its
    reasoning holds, and the share of right answers that are unsound.

    `rewardsmith evaluate-policy runs/quickstart --kind validation`

    A judge checks the reasoning now: `rewardsmith evaluate-policy runs/quickstart --reasoning-check judge.toml`

    Both are parts of the stored scores:
    `rewardsmith evaluate-policy runs/rrm --correct-part answer --reasoning-part steps`
    """

    reward: RewardChoice | None = Field(default=None, description="scores the answers now; not set: the stored scores")
    correct_part: str = Field(default="", description="part of the scores that says what is right; not set: all")
    correct_threshold: float = Field(default=1.0, description="a score of at least this is right")
    reasoning_check: RewardChoice | None = Field(default=None, description="scores the reasoning of right answers now")
    reasoning_part: str = Field(default="", description="part of the scores of the reasoning")
    reasoning_threshold: float = Field(default=1.0, description="a reasoning score of at least this is sound")
    concurrency: int = Field(default=32, ge=1, description="groups that are scored at a time")

    async def run(self, context: JobContext) -> Result:
        """Judge the rollouts by stored scores or by rewards, and measure the policy."""
        rollouts = StoredRollouts(self)
        rollouts.count()
        for text in rollouts.incomplete:
            context.log(text)
        groups = list(rollouts)
        logs = [FailureLog("correct")]
        scores = await self._scores(context, groups, "correct_part", self.reward, None)
        _add_failures(logs[0], groups, scores)
        right = [[at_least(score, self.correct_threshold) for score in some] for some in scores]
        sound: list[list[bool | None]] = [[] for _ in groups]
        faults: list[list[str]] = [[] for _ in groups]
        if self.reasoning_check is not None or self.reasoning_part:
            wanted = [[bool(one) for one in some] for some in right]
            scores = await self._scores(context, groups, "reasoning_part", self.reasoning_check, wanted)
            # A wrong answer needs no check of its reasoning.
            checked = [
                [score if needed else _SKIPPED for score, needed in zip(some, needs, strict=bool(some))]
                for some, needs in zip(scores, wanted, strict=True)
            ]
            logs.append(FailureLog(REASONING))
            _add_failures(logs[1], groups, checked)
            sound = [[at_least(score, self.reasoning_threshold) for score in some] for some in checked]
            faults = [list(map(fault_of, some)) for some in checked]
        judged = [
            JudgedGroup(tuple(right[i]), tuple(sound[i]), _place(one), one.group.prompt.source, tuple(faults[i]))
            for i, one in enumerate(groups)
        ]
        return evaluate_policy(judged, seed=context.seed, failures=logs)

    async def _scores(
        self,
        context: JobContext,
        groups: Sequence[StoredGroup],
        setting: str,
        chosen: Chosen | None,
        wanted: Wanted | None,
    ) -> list[Sequence[Score]]:
        """Return the scores of the part that a setting names, of a reward or as stored; [] for a group without any."""
        whole: Sequence[Sequence[Score] | None] = [group.scores for group in groups]
        if chosen is not None:
            reward = context.reward(chosen)
            await check(reward)
            done = count(1)
            whole = await score_rollouts(
                reward,
                [group.group for group in groups],
                wanted,
                concurrency=self.concurrency,
                pause=context.pause,
                tick=lambda: context.progress("scoring", next(done), len(groups), unit="groups"),
            )
        part = getattr(self, setting)
        found: list[Sequence[Score]] = []
        for group, scores in zip(groups, whole, strict=True):
            if scores is None:
                raise UserError(f"{group.place}: no score is stored there. --reward names a reward that scores it now")
            by_name = [{"": score} | dict(score.named_parts()) for score in scores]
            found.append([names[part] for names in by_name] if all(part in names for names in by_name) else [])
        if not any(found) or (wanted is None and not all(found)):
            missing = found.index([])
            known = dict.fromkeys(name for score in whole[missing] or () for name, _ in score.named_parts())
            raise UserError(
                f"--{setting.replace('_', '-')} is {part!r}: {groups[missing].place} has no such part."
                f"{nearest(part, known)} Known parts: {listing(known)}"
            )
        return found


def _add_failures(log: FailureLog, groups: Sequence[StoredGroup], scores: Sequence[Sequence[Score]]) -> None:
    for group, some in zip(groups, scores, strict=True):
        if some:
            log.add(ScoredGroup(group.group, some))


def _place(stored: StoredGroup) -> str:
    """Return the stage, kind and step that a group of a run comes from; "" where there is none."""
    if stored.record is None:
        return ""
    stage = Path(stored.place.rpartition(", ")[0]).stem
    return f"{stage}, {stored.record.kind}, step {stored.record.step}"
