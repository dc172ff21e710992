"""A verl reward function, unchanged, by the path of its file: `custom_reward_function` of verl's configuration.

    def compute_score(data_source, solution_str, ground_truth, extra_info=None, **reward_kwargs): ...

It is called as verl's naive reward manager calls it, in killable workers and with a deadline. It may be a coroutine
function. The first half of this module runs in the trainer, the second half in a worker, which returns JSON.
"""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rewardsmith.checks import thawed
from rewardsmith.errors import UserError, listing, nearest
from rewardsmith.rewards.base import CannotScore, Halt, failure_of
from rewardsmith.rewards.judges.hooks import MEMORY, awaited, finite_number, unless_halted
from rewardsmith.rewards.judges.plugin import LOAD_TIMEOUT, PythonFile, file_version
from rewardsmith.rewards.pool import Call, Pool, shared, shared_waiting
from rewardsmith.storage import file_facts
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.types import Failure, Prompt, RolloutGroup, Score

MAX_FEEDBACK = 2_000
"""Characters of what a function returned besides the score that are kept for the rollouts file."""

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
        deadline: Annotated[float, Field(gt=0, description="seconds per answer")] = 30.0,
        memory: Annotated[int, Field(ge=16, description="MiB that a worker may use for an answer")] = MEMORY,
    ) -> None:
        file = Path(path.removeprefix("file://")).expanduser().resolve()
        if not file.is_file():
            raise UserError(f"path = {path!r}: there is no such file; give the path of a Python file")
        if wrong := sorted({"score", ""} & {*parts}):
            raise UserError(f'parts has "{wrong[0]}": the score itself is the value; name other entries of the table')
        self.parts, self.deadline, self._memory, self._file = tuple(parts), deadline, memory, file
        arguments = {"name": name, "reward_kwargs": reward_kwargs or {}}
        self._call = Call(str(file), arguments, version=file_version(file), loader=f"{__name__}:load_verl_function")
        self._pool: Callable[[], Pool] = shared_waiting if _is_async(file, name) else shared

    async def check(self) -> None:
        """Load the file in the worker processes; raises a `UserError` if that fails."""
        await self._pool().load(self._call, limit=LOAD_TIMEOUT)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; equal answers are scored once."""
        texts = list(dict.fromkeys(rollout.text for rollout in group.rollouts))
        scores = await asyncio.gather(*(self._score(group.prompt, text) for text in texts))
        found = dict(zip(texts, scores, strict=True))
        return tuple(found[rollout.text] for rollout in group.rollouts)

    async def _score(self, prompt: Prompt, text: str) -> Score:
        try:
            status, result = await self._pool().result(
                self._call, _row(prompt), text, deadline=self.deadline, memory=self._memory
            )
            if status == "halt":
                raise Halt(result)
        except CannotScore as error:
            failed = Score(failure=failure_of(error))
            return Score(failure=failed.failure, parts=dict.fromkeys(self.parts, failed))
        value, numbers, feedback = result
        absent = Score(failure=Failure("skipped", "the function returned no such number"))
        parts = {name: Score(numbers[name]) if name in numbers else absent for name in self.parts}
        return Score(value, parts=parts, feedback=feedback)

    def facts(self) -> dict[str, Any]:
        """Return which file it is, for the record of a run."""
        return {"file": file_facts(self._file)}


def _row(prompt: Prompt) -> dict[str, Any]:
    """Return the columns of verl's data that the function is given."""
    extra = prompt.info.get("extra_info")
    given = thawed(extra) if isinstance(extra, Mapping) else {}
    extra_info = {**given, "num_turns": NUM_TURNS, "rollout_reward_scores": {}}
    return {"data_source": prompt.source, "ground_truth": thawed(prompt.answer), "extra_info": extra_info}


def _is_async(file: Path, name: str) -> bool:
    """Return whether the file defines the function as a coroutine function; the file is not run."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # `check` reports it
    return any(isinstance(node, ast.AsyncFunctionDef) and node.name == name for node in tree.body)


# ---- in the worker -------------------------------------------------------------------------------------------------


def load_verl_function(path: str, *, name: str, reward_kwargs: dict[str, Any]) -> Callable[[Any, str], list[Any]]:
    """Return a function from a row and an answer to `[value, further numbers, feedback]`."""
    file = PythonFile(path)
    function = getattr(file.module, name, None)
    if not callable(function):
        known = [key for key, value in vars(file.module).items() if callable(value) and not key.startswith("_")]
        raise UserError(f"it has no function {name}.{nearest(name, known)} It has: {listing(known)}")

    def call(row: dict[str, Any], text: str) -> list[Any]:
        with file.importable():
            # A function may change its extra_info, and the same row is here for the next answer.
            fresh = {**row, "extra_info": thawed(row["extra_info"]), "ground_truth": thawed(row["ground_truth"])}
            return unless_halted(_result, function, {**fresh, "solution_str": text, **reward_kwargs}, name)

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
    return [value, {key: number for key, other in others.items() if (number := _number(other)) is not None}, feedback]


def _number(value: Any) -> float | None:
    try:
        return finite_number(value, "it")
    except (TypeError, Unparsable):
        return None
