"""A user's own functions before and after a judge; they run in killable workers, each call with a deadline.

The first half runs in the trainer, the second half in a worker, which returns JSON: `["done", value]`, or
`["halt", message]` if the function demands that the run stops.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from rewardsmith.config import import_name
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore, Halt
from rewardsmith.rewards.judges.judge import Question, failed_score
from rewardsmith.rewards.pool import Call, Pool, shared, shared_waiting, version_of
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.types import Message, RolloutGroup, Score

MEMORY = 1024
"""MiB that a worker may use for one call, unless a recipe sets it."""


class Hook:
    """A function that the setting `preprocess` or `postprocess` names as `module:function`; it may be a coroutine."""

    def __init__(self, name: str, setting: str, *, deadline: float, memory: int) -> None:
        function = import_name(name)
        if not callable(function) or isinstance(function, type) or name.startswith("__main__:"):
            raise UserError(f"{setting} = {name!r} is not a function in a module of its own, which workers can import")
        waits = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        self._pool = shared_waiting if waits else shared
        self._call = Call(name, version=version_of(function), loader=f"{__name__}:load_{setting}")
        self._setting, self._deadline, self._memory = setting, deadline, memory

    async def ready(self) -> None:
        """Load the function in the workers; a `UserError` names the reason if that fails."""
        await self._pool().load(self._call)

    async def questions(self, group: RolloutGroup) -> list[Question | Score]:
        """Return the question that `preprocess` writes for each rollout, or the failure."""
        prompts = await self._result(group)
        return [
            failed_score(CannotScore(*one)) if isinstance(one[0], str) else Question([Message(*turn) for turn in one])
            for one in prompts
        ]

    async def value(self, reply: str) -> Score:
        """Return the value that `postprocess` finds in a reply; `Unparsable` if it raised a `ValueError`."""
        value, feedback, reason, detail, invalid = await self._result(reply)
        if reason:
            raise Unparsable(reason, detail, invalid=invalid)
        return Score(float(value), feedback=feedback)

    async def _result(self, argument: Any) -> Any:
        return await call_in_worker(self._pool(), self._call, argument, self._setting, self._deadline, self._memory)


async def call_in_worker(pool: Pool, call: Call, argument: Any, what: str, deadline: float, memory: int) -> Any:
    """Return what a loaded function returns; `CannotScore` if it raised, took too long or ended its process."""
    try:
        status, value = await pool.result(call, argument, deadline=deadline, memory=memory)
    except CannotScore as error:
        if error.kind != "timeout":
            raise
        raise CannotScore("timeout", f"{what} did not return within {deadline:g} s (deadline)") from None
    if status == "halt":
        raise Halt(value)
    return value


# ---- in the worker -------------------------------------------------------------------------------------------------

_loop: asyncio.AbstractEventLoop | None = None


def load_preprocess(name: str) -> Callable[[RolloutGroup, str], list[Any]]:
    """Return a function from a group to its prompts: for each rollout `[[role, content], …]` or `[kind, detail]`.

    The hook returns one entry per rollout: messages, tables with role and content, text, or None for no prompt.
    """
    hook = import_name(name)
    return lambda group, _: unless_halted(_prompts, hook, group)


def load_postprocess(name: str) -> Callable[[str, str], list[Any]]:
    """Return a function from a reply to `[value, feedback, reason, detail, invalid]`; a reason means unparsable."""
    hook = import_name(name)
    return lambda reply, _: unless_halted(_value, hook, reply)


def unless_halted(work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return the result of `work`, or that the run must stop."""
    try:
        return ["done", work(*arguments)]
    except Halt as error:
        return ["halt", str(error)]
    except asyncio.CancelledError as error:
        raise CannotScore("cancelled", f"it was cancelled: {error}") from error


def finite_number(value: Any, whose: str) -> float:
    """Return a user's result as a finite number; numbers of other libraries count. Raises `TypeError`, `Unparsable`."""
    try:
        number = float("" if isinstance(value, str | bytes) else value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{whose} returned {value!r:.60}: it must return a number") from None
    if not math.isfinite(number):
        raise Unparsable("not finite", f"{whose} returned {number}", invalid=True)
    return number


def _prompts(hook: Callable[..., Any], group: RolloutGroup) -> list[Any]:
    prompts = awaited(hook(group))
    if not isinstance(prompts, list | tuple) or len(prompts) != len(group.rollouts):
        count = f"{len(prompts)} prompts" if isinstance(prompts, list | tuple) else f"a {type(prompts).__name__}"
        raise TypeError(f"preprocess returned {count} for {len(group.rollouts)} rollouts: return a list with one each")
    return [_prompt(one) for one in prompts]


def _prompt(prompt: Any) -> list[Any]:
    """Return one prompt of a hook; a mistake in it fails its own rollout."""
    if prompt is None:
        return ["invalid", "preprocess has no prompt for this rollout"]
    try:
        turns = [Message("user", prompt)] if isinstance(prompt, str) else prompt
        messages = [Message(one["role"], one["content"]) if isinstance(one, Mapping) else one for one in turns]
        return [[message.role, message.content] for message in messages] or ["crashed", "preprocess: an empty prompt"]
    except Exception as error:  # noqa: BLE001 an empty role, text that is not Unicode, another type
        return ["crashed", f"preprocess returned an invalid prompt: {type(error).__name__}: {error}"]


def _value(hook: Callable[..., Any], reply: str) -> list[Any]:
    try:
        try:
            result = awaited(hook(reply))
        except (Unparsable, UserError):  # both are kinds of ValueError; a Halt is a UserError
            raise
        except ValueError as error:
            raise Unparsable("refused by postprocess", str(error)) from error
        value, feedback = result if isinstance(result, tuple) and len(result) == 2 else (result, "")
        return [finite_number(value, "postprocess"), feedback if isinstance(feedback, str) else "", "", "", False]
    except Unparsable as error:
        return [None, "", error.reason or "unparsable", error.detail, error.invalid]


def awaited(result: Any) -> Any:
    """Return a result, or that of a coroutine; a worker has one event loop, for clients that hooks keep."""
    if not inspect.isawaitable(result):
        return result

    global _loop  # noqa: PLW0603
    _loop = _loop or asyncio.new_event_loop()
    asyncio.set_event_loop(_loop)
    return _loop.run_until_complete(asyncio.ensure_future(result, loop=_loop))
