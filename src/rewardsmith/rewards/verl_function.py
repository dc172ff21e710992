"""A verl reward function, unchanged, by the path of its file: `custom_reward_function` of verl's configuration.

    def compute_score(data_source, solution_str, ground_truth, extra_info=None, **reward_kwargs): ...

It is called as verl's naive reward manager calls it, in killable workers and with a deadline. It may be a coroutine
function. The first half of this module runs in the trainer, the second half in a worker, which returns JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field

from rewardsmith.checks import thawed
from rewardsmith.errors import UserError, listing
from rewardsmith.rewards.base import CannotScore, failure_of
from rewardsmith.rewards.function_file import (
    MAX_FEEDBACK,
    MEMORY,
    FunctionFile,
    UserFunction,
    WorkerDeadline,
    WorkerMemory,
    number_of,
)
from rewardsmith.rewards.judges.hooks import awaited, finite_number, unless_halted
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.types import Failure, Prompt, RolloutGroup, Score

NUM_TURNS = 2
"""What verl puts into extra_info for a prompt and its answer."""


class VerlFunction:
    """Score each rollout by a function of a file that was written for verl.

    Attributes:
        parts: the names of further numbers in the table that the function returns.
    """

    def __init__(
        self,
        *,
        path: Annotated[str, Field(min_length=1, description="the Python file")],
        name: Annotated[str, Field(min_length=1, description="the function in it")] = "compute_score",
        reward_kwargs: Annotated[
            dict[str, Any] | None, Field(description="further keyword arguments of the function")
        ] = None,
        parts: Annotated[
            tuple[str, ...],
            Field(description='names in a returned table that become parts of the score, such as "acc"'),
        ] = (),
        deadline: WorkerDeadline = 30.0,
        memory: WorkerMemory = MEMORY,
    ) -> None:
        if wrong := sorted({"score", ""} & {*parts}):
            raise UserError(f'parts has "{wrong[0]}": the score itself is the value; name other entries of the table')
        self.parts, self.deadline = tuple(parts), deadline
        self._function = FunctionFile(
            path,
            name,
            loader=f"{__name__}:load_verl_function",
            arguments={"reward_kwargs": reward_kwargs or {}},
            deadline=deadline,
            memory=memory,
        )

    async def check(self) -> None:
        """Load the file in the worker processes; raises a `UserError` if that fails."""
        await self._function.load()

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; equal answers are scored once."""
        texts = list(dict.fromkeys(rollout.text for rollout in group.rollouts))
        scores = await asyncio.gather(*(self._score(group.prompt, text) for text in texts))
        found = dict(zip(texts, scores, strict=True))
        return tuple(found[rollout.text] for rollout in group.rollouts)

    async def _score(self, prompt: Prompt, text: str) -> Score:
        try:
            value, numbers, feedback = await self._function.result((_row(prompt), text))
        except CannotScore as error:
            failed = Score(failure=failure_of(error))
            return Score(failure=failed.failure, parts=dict.fromkeys(self.parts, failed))
        absent = Score(failure=Failure("skipped", "the function returned no such number"))
        parts = {name: Score(numbers[name]) if name in numbers else absent for name in self.parts}
        return Score(value, parts=parts, feedback=feedback)

    def facts(self) -> dict[str, Any]:
        """Return which file it is, for the record of a run."""
        return self._function.facts()


def _row(prompt: Prompt) -> dict[str, Any]:
    """Return the columns of verl's data that the function is given."""
    extra = prompt.info.get("extra_info")
    given = thawed(extra) if isinstance(extra, Mapping) else {}
    extra_info = {**given, "num_turns": NUM_TURNS, "rollout_reward_scores": {}}
    return {"data_source": prompt.source, "ground_truth": thawed(prompt.answer), "extra_info": extra_info}


# ---- in the worker -------------------------------------------------------------------------------------------------


def load_verl_function(path: str, *, name: str, reward_kwargs: dict[str, Any]) -> Callable[[Any, str], list[Any]]:
    """Return a function from `(row, answer)` to `[value, further numbers, feedback]`."""
    function = UserFunction(path, name)

    def call(argument: tuple[dict[str, Any], str], _: str) -> list[Any]:
        row, text = argument
        with function.importable():
            return unless_halted(_result, function.call, {**row, "solution_str": text, **reward_kwargs}, name)

    return call


def _result(function: Callable[..., Any], arguments: dict[str, Any], name: str) -> list[Any]:
    returned = awaited(function(**arguments))
    table = returned if isinstance(returned, Mapping) else {"score": returned}
    if "score" not in table:
        raise TypeError(f"{name} returned a table without score: it has {listing(map(str, table))}")
    try:
        value = finite_number(table["score"], name)
    except Unparsable as error:
        raise CannotScore("invalid", str(error)) from None
    others = {str(key): other for key, other in table.items() if key != "score"}
    feedback = json.dumps(others, ensure_ascii=False, default=str)[:MAX_FEEDBACK] if others else ""
    return [value, {key: number for key, other in others.items() if (number := number_of(other)) is not None}, feedback]
