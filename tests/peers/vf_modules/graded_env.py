"""Tasks with two rewards and a metric, as environments of verifiers have them."""

from __future__ import annotations

from collections.abc import Iterable

import verifiers.v1 as vf


class GradedData(vf.TaskData):
    """A question with an answer."""

    answer: str
    hint: str = ""


class GradedTask(vf.Task[GradedData]):
    """Right answers, and short ones."""

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        if "raise" in trace.last_reply:
            raise RuntimeError("the grader is confused")
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def style(self, task: vf.TaskData, trace: vf.Trace) -> dict[str, float]:
        asked = trace.messages[-2].content
        return {"short": float(len(trace.last_reply) < 5), "asked": float(asked == task.prompt)}

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class Graded(vf.Taskset[GradedTask]):
    """Some tasks."""

    def load(self) -> Iterable[GradedTask]:
        for n in range(3):
            yield GradedTask(GradedData(prompt=f"{n}+1?", answer=str(n + 1), hint="add"), self.config.task)


__all__ = ["Graded"]
