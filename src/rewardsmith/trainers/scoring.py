"""Generate and score at once: a group is scored while others are still written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from rewardsmith.engines.protocol import Engine, Sampling
from rewardsmith.rewards.base import Reward, score
from rewardsmith.rewards.tree import reads_ends
from rewardsmith.trainers.protocol import Report, no_report
from rewardsmith.types import Prompt, ScoredGroup

OnDevice = Callable[[], AbstractAsyncContextManager[None]]
"""Entered while a model works."""

Lap = Callable[[str], None]
"""Called at the end of each stretch of the work with its name."""

GLANCE = 0.2
"""Seconds between two looks at whether the user wants to stop."""


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
) -> list[ScoredGroup]:
    """Return a scored group for each prompt, in the order of the prompts.

    Args:
        engine: writes the answers.
        reward: scores them.
        prompts: what is asked.
        sampling: how answers are sampled.
        n: answers to each prompt.
        seeds: one for each prompt.
        version: of the policy.
        ends: whether rollouts must say where their tokens end in the text, also if the reward need not know.
        pause: called often; what it raises ends the work.
        on_device: entered while answers are written: where a judge shares the device, it waits for the end of that.
        report: shows how many answers are written, and then how many groups are scored.
        lap: told of `write`, which ends with the last token, and of `wait`: for a turn before it, for rewards after it.
    """
    tasks: dict[int, asyncio.Task[ScoredGroup]] = {}

    def tick(answers: int, tokens: int) -> None:
        report("writing", answers, n * len(prompts), tokens=tokens)
        pause()

    try:
        async with asyncio.TaskGroup() as scoring:
            async with on_device():
                lap("wait")
                ends = ends or reads_ends(reward)
                written = engine.generate(prompts, sampling, n=n, seeds=seeds, version=version, ends=ends, tick=tick)
                async for number, group in written:
                    tasks[number] = scoring.create_task(score(reward, group))
                lap("write")
            open_ = set(tasks.values())
            while open_:  # the user may want to stop while a judge is slow
                report("scoring", len(tasks) - len(open_), len(tasks), unit="groups")
                _, open_ = await asyncio.wait(open_, timeout=GLANCE, return_when=asyncio.FIRST_EXCEPTION)
                pause()
    except BaseExceptionGroup as several:  # a task group wraps even a single cause
        raise several.exceptions[0] from None
    lap("wait")
    return [tasks[i].result() for i in range(len(prompts))]
