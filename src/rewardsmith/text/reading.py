"""What the readers of judges' answers share: how they say no, and what they overlook."""

from __future__ import annotations

import re
from collections import deque

_CLOSED = re.compile(r"</(?:think|thinking|thought)\s*>|\[/THINK\]", re.IGNORECASE)
_OPEN = re.compile(r"<(?:think|thinking|thought)\s*>|\[THINK\]", re.IGNORECASE)


class Unreadable(ValueError):  # noqa: N818 it is the text that is so
    """A text holds no verdict that may be used.

    Attributes:
        reason: why, in a few words that are the same for all texts of a kind, so that they can be counted.
        invalid: True when a verdict was read, but lies outside what is allowed.
    """

    def __init__(self, reason: str, detail: str = "", *, invalid: bool = False) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.invalid = invalid


def after_thinking(text: str) -> str:
    """Return what follows the last closed thought, or the whole text if there is none.

    A thought that was only closed counts: some chat templates open it in the prompt.

    Raises:
        Unreadable: a thought was begun and not ended.
    """
    last = next(iter(deque(_CLOSED.finditer(text), maxlen=1)), None)
    rest = text[last.end() :] if last else text
    if _OPEN.search(rest):
        raise Unreadable("unfinished thought")
    return rest


__all__ = ["Unreadable", "after_thinking"]
