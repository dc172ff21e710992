"""From prompts to the groups that a step learns from: draw, generate, score, select, and draw again if too few pass."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from rewardsmith.engines.protocol import Engine, Sampling
from rewardsmith.errors import UserError
from rewardsmith.records import from_json, to_json
from rewardsmith.rewards.base import Reward, parts_of, score
from rewardsmith.rewards.tree import reads_ends
from rewardsmith.trainers.settings import RolloutStage, SelectSettings
from rewardsmith.trainers.trainer import (
    HELD_OUT_SEED,
    Context,
    Draws,
    GroupRecord,
    Report,
    count_items,
    derive,
    no_report,
)
from rewardsmith.types import Prompt, RolloutGroup, Score, ScoredGroup

OnDevice = Callable[[], AbstractAsyncContextManager[None]]
"""Entered while a model works."""

Lap = Callable[[str], None]
"""Called at the end of each part of the work with its name."""

POLL_SECONDS = 0.2
"""Seconds between two checks whether the user wants to stop."""


async def generate_and_score(
    engine: Engine,
    reward: Reward,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    n: int,
    seeds: Sequence[int],
    version: int = 0,
    ends: bool = False,
    pause: Callable[[], None] = lambda: None,
    on_device: OnDevice = nullcontext,
    lap: Lap = lambda _: None,
    report: Report = no_report,
    written: dict[int, RolloutGroup | ScoredGroup] | None = None,
) -> list[ScoredGroup]:
    """Return a scored group of n answers to each prompt, in the order of the prompts.

    A group is scored while others are still generated. `ends` fills `Rollout.ends` also if the reward need not know.
    `pause` is called often; what it raises ends the work. The laps are `write`, which ends with the last token, and
    `wait`: for the device before it, for rewards after it. `written` is filled with the groups so far by the index of
    their prompts.
    """
    tasks: dict[int, asyncio.Task[ScoredGroup]] = {}
    so_far = {} if written is None else written

    def tick(answers: int, tokens: int) -> None:
        report("writing", answers, n * len(prompts), tokens=tokens)
        pause()

    try:
        async with asyncio.TaskGroup() as scoring:
            async with on_device():
                lap("wait")
                ends = ends or reads_ends(reward)
                groups = engine.generate(prompts, sampling, n=n, seeds=seeds, version=version, ends=ends, tick=tick)
                async for number, group in groups:
                    so_far[number] = group
                    tasks[number] = scoring.create_task(_score_into(so_far, number, reward, group))
                lap("write")
            pending = set(tasks.values())
            while pending:  # the user may want to stop while a judge is slow
                report("scoring", len(tasks) - len(pending), len(tasks), unit="groups")
                _, pending = await asyncio.wait(pending, timeout=POLL_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
                pause()
    except BaseExceptionGroup as several:  # a task group wraps even a single cause
        raise several.exceptions[0] from None
    lap("wait")
    return [tasks[i].result() for i in range(len(prompts))]


async def _score_into(
    so_far: dict[int, RolloutGroup | ScoredGroup], number: int, reward: Reward, group: RolloutGroup | ScoredGroup
) -> ScoredGroup:
    """Score a group, unless it is scored already, and put it in its place."""
    scored = group if isinstance(group, ScoredGroup) else await score(reward, group)
    so_far[number] = scored
    return scored


# ---- selection ------------------------------------------------------------------------------------------------------


def rejection(
    scored: ScoredGroup, settings: SelectSettings, *, streams: Collection[str] = (), by_parts: bool = False
) -> str | None:
    """Return why not to learn from a group; None when it passes. The bounds are inclusive.

    `streams` are the parts of the reward that are learned from; `by_parts`: each is a stream of its own, so that a
    rollout whose sum failed may still be learned from.
    """
    voting = [one for one in scored.scores if one.ok or (by_parts and _some_ok(one, streams))]
    if not voting:
        return "failed"
    if settings.truncated == "drop" and any(r.stop_reason == "length" for r in scored.group.rollouts):
        return "truncated"
    measured = [dict(s.named_parts()).get(settings.part) if settings.part else s for s in scored.scores]
    values = [one.value for one in measured if one is not None and one.value is not None]
    if settings.part and not values:
        return "failed"
    if settings.constant == "drop" and not has_contrast(voting, streams=streams, by_parts=by_parts):
        return "constant"
    mean = math.fsum(values) / len(values) if values else math.nan
    if settings.lowest is not None and mean < settings.lowest:
        return "too_hard"
    return "too_easy" if settings.highest is not None and mean > settings.highest else None


def _some_ok(score: Score, streams: Collection[str]) -> bool:
    return any(part.ok for name, part in score.parts.items() if name in streams)


def has_contrast(scores: Sequence[Score], *, streams: Collection[str] = (), by_parts: bool = False) -> bool:
    """Whether some of the rollouts got more than others, as far as that is learned from; see `rejection`."""

    def signal(score: Score) -> list[object]:
        """Return everything of a score that its advantage comes from."""
        parts = [score.parts[name] for name in sorted(streams) if name in score.parts]
        values = [part.value for part in parts] if by_parts and parts else [score.value]
        dense = [one for one in (score, *parts) if one.token_values is not None and one.token_values.any()]
        return [
            *values,
            *(x.tobytes() for one in dense for x in (one.token_values, one.token_support) if x is not None),
        ]

    signals = [signal(one) for one in scores]
    return any(other != signals[0] for other in signals)


# ---- the rollouts of a step -----------------------------------------------------------------------------------------


@dataclass
class StepRollouts:
    """The rollouts of a step."""

    kept: list[ScoredGroup] = field(default_factory=list)  # the groups to learn from
    sampled: list[ScoredGroup] = field(default_factory=list)  # every group of this step, kept or not
    rejected: list[tuple[ScoredGroup, str]] = field(default_factory=list)  # with the reason
    counts: Counter[str] = field(default_factory=Counter)  # groups: kept, surplus, reused, too_few, reasons
    rounds: int = 0  # how often prompts were drawn
    epoch: float | None = None  # passes over the data so far; None where its size is not known

    @property
    def fates(self) -> str:
        """The counts, for messages."""
        return ", ".join(f"{count} {fate}" for fate, count in sorted(self.counts.items()) if count)

    def replace_kept(self, groups: Sequence[ScoredGroup]) -> None:
        """Put the same groups with more scores in the place of the kept ones."""
        new = {id(old): scored for old, scored in zip(self.kept, groups, strict=True)}
        self.sampled = [new.get(id(scored), scored) for scored in self.sampled]
        self.kept = list(groups)

    def reject(self, reason: str, rejected: Sequence[bool]) -> None:
        """Reject some of the kept groups."""
        dropped = [scored for scored, drop in zip(self.kept, rejected, strict=True) if drop]
        self.kept = [scored for scored, drop in zip(self.kept, rejected, strict=True) if not drop]
        self.rejected += [(scored, reason) for scored in dropped]
        self.counts[reason], self.counts["kept"] = len(dropped), len(self.kept)

    def records(self, step: int, columns: Mapping[str, Sequence[Any]] = MappingProxyType({})) -> list[GroupRecord]:
        """Return the lines of the rollouts file.

        The `columns` are fields of `GroupRecord`, each with a value for every rollout of the kept groups, or none.
        """
        left = {name: iter(values) for name, values in columns.items()}
        records = []
        for one, why in [(scored, "") for scored in self.kept] + self.rejected:
            values = {name: [next(each, None) for _ in one.scores] for name, each in left.items()}
            known = {name: column for name, column in values.items() if any(x is not None for x in column)}
            records.append(GroupRecord(step, "train", why, one, **{"advantages": [None] * len(one.scores)} | known))
        return records


@dataclass
class WrittenRounds:
    """The rounds of a step as far as they are written: its selection can be done again from them."""

    rounds: list[dict[int, RolloutGroup | ScoredGroup]] = field(default_factory=list)  # by the place of the prompt
    overlong: int = 0  # prompts that were too long
    complete: bool = False  # whether they are stored ones, to which no further round is added

    def state(self) -> dict[str, Any]:
        """Return them as JSON values; what is not scored yet is scored when the run goes on."""
        rounds = [[to_json(one[i]) for i in sorted(one)] for one in self.rounds]
        return {"rounds": rounds, "overlong": self.overlong}

    @classmethod
    def restored(cls, state: dict[str, Any]) -> WrittenRounds:
        """Return what `state` described."""

        def group(value: dict[str, Any]) -> RolloutGroup | ScoredGroup:
            return from_json(ScoredGroup, value) if "scores" in value else from_json(RolloutGroup, value)

        rounds = [{i: group(value) for i, value in enumerate(one)} for one in state["rounds"]]
        return cls(rounds, int(state["overlong"]), complete=True)


class Collector:
    """Collects groups to learn from.

    `by_parts`: each part of the reward is learned from on its own. `max_length` is that of prompt and answer together,
    where other models read them too. `ahead` is how many updates old answers are. `limit` is the maximum tokens of a
    prompt, `steps` the number of steps of the stage: with `epochs`, as many as passes over the data fill, each with
    what its first round draws.
    """

    def __init__(
        self,
        stage: RolloutStage,
        engine: Engine,
        reward: Reward,
        context: Context,
        *,
        by_parts: bool = False,
        max_length: int | None = None,
        ahead: int = 0,
    ) -> None:
        self._stage, self._engine, self._reward, self._context = stage, engine, reward, context
        seed = derive(context.seed, stage.same_prompts_as or stage.name)
        self._draws: Draws[Prompt] = Draws(context.source(stage.data).prompts, derive(seed, "prompts"), stage.data)
        self._seed = derive(seed, "rollouts")
        self._surplus: list[ScoredGroup] = []
        self._ahead = ahead
        self._idle = 0  # steps in a row without enough groups
        self._streams = parts_of(reward)
        self._by_parts = by_parts and bool(self._streams)
        max_length = min(engine.max_length, max_length or engine.max_length)
        self.limit = max_length - stage.sampling.max_tokens
        if self.limit < 1:
            raise UserError(
                f"sampling.max_tokens = {stage.sampling.max_tokens} leaves no room for a prompt:"
                f" the model reads {max_length} tokens"
            )
        if stage.max_prompt_tokens is not None:
            self.limit = min(self.limit, stage.max_prompt_tokens)
        self._items = 0  # prompts of a pass, too long ones included; 0: not counted
        self.steps = stage.steps or self._steps_of(stage.epochs or 1)

    def _steps_of(self, epochs: int) -> int:
        """Return how many steps the prompts of some passes over the data fill."""
        stage, log = self._stage, self._context.log
        prompts = self._context.source(stage.data).prompts
        self._items = count_items(prompts(HELD_OUT_SEED), "prompts", stage.data, log)
        usable, per_step = sum(map(self._fits, prompts(HELD_OUT_SEED))), self._round_size(stage.prompts_per_step)
        steps = epochs * usable // per_step
        long = f", {self._items - usable:,} of which have more than {self.limit} tokens" * (usable < self._items)
        size = f"data.{stage.data} has {self._items:,} prompts{long}"
        if not steps:
            raise UserError(
                f"{size}: epochs = {epochs} would not fill one step, which draws {per_step}. Lower prompts_per_step, or"
                " raise epochs"
            )
        log(f"{size}: epochs = {epochs} are {steps:,} steps of {per_step} prompts")
        return steps

    def _round_size(self, missing: int) -> int:
        """Return how many prompts are drawn where so many groups are missing."""
        return math.ceil(round(missing * self._stage.select.oversample, 6))

    async def collect(
        self,
        step: int,
        lap: Lap = lambda _: None,
        *,
        version: int | None = None,
        written: WrittenRounds | None = None,
        pause: Callable[[], None] | None = None,
        report: Report | None = None,
    ) -> StepRollouts:
        """Return up to `prompts_per_step` groups that pass the selection; for `lap` see `generate_and_score`.

        Surplus of earlier steps comes first, as long as it is fresh enough. Then prompts are drawn, in at most
        `select.rounds` rounds. What passes beyond the number that is needed is the new surplus. `version` is that of
        the policy that writes, by default the one of the step; `written` is filled with the rounds, or has them
        already.
        """
        stage, select, rollouts = self._stage, self._stage.select, StepRollouts()
        version = step - 1 if version is None else version
        written = written or WrittenRounds()
        limit = len(written.rounds) if written.complete else select.rounds
        rollouts.counts["overlong_prompts"] += written.overlong
        for scored in self._surplus:
            if step - 1 - scored.group.policy_version > select.staleness + self._ahead:
                rollouts.counts["stale"] += 1
                rollouts.rejected.append((scored, "stale"))
            else:
                rollouts.counts["reused"] += 1
                rollouts.kept.append(scored)
        while len(rollouts.kept) < stage.prompts_per_step and rollouts.rounds < limit:
            if written.complete:
                groups = await self._score(written.rounds[rollouts.rounds])
            else:
                missing = stage.prompts_per_step - len(rollouts.kept)
                prompts = self._take(self._round_size(missing), rollouts.counts)
                written.overlong = rollouts.counts["overlong_prompts"]
                written.rounds.append({})
                groups = await self._generate(
                    prompts, step, version, written, lap, pause or self._context.pause, report or self._context.progress
                )
            for scored in groups:
                rollouts.sampled.append(scored)
                reason = rejection(scored, select, streams=self._streams, by_parts=self._by_parts)
                if reason is None:
                    rollouts.kept.append(scored)
                else:
                    rollouts.rejected.append((scored, reason))
                    rollouts.counts[reason] += 1
            rollouts.rounds += 1
        surplus = rollouts.kept[stage.prompts_per_step :]
        rollouts.kept = rollouts.kept[: stage.prompts_per_step]
        rollouts.rejected += [(scored, "surplus") for scored in surplus]
        rollouts.counts["kept"], rollouts.counts["surplus"] = len(rollouts.kept), len(surplus)
        self._surplus = surplus if select.staleness else []
        if self._items:
            passes, taken = self._draws.state()
            rollouts.epoch = passes + taken / self._items
        return rollouts

    def enough(self, rollouts: StepRollouts) -> bool:
        """Whether a step has enough groups to learn from; those of a step that has not are counted as `too_few`.

        A `UserError` once `select.patience` steps in a row had too few.
        """
        select = self._stage.select
        self._idle = 0 if len(rollouts.kept) >= select.min_groups else self._idle + 1
        if self._idle:
            rollouts.counts["too_few"], rollouts.counts["kept"] = len(rollouts.kept), 0
        if self._idle >= select.patience:
            raise UserError(
                f"{self._idle} steps in a row found fewer than {select.min_groups} groups to learn from (last:"
                f" {rollouts.fates}). Widen select.lowest and select.highest, raise select.rounds, or check the reward"
            )
        return self._idle == 0

    async def _generate(
        self,
        prompts: Sequence[Prompt],
        step: int,
        version: int,
        written: WrittenRounds,
        lap: Lap,
        pause: Callable[[], None],
        report: Report,
    ) -> list[ScoredGroup]:
        """Write and score the last one of the rounds."""
        round_ = len(written.rounds) - 1
        return await generate_and_score(
            self._engine,
            self._reward,
            prompts,
            self._stage.sampling,
            n=self._stage.rollouts_per_prompt,
            seeds=[derive(self._seed, step, round_, i) for i in range(len(prompts))],
            version=version,
            pause=pause,
            on_device=partial(self._context.on_device, self._stage.model),
            lap=lap,
            report=report,
            written=written.rounds[round_],
        )

    async def _score(self, written: dict[int, RolloutGroup | ScoredGroup]) -> list[ScoredGroup]:
        """Return a stored round; what was not scored yet is scored now."""
        try:
            async with asyncio.TaskGroup() as scoring:
                tasks = [
                    scoring.create_task(_score_into(written, i, self._reward, group))
                    for i, group in sorted(written.items())
                ]
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        return [task.result() for task in tasks]

    def _take(self, count: int, counts: Counter[str]) -> list[Prompt]:
        """Draw prompts that are short enough."""
        prompts: list[Prompt] = []
        dropped = 0
        while len(prompts) < count:
            (prompt,) = self._draws.take(1)
            if self._fits(prompt):
                prompts.append(prompt)
                continue
            dropped += 1
            if dropped > 1_000 * count:
                raise UserError(f"{dropped} prompts have more than {self.limit} tokens: raise max_prompt_tokens")
        counts["overlong_prompts"] += dropped
        return prompts

    def _fits(self, prompt: Prompt) -> bool:
        """Whether a prompt is short enough; a `UserError` if it is not and should be."""
        length = len(self._engine.encode(prompt))
        if length > self.limit and self._stage.overlong_prompts == "error":
            raise UserError(
                f"prompt {prompt.id!r} has {length} tokens, more than the limit of {self.limit}:"
                ' raise max_prompt_tokens, or set overlong_prompts = "drop"'
            )
        return length <= self.limit

    def position(self) -> tuple[list[int], list[ScoredGroup]]:
        """Return the position in the data and the surplus, from which the next step is collected."""
        return self._draws.state(), self._surplus

    def state(self, draws: list[int] | None = None, surplus: Sequence[ScoredGroup] | None = None) -> dict[str, Any]:
        """Return the position in the data, the surplus and how much patience is used up; by default those of now."""
        draws = self._draws.state() if draws is None else draws
        surplus = self._surplus if surplus is None else surplus
        return {"draws": draws, "surplus": [to_json(scored) for scored in surplus], "idle": self._idle}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self._draws.restore(state["draws"])
        self._surplus = [from_json(ScoredGroup, scored) for scored in state["surplus"]]
        self._idle = int(state["idle"])
