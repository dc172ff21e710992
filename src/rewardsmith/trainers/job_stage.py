"""Run a job as a stage: one step, whose result goes to the evaluations of the run."""

from __future__ import annotations

from typing import Any

from rewardsmith.errors import UserError
from rewardsmith.jobs import Job
from rewardsmith.trainers.protocol import Context, Update


class JobStage:
    """A job in the loop of a run.

    Args:
        job: its settings.
        context: models, data and files of the run.
    """

    def __init__(self, job: Job, context: Context) -> None:
        self._job, self._context = job, context
        self.steps = 1
        self.learners: dict[str, Any] = {}
        self.best_by = ""
        self.reward = None

    async def begin(self) -> Update:
        """There is nothing before the only step."""
        return Update(0)

    async def step(self, number: int) -> Update:
        """Run the job and write its tables."""
        result = await self._job.run(self._context)
        self._context.keep_result(result)
        for note in result.notes:
            self._context.log(note)
        if result.failed >= 1:
            raise UserError(f"{'. '.join(['no item has a result', *result.notes[:1]])}")
        return Update(number, {f"validation/{name}": value for name, value in result.metrics.items()})

    def state(self) -> dict[str, Any]:
        """Return nothing: a job keeps its own results."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Do nothing."""
