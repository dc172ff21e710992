"""What the readers of judges' answers share: how they say no, and what they overlook."""

from __future__ import annotations

import re

_THOUGHT = re.compile(r"</think(?:ing)?\s*>", re.IGNORECASE)
_OPEN = re.compile(r"<think(?:ing)?\s*>", re.IGNORECASE)


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

    Raises:
        Unreadable: a thought was begun and not ended.
    """
    closed = list(_THOUGHT.finditer(text))
    rest = text[closed[-1].end() :] if closed else text
    if _OPEN.search(rest):
        raise Unreadable("unfinished thought")
    return rest
