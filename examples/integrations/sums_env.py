"""An environment of verifiers whose reward is one of rewardsmith's: `vf-eval sums-env`, or as taskset of prime-rl."""

from collections.abc import Iterable

import verifiers.v1 as vf

from rewardsmith.integrations.verifiers_reward import verifiers_reward

quality = verifiers_reward(
    {
        "type": "sum",
        "parts": {
            "right": {"type": "rule", "rule": "math"},
            "short": {"type": "rule", "rule": {"type": "length", "max_length": 20}, "weight": 0.5},
        },
    }
)


class SumData(vf.TaskData):
    """A sum and its result."""

    answer: str


class SumTask(vf.Task[SumData]):
    """Scores the last reply."""

    @vf.reward
    async def quality(self, trace: vf.Trace) -> float:
        """Return the reward; what it raises is an error of the trace."""
        return await quality(self.data, trace)


class Sums(vf.Taskset[SumTask]):
    """Sums of two numbers."""

    def load(self) -> Iterable[SumTask]:
        """Yield the tasks."""
        for n in range(10):
            yield SumTask(SumData(prompt=f"{n} + {2 * n} = ?", answer=str(3 * n)), self.config.task)


__all__ = ["Sums"]
