"""Tasks whose reward calls a judge of ours, and an environment that ranks the answers of one episode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf

from rewardsmith import Failure, RolloutGroup, Score
from rewardsmith.integrations.verifiers_reward import score_traces, verifiers_reward


class Judge:
    """Grades the last digit of an answer; it refuses an answer with a 7."""

    parts = ("grade",)

    async def score(self, group: RolloutGroup) -> list[Score]:
        return [self._score(rollout.text) for rollout in group.rollouts]

    def _score(self, text: str) -> Score:
        if "7" in text:
            why = Failure("refused", "no sevens")
            return Score(failure=why, parts={"grade": Score(failure=why)})
        return Score(float(text[-1]), parts={"grade": Score(float(text[-1]))})


class Ranks(Judge):
    """How many answers of the group have a lower grade."""

    whole = True

    async def score(self, group: RolloutGroup) -> list[Score]:
        scores = await super().score(group)
        grades = [score.value for score in scores if score.value is not None]
        return [
            score if score.value is None else Score(float(sum(g < score.value for g in grades)), parts=score.parts)
            for score in scores
        ]


judged = verifiers_reward(Judge())


class Counting(vf.TaskData):
    """A question with an answer."""

    answer: str


class CountingTask(vf.Task[Counting]):
    """Its reward is plugged by the configuration."""


class CountingTasks(vf.Taskset[CountingTask]):
    """A few questions."""

    def load(self) -> Iterable[CountingTask]:
        for n in range(4):
            yield CountingTask(Counting(prompt=f"question {n}", answer=str(n)), self.config.task)


class RankedConfig(vf.EnvConfig):
    """One agent."""

    agent: vf.AgentConfig = vf.AgentConfig()


class RankedEnv(vf.Env[RankedConfig]):
    """Four answers to a task in one episode."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        await asyncio.gather(*(agents.agent.run(task) for _ in range(4)))

    async def finalize(self, task: vf.Task, episode: Any) -> None:
        await score_traces(Ranks(), task.data, episode.traces)


__all__ = ["CountingTasks"]
