"""A user's own functions before and after a judge."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rewardsmith.asking import Conversation
from rewardsmith.components import import_name
from rewardsmith.errors import UserError
from rewardsmith.rewards.protocol import CannotScore
from rewardsmith.text.reading import Unreadable
from rewardsmith.types import Message, RolloutGroup

Hook = Callable[..., Any]


def load_hook(name: str, setting: str) -> Hook:
    """Return the function that a setting names as `module:function`."""
    found = import_name(name)
    if not callable(found) or isinstance(found, type):
        raise UserError(f"{setting} = {name!r} is no function")
    return found  # type: ignore[no-any-return]


async def prompts_by(preprocess: Hook, group: RolloutGroup) -> list[Conversation | CannotScore]:
    """Return the prompt that a hook makes for each rollout, or why there is none.

    The hook returns a list with one entry per rollout: messages, tables with role and content, text for one message of
    the user, or None where there is nothing to ask.
    """
    made = preprocess(group)
    made = await made if inspect.isawaitable(made) else made
    if not isinstance(made, list | tuple) or len(made) != len(group.rollouts):
        count = f"{len(made)} prompts" if isinstance(made, list | tuple) else f"a {type(made).__name__}"
        raise TypeError(f"preprocess returned {count} for {len(group.rollouts)} rollouts: a list with one of each")
    return [_own(one) for one in made]


def _conversation(made: object) -> Conversation | CannotScore:
    if made is None:
        return CannotScore("invalid", "preprocess has no prompt for this rollout")
    if isinstance(made, str):
        return (Message("user", made),)
    if isinstance(made, Sequence) and made:
        messages = [Message(one["role"], one["content"]) if _is_table(one) else one for one in made]
        if all(isinstance(message, Message) for message in messages):
            return tuple(messages)
    kind = type(made).__name__
    return CannotScore("crashed", f"preprocess returned a {kind} as a prompt: messages, text, or None")


def _own(made: object) -> Conversation | CannotScore:
    """Return one prompt of a hook; whatever is wrong with it is wrong with it alone."""
    try:
        return _conversation(made)
    except Exception as error:  # noqa: BLE001 a role that is empty, text that is no Unicode, an odd class
        return CannotScore("crashed", f"preprocess returned a prompt that is none: {type(error).__name__}: {error}")


def _is_table(one: object) -> bool:
    return isinstance(one, Mapping) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)


async def value_by(postprocess: Hook, text: str) -> tuple[float, str]:
    """Return the value that a hook reads from an answer, and its feedback or "".

    Raises:
        Unreadable: the hook raised a `ValueError`, or its value is not finite; the judge is asked again.
        Exception: whatever else it raised; the rollout has failed.
    """
    try:
        said = postprocess(text)
        said = await said if inspect.isawaitable(said) else said
    except (Unreadable, UserError):  # both are kinds of ValueError; a Halt is a UserError
        raise
    except ValueError as error:
        raise Unreadable("refused by postprocess", str(error)) from error
    value, feedback = said if isinstance(said, tuple) and len(said) == 2 else (said, "")
    return number(value, "postprocess"), feedback if isinstance(feedback, str) else ""


def number(value: Any, whose: str) -> float:
    """Return what a user's function returned as a finite number; numbers of other libraries count.

    Raises:
        TypeError: it is none.
        Unreadable: it is not finite.
    """
    if isinstance(value, str | bytes) or value is None:
        raise TypeError(f"{whose} returned {value!r:.60}: it must return a number")
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{whose} returned a {type(value).__name__}: it must return a number") from None
    if not math.isfinite(found):
        raise Unreadable("not finite", f"{whose} returned {found}", invalid=True)
    return found


__all__ = ["load_hook", "number", "prompts_by", "value_by"]
