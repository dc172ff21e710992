"""A reward function of TRL, unchanged: by the path of its file or the name of its module, or as a Python object.

    def reward_func(prompts, completions, completion_ids, solution, **kwargs): return [1.0, None, …]

It is called as TRL's trainers call it, with the rows of one group. None is a failure, not 0. By path it runs in
killable workers and with a deadline; it may be a coroutine function. The last part of this module runs in a worker.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from rewardsmith.checks import thawed
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore, failure_of
from rewardsmith.rewards.function_file import (
    MAX_FEEDBACK,
    MEMORY,
    FunctionFile,
    UserFunction,
    WorkerDeadline,
    WorkerMemory,
)
from rewardsmith.rewards.judges.hooks import awaited, finite_number, unless_halted
from rewardsmith.rewards.user_calls import in_thread, is_async
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.types import Failure, RolloutGroup, Score

ANSWER_NAMES = ("solution", "answer", "ground_truth")
"""The columns as which a function gets the right answer."""

Conversational = Annotated[
    bool, Field(description="prompts and completions are lists of messages; false: text, the prompt's last message")
]
Compares = Annotated[bool, Field(description="the values of a group depend on each other, such as ranks")]


class TrlFunction:
    """Score groups by a function of a file that was written for TRL's `reward_funcs`."""

    parts: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        path: Annotated[str, Field(min_length=1, description="the Python file, or a module such as trl.rewards")],
        name: Annotated[str, Field(min_length=1, description="the function in it")],
        conversational: Conversational = True,
        whole: Compares = False,
        deadline: WorkerDeadline = 30.0,
        memory: WorkerMemory = MEMORY,
    ) -> None:
        self.whole, self.deadline, self._conversational = whole, deadline, conversational
        self._function = FunctionFile(
            path,
            name,
            loader=f"{__name__}:load_trl_function",
            arguments={},
            deadline=deadline,
            memory=memory,
            modules=True,
        )

    async def check(self) -> None:
        """Load the file in the worker processes; raises a `UserError` if that fails."""
        await self._function.load()

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout; if the call for a group fails, each rollout is tried alone."""
        return tuple(await self._scores(group, range(len(group.rollouts))))

    async def _scores(self, group: RolloutGroup, rows: Sequence[int]) -> list[Score]:
        arguments = trl_arguments(group, rows, conversational=self._conversational)
        try:
            return trl_scores(await self._function.result(arguments, calls=len(rows)))
        except CannotScore as error:
            if len(rows) == 1 or self.whole:
                return [Score(failure=failure_of(error))] * len(rows)
        alone = await asyncio.gather(*(self._scores(group, [row]) for row in rows))
        return [score for (score,) in alone]

    def facts(self) -> dict[str, Any]:
        """Return which file it is, for the record of a run."""
        return self._function.facts()


class TrlCallable:
    """Score groups by a function object that was written for TRL; it runs in this process, in a thread unless async."""

    def __init__(self, function: Callable[..., Any], *, conversational: bool = True, whole: bool = False) -> None:
        if not callable(function):
            raise UserError(f"a reward function of TRL is a function, and this is {function!r:.100}")
        self.whole, self._function, self._conversational = whole, function, conversational
        self._name = getattr(function, "__name__", type(function).__name__)

    async def score(self, group: RolloutGroup) -> tuple[Score, ...]:
        """Return one score per rollout."""
        rows = range(len(group.rollouts))
        arguments, logs = trl_arguments(group, rows, conversational=self._conversational), _Logs()
        call = partial(self._function, **arguments, **logs.arguments)
        if is_async(self._function):
            values = await call()
            found = await in_thread(lambda: _rows_of(values, len(rows), self._name, logs))
        else:
            found = await in_thread(lambda: _rows_of(call(), len(rows), self._name, logs))
        return tuple(trl_scores(found))


def trl_arguments(group: RolloutGroup, rows: Sequence[int], *, conversational: bool) -> dict[str, Any]:
    """Return the keyword arguments that TRL's trainers would give for rollouts of a group."""
    prompt, rollouts = group.prompt, [group.rollouts[row] for row in rows]
    chat = [{"role": message.role, "content": message.content} for message in prompt.messages]
    columns = {**dict.fromkeys(ANSWER_NAMES, thawed(prompt.answer)), "source": prompt.source, **thawed(prompt.info)}
    texts = [rollout.text for rollout in rollouts]
    return {
        **{name: [value] * len(rows) for name, value in columns.items()},
        "prompts": [chat if conversational else chat[-1]["content"]] * len(rows),
        "completions": [[{"role": "assistant", "content": text}] for text in texts] if conversational else texts,
        "completion_ids": [rollout.tokens.tolist() for rollout in rollouts],
    }


def trl_scores(rows: Sequence[Sequence[Any]]) -> list[Score]:
    """Return the scores of rows: `[value, feedback]`, or `[None, feedback, kind, detail]`."""
    return [
        Score(row[0], feedback=row[1]) if len(row) == 2 else Score(failure=Failure(row[2], row[3]), feedback=row[1])
        for row in rows
    ]


class _Logs:
    """Takes what a function logs to TRL: columns become feedback, single metrics are left out."""

    def __init__(self) -> None:
        self.columns: dict[str, Any] = {}
        # What a function may read of TRL's trainer before its first step.
        state = SimpleNamespace(global_step=0, epoch=0.0, max_steps=-1, log_history=[])
        self.arguments = {
            "trainer_state": state,
            "log_extra": self.columns.__setitem__,
            "log_metric": lambda name, value: None,
        }

    def feedback(self, row: int) -> str:
        """Return the columns of a row as JSON."""
        found = {
            name: values[row]
            for name, values in self.columns.items()
            if isinstance(values, list | tuple) and row < len(values)
        }
        return json.dumps(found, ensure_ascii=False, default=str)[:MAX_FEEDBACK] if found else ""


# ---- in the worker -------------------------------------------------------------------------------------------------


def load_trl_function(path: str, *, name: str) -> Callable[[Any, str], list[Any]]:
    """Return a function from keyword arguments to one row per answer."""
    function = UserFunction(path, name)

    def call(arguments: dict[str, Any], _: str) -> list[Any]:
        with function.importable():
            return unless_halted(_called, function.call, arguments, name)

    return call


def _called(function: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> list[list[Any]]:
    logs = _Logs()
    return _rows_of(awaited(function(**arguments, **logs.arguments)), len(arguments["completions"]), name, logs)


def _rows_of(values: Any, count: int, name: str, logs: _Logs) -> list[list[Any]]:
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping | Set):
        raise TypeError(f"{name} returned a {type(values).__name__}: it must return a list")
    found = list(islice(values, count + 1))
    if len(found) != count:
        more = "more than " if len(found) > count else ""
        raise TypeError(f"{name} returned {more}{min(len(found), count)} values for {count} completions")
    return [_row_of(value, name, logs.feedback(row)) for row, value in enumerate(found)]


def _row_of(value: Any, name: str, feedback: str) -> list[Any]:
    if value is None:
        return [None, feedback, "invalid", f"{name} returned None: it does not score this answer"]
    try:
        return [finite_number(value, name), feedback]
    except Unparsable as error:
        return [None, feedback, "invalid", str(error)]
    except TypeError as error:
        return [None, feedback, "crashed", f"TypeError: {error}"]
