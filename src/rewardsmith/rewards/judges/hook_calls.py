"""What a worker process does with a user's functions before and after a judge; all that it returns is JSON.

["done", value]
["halt", message]: the function wants the run to stop
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rewardsmith.config import import_name
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import CannotScore, Halt
from rewardsmith.rewards.judges.hooks import number
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.types import Message, RolloutGroup

_loop: asyncio.AbstractEventLoop | None = None


def load_preprocess(name: str) -> Callable[[RolloutGroup, str], list[Any]]:
    """Return a function from a group to its prompts: for each rollout `[[role, content], …]` or `[kind, detail]`.

    The hook returns a list with one entry per rollout: messages, tables with role and content, text for one message of
    the user, or None where there is nothing to ask.
    """
    hook = import_name(name)
    return lambda group, _: unless_halted(_prompts, hook, group)


def load_postprocess(name: str) -> Callable[[None, str], list[Any]]:
    """Return a function from an answer to `[value, feedback, reason, detail, invalid]`.

    `reason` is not empty where the answer cannot be used and the judge is to be asked again; see `Unparsable`.
    """
    hook = import_name(name)
    return lambda _, text: unless_halted(_reading, hook, text)


def unless_halted(work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what a function of ours returns around one of the user's, or that the run must stop."""
    try:
        return ["done", work(*arguments)]
    except Halt as error:
        return ["halt", str(error)]
    except asyncio.CancelledError as error:
        raise CannotScore("cancelled", f"it was cancelled: {error}") from error


def _prompts(hook: Callable[..., Any], group: RolloutGroup) -> list[Any]:
    made = _finished(hook(group))
    if not isinstance(made, list | tuple) or len(made) != len(group.rollouts):
        count = f"{len(made)} prompts" if isinstance(made, list | tuple) else f"a {type(made).__name__}"
        raise TypeError(f"preprocess returned {count} for {len(group.rollouts)} rollouts: a list with one of each")
    return [_own(one) for one in made]


def _own(made: object) -> list[Any]:
    """Return one prompt of a hook; whatever is wrong with it is wrong with it alone."""
    try:
        return _conversation(made)
    except Exception as error:  # noqa: BLE001 a role that is empty, text that is no Unicode, an odd class
        return ["crashed", f"preprocess returned a prompt that is none: {type(error).__name__}: {error}"]


def _conversation(made: object) -> list[Any]:
    if made is None:
        return ["invalid", "preprocess has no prompt for this rollout"]
    if isinstance(made, str):
        made = [Message("user", made)]
    if isinstance(made, Sequence) and made:
        messages = [Message(one["role"], one["content"]) if _is_table(one) else one for one in made]
        if all(isinstance(message, Message) for message in messages):
            return [[message.role, message.content] for message in messages]
    kind = type(made).__name__
    return ["crashed", f"preprocess returned a {kind} as a prompt: messages, text, or None"]


def _is_table(one: object) -> bool:
    return isinstance(one, Mapping) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)


def _reading(hook: Callable[..., Any], text: str) -> list[Any]:
    try:
        try:
            read = _finished(hook(text))
        except (Unparsable, UserError):  # both are kinds of ValueError; a Halt is a UserError
            raise
        except ValueError as error:
            raise Unparsable("refused by postprocess", str(error)) from error
        value, feedback = read if isinstance(read, tuple) and len(read) == 2 else (read, "")
        return [number(value, "postprocess"), feedback if isinstance(feedback, str) else "", "", "", False]
    except Unparsable as error:
        detail = str(error).removeprefix(error.reason).removeprefix(": ")
        return [None, "", error.reason or "unreadable", detail, error.invalid]


def _finished(result: Any) -> Any:
    """Return a result, that of a coroutine when it has ended. A worker has one event loop, for all that hooks keep."""
    if not inspect.isawaitable(result):
        return result
    global _loop  # noqa: PLW0603 one per worker is the point
    _loop = _loop or asyncio.new_event_loop()
    asyncio.set_event_loop(_loop)
    return _loop.run_until_complete(_awaited(result))


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


__all__ = ["load_postprocess", "load_preprocess", "unless_halted"]
