"""`rewardsmith evaluate-policy`: measure the policy that wrote stored rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from rewardsmith.config import Chosen
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.jobs import JobContext, Result
from rewardsmith.rewards.tree import check
from rewardsmith.runs.stored_rollouts import RolloutJob, StoredGroup, StoredRollouts
from rewardsmith.trainers.evaluate.evaluate_policy import REASONING, JudgedGroup, at_least, evaluate_policy
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
        scores = await self._scores(context, groups, self.reward, "correct_part", logs[0], None)
        right = [[at_least(score, self.correct_threshold) for score in some] for some in scores]
        sound: list[list[bool | None]] = [[] for _ in groups]
        if self.reasoning_check is not None or self.reasoning_part:
            logs.append(FailureLog(REASONING))
            wanted = [[bool(one) for one in some] for some in right]
            scores = await self._scores(context, groups, self.reasoning_check, "reasoning_part", logs[1], wanted)
            sound = [[at_least(score, self.reasoning_threshold) for score in some] for some in scores]
        judged = [JudgedGroup(tuple(right[i]), tuple(sound[i]), _place(one)) for i, one in enumerate(groups)]
        return evaluate_policy(judged, seed=context.seed, failures=logs)

    async def _scores(
        self,
        context: JobContext,
        groups: Sequence[StoredGroup],
        chosen: Chosen | None,
        setting: str,
        log: FailureLog,
        wanted: Wanted | None,
    ) -> list[Sequence[Score]]:
        """Return the scores of the part that a setting names, of a reward or as stored; [] for a group without any."""
        if chosen is not None:
            whole: Sequence[Sequence[Score] | None] = await self._score(context, groups, chosen, wanted)
        else:
            whole = [group.scores for group in groups]
        scores = self._parts(groups, whole, setting, required=wanted is None)
        if wanted is not None:
            scores = [
                [score if needed else _SKIPPED for score, needed in zip(some, needs, strict=True)] if some else []
                for some, needs in zip(scores, wanted, strict=True)
            ]
        for group, some in zip(groups, scores, strict=True):
            if some:
                log.add(ScoredGroup(group.group, some))
        return scores

    async def _score(
        self, context: JobContext, groups: Sequence[StoredGroup], chosen: Chosen, wanted: Wanted | None
    ) -> Sequence[Sequence[Score]]:
        reward = context.reward(chosen)
        await check(reward)
        done = 0

        def tick() -> None:
            nonlocal done
            done += 1
            context.progress("scoring", done, len(groups), unit="groups")

        rollouts = [group.group for group in groups]
        return await score_rollouts(
            reward, rollouts, wanted, concurrency=self.concurrency, pause=context.pause, tick=tick
        )

    def _parts(
        self,
        groups: Sequence[StoredGroup],
        whole: Sequence[Sequence[Score] | None],
        setting: str,
        *,
        required: bool,
    ) -> list[Sequence[Score]]:
        part, flag = getattr(self, setting), f"--{setting.replace('_', '-')}"
        found: list[Sequence[Score]] = []
        missing: tuple[StoredGroup, Sequence[Score]] | None = None
        for group, scores in zip(groups, whole, strict=True):
            if scores is None:
                raise UserError(f"{group.place}: no score is stored there. --reward names a reward that scores it now")
            by_name = [{"": score} | dict(score.named_parts()) for score in scores]
            complete = all(part in names for names in by_name)
            found.append([names[part] for names in by_name] if complete else [])
            missing = missing or (None if complete else (group, scores))
        if missing is not None and (required or not any(found)):
            names = dict.fromkeys(name for score in missing[1] for name, _ in score.named_parts())
            raise UserError(
                f"{flag} is {part!r}: {missing[0].place} has no such part.{nearest(part, names)} Known parts:"
                f" {listing(names)}"
            )
        return found


def _place(stored: StoredGroup) -> str:
    """Return the stage, kind and step that a group of a run comes from; "" where there is none."""
    if stored.record is None:
        return ""
    stage = Path(stored.place.rpartition(", ")[0]).stem
    return f"{stage}, {stored.record.kind}, step {stored.record.step}"
