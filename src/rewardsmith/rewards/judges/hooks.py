"""A user's own functions before and after a judge. They run in worker processes, each call with a deadline."""

from __future__ import annotations

import inspect
import math
from typing import Any

from rewardsmith.config import import_name
from rewardsmith.errors import UserError
from rewardsmith.llm import Conversation
from rewardsmith.rewards.base import CannotScore, Halt
from rewardsmith.rewards.pool import Call, shared, shared_waiting, version_of
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.types import Message, RolloutGroup

MEMORY = 1024
"""MiB that a worker may use for one call, unless a recipe says otherwise."""

_LOADERS = "rewardsmith.rewards.judges.hook_calls"


class Hook:
    """A function that a setting names as `module:function`; it may be a coroutine function.

    Args:
        name: where the function is.
        setting: `preprocess` or `postprocess`.
        deadline: seconds for one call.
        memory: MiB for one call.

    Raises:
        UserError: there is no such function.
    """

    def __init__(self, name: str, setting: str, *, deadline: float, memory: int) -> None:
        function = import_name(name)
        if not callable(function) or isinstance(function, type):
            raise UserError(f"{setting} = {name!r} is no function")
        if name.startswith("__main__:"):
            raise UserError(f"{setting} = {name!r} is in the program that is running: put it in a module of its own")
        waits = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        self._pool = shared_waiting if waits else shared
        self._call = Call(name, version=version_of(function), loader=f"{_LOADERS}:load_{setting}")
        self._setting, self._deadline, self._memory = setting, deadline, memory

    async def ready(self) -> None:
        """Load the function where workers come from; a `UserError` says why that cannot be done."""
        await self._pool().load(self._call)

    async def called(self, argument: Any, text: str = "") -> Any:
        """Return what `hook_calls` makes of the result.

        Raises:
            CannotScore: the function raised something, took too long, or ended its process.
            Halt: it says that the run must stop.
        """
        try:
            status, value = await self._pool().result(
                self._call, argument, text, deadline=self._deadline, memory=self._memory
            )
        except CannotScore as error:
            if error.kind != "timeout":
                raise
            raise too_late(self._setting, self._deadline) from None
        if status == "halt":
            raise Halt(value)
        return value


def too_late(what: str, deadline: float) -> CannotScore:
    """Return the failure of a call that was not done in time."""
    return CannotScore("timeout", f"{what} was not done within {deadline:g} s (deadline): its worker was ended")


async def prompts_by(preprocess: Hook, group: RolloutGroup) -> list[Conversation | CannotScore]:
    """Return the prompt that a hook makes for each rollout, or why there is none."""
    made = await preprocess.called(group)
    return [
        CannotScore(*one) if isinstance(one[0], str) else tuple(Message(role, content) for role, content in one)
        for one in made
    ]


async def value_by(postprocess: Hook, text: str) -> tuple[float, str]:
    """Return the value that a hook reads from an answer, and its feedback or "".

    Raises:
        Unparsable: the hook raised a `ValueError`, or its value is not finite; the judge is asked again.
        CannotScore: whatever else went wrong; the rollout has failed.
    """
    value, feedback, reason, detail, invalid = await postprocess.called(None, text)
    if reason:
        raise Unparsable(reason, detail, invalid=invalid)
    return float(value), feedback


def number(value: Any, whose: str) -> float:
    """Return what a user's function returned as a finite number; numbers of other libraries count.

    Raises:
        TypeError: it is none.
        Unparsable: it is not finite.
    """
    if isinstance(value, str | bytes) or value is None:
        raise TypeError(f"{whose} returned {value!r:.60}: it must return a number")
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{whose} returned a {type(value).__name__}: it must return a number") from None
    if not math.isfinite(found):
        raise Unparsable("not finite", f"{whose} returned {found}", invalid=True)
    return found


__all__ = ["MEMORY", "Hook", "number", "prompts_by", "too_late", "value_by"]
