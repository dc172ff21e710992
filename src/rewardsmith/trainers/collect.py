"""From prompts to the groups that a step learns from: draw, generate, score, select, and draw again if too few pass."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from rewardsmith.engines.protocol import Engine
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.records import from_json, to_json
from rewardsmith.rewards.base import Reward, parts_of
from rewardsmith.trainers.protocol import Draws, GroupRecord, Report, derive, no_report
from rewardsmith.trainers.scoring import Lap, OnDevice, generate_and_score
from rewardsmith.trainers.select import rejection
from rewardsmith.trainers.settings import WritingStage
from rewardsmith.types import Prompt, ScoredGroup


@dataclass
class Collected:
    """What a step has to learn from.

    Attributes:
        kept: the groups to learn from.
        sampled: every group that was written in this step, kept or not.
        rejected: the other groups, each with the reason.
        counts: groups by fate: `kept`, `surplus`, `reused`, `too_few`, and each reason of a rejection.
        rounds: how often prompts were drawn.
    """

    kept: list[ScoredGroup] = field(default_factory=list)
    sampled: list[ScoredGroup] = field(default_factory=list)
    rejected: list[tuple[ScoredGroup, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    rounds: int = 0

    def appraised(self, groups: Sequence[ScoredGroup]) -> None:
        """Put groups that have been scored further in the place of the kept ones."""
        new = {id(old): scored for old, scored in zip(self.kept, groups, strict=True)}
        self.sampled = [new.get(id(scored), scored) for scored in self.sampled]
        self.kept = list(groups)

    def records(self, step: int, advantages: Sequence[float | None] = ()) -> list[GroupRecord]:
        """Return what is written of every group, learned from or not.

        Args:
            step: its number.
            advantages: the mean advantage of each rollout of the kept groups, one after the other; empty for none.
        """
        records, at = [], 0
        for scored in self.kept:
            n = len(scored.scores)
            records.append(GroupRecord(step, "train", "", scored, advantages[at : at + n] or [None] * n))
            at += n
        return records + [
            GroupRecord(step, "train", reason, scored, [None] * len(scored.scores)) for scored, reason in self.rejected
        ]


class Collector:
    """Finds groups to learn from.

    Args:
        stage: how many, and which.
        engine: writes the answers.
        reward: scores them.
        draws: the prompts.
        seed: of the answers.
        pause: called now and then; what it raises ends the work.
        on_device: entered while answers are written.
        report: shows how far writing and scoring are.
        by_parts: whether each part of the reward is learned from on its own.
        longest: prompt and answer together, where others read them too; None for what the engine reads.

    Attributes:
        limit: tokens of the longest prompt that is asked.
    """

    def __init__(
        self,
        stage: WritingStage,
        engine: Engine,
        reward: Reward,
        draws: Draws[Prompt],
        *,
        seed: int,
        pause: Callable[[], None],
        on_device: OnDevice = nullcontext,
        report: Report = no_report,
        by_parts: bool = False,
        longest: int | None = None,
    ) -> None:
        self._stage = stage
        self._engine = engine
        self._reward = reward
        self._draws = draws
        self._seed = seed
        self._pause = pause
        self._on_device = on_device
        self._report = report
        self._surplus: list[ScoredGroup] = []
        self._idle = 0  # steps in a row without groups enough
        self._streams = parts_of(reward)
        self._by_parts = by_parts and bool(self._streams)
        longest = min(engine.max_length, longest or engine.max_length)
        self.limit = longest - stage.sampling.max_tokens
        if self.limit < 1:
            raise UserError(
                f"sampling.max_tokens = {stage.sampling.max_tokens} leaves no room for a prompt:"
                f" the model reads {longest} tokens"
            )
        if stage.max_prompt_tokens is not None:
            self.limit = min(self.limit, stage.max_prompt_tokens)

    async def collect(self, step: int, lap: Lap = lambda _: None) -> Collected:
        """Return up to `prompts_per_step` groups that pass the selection.

        Surplus of earlier steps comes first, as long as it is fresh enough. Then prompts are drawn, in at most
        `select.rounds` rounds. What passes beyond the number that is needed is the new surplus.

        `lap` is told how the time was spent; see `generate_and_score`.
        """
        stage, select = self._stage, self._stage.select
        found = Collected()
        for scored in self._surplus:
            stale = step - 1 - scored.group.policy_version > select.staleness
            found.counts["stale" if stale else "reused"] += 1
            if stale:
                found.rejected.append((scored, "stale"))
            else:
                found.kept.append(scored)
        self._surplus = []
        while len(found.kept) < stage.prompts_per_step and found.rounds < select.rounds:
            missing = stage.prompts_per_step - len(found.kept)
            prompts = self._take(math.ceil(round(missing * select.oversample, 6)), found.counts)
            for scored in await self._write(prompts, step, found.rounds, lap):
                self._require_part(scored)
                found.sampled.append(scored)
                reason = rejection(scored, select, streams=self._streams, by_parts=self._by_parts)
                if reason is None:
                    found.kept.append(scored)
                else:
                    found.rejected.append((scored, reason))
                    found.counts[reason] += 1
            found.rounds += 1
        surplus = found.kept[stage.prompts_per_step :]
        found.kept = found.kept[: stage.prompts_per_step]
        found.counts["kept"] = len(found.kept)
        found.counts["surplus"] = len(surplus)
        if select.staleness:
            self._surplus = surplus
        found.rejected += [(scored, "surplus") for scored in surplus]
        return found

    def enough(self, found: Collected) -> bool:
        """Whether a step has groups enough to learn from; those of a step that has not are counted as `too_few`.

        Raises:
            UserError: as many steps in a row as the patience of the selection had too few.
        """
        select = self._stage.select
        self._idle = 0 if len(found.kept) >= select.least else self._idle + 1
        if self._idle:
            found.counts["too_few"], found.counts["kept"] = len(found.kept), 0
        if self._idle >= select.patience:
            fates = ", ".join(f"{count} {fate}" for fate, count in sorted(found.counts.items()) if count)
            raise UserError(
                f"{self._idle} steps in a row found fewer than {select.least} groups to learn from (last: {fates})."
                " Widen select.lowest and select.highest, raise select.rounds, or look at the reward"
            )
        return self._idle == 0

    async def _write(self, prompts: Sequence[Prompt], step: int, round_: int, lap: Lap) -> list[ScoredGroup]:
        stage = self._stage
        return await generate_and_score(
            self._engine,
            self._reward,
            prompts,
            stage.sampling.sampling(),
            n=stage.rollouts_per_prompt,
            seeds=[derive(self._seed, step, round_, i) for i in range(len(prompts))],
            version=step - 1,
            pause=self._pause,
            on_device=self._on_device,
            lap=lap,
            report=self._report,
        )

    def _require_part(self, scored: ScoredGroup) -> None:
        """Raise a `UserError` if `select.part` names no part; of a user's own reward that is known only now."""
        part = self._stage.select.part
        known = [name for name, _ in scored.scores[0].named_parts()]
        if part and part not in known and any(score.ok for score in scored.scores):
            hint = f"{nearest(part, known)} Known: {listing(known)}"
            raise UserError(f'select.part = "{part}" is no part of the reward.{hint}')

    def _take(self, count: int, counts: Counter[str]) -> list[Prompt]:
        """Draw prompts that are short enough."""
        limit = self.limit
        prompts: list[Prompt] = []
        dropped = 0
        while len(prompts) < count:
            (prompt,) = self._draws.take(1)
            length = len(self._engine.encode(prompt))
            if length <= limit:
                prompts.append(prompt)
                continue
            if self._stage.overlong_prompts == "error":
                raise UserError(
                    f"prompt {prompt.id!r} has {length} tokens, more than the limit of {limit}:"
                    ' raise max_prompt_tokens, or set overlong_prompts = "drop"'
                )
            dropped += 1
            if dropped > 1_000 * count:
                raise UserError(f"{dropped} prompts have more than {limit} tokens: raise max_prompt_tokens")
        if dropped:
            counts["overlong_prompts"] += dropped
        return prompts

    def state(self) -> dict[str, Any]:
        """Return the position in the data, the surplus and how much patience is used up."""
        surplus = [to_json(scored) for scored in self._surplus]
        return {"draws": self._draws.state(), "surplus": surplus, "idle": self._idle}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._draws.restore(state["draws"])
        self._surplus = [from_json(ScoredGroup, scored) for scored in state["surplus"]]
        self._idle = int(state["idle"])
