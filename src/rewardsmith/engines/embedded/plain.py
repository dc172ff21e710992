"""Messages in which nothing is a special token of the model that reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rewardsmith.types import Message


class Plain:
    """Breaks the special tokens of a tokenizer with a space: inside a message they are text, never a new turn.

    Args:
        tokenizer: of a Hugging Face model.
    """

    def __init__(self, tokenizer: Any) -> None:
        added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        names = sorted({*added, *tokenizer.all_special_tokens} - {""}, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def __call__(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages without special tokens in them."""
        return [Message(self._broken(message.role), self._broken(message.content)) for message in messages]

    def _broken(self, text: str) -> str:
        return self._special.sub(lambda token: f"{token[0][0]} {token[0][1:]}", text)
