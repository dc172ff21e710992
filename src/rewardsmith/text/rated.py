"""What a scalar reward model reads of a prompt and an answer: the one way for training it and for asking it."""

from __future__ import annotations

from typing import Literal

from rewardsmith.text.answers import final
from rewardsmith.text.quoting import harmless
from rewardsmith.types import Message, Prompt

Kept = Literal["keep", "drop"]
"""Whether something is shown to the model."""


def rated_answer(text: str, *, think: Kept) -> str:
    """Return what is rated of an answer; one that was not reached is empty, and rated as such.

    Args:
        text: what was written.
        think: `drop` leaves out everything up to `</think>`.
    """
    return text if think == "keep" else final(text) or ""


def rated_conversation(prompt: Prompt, answer: str, *, system: Kept) -> tuple[Message, ...]:
    """Return what the model reads. Nothing in it can open a turn: role tokens inside the messages are broken.

    Args:
        prompt: what was asked.
        answer: as `rated_answer` returned it.
        system: `drop` leaves out the prompt's system messages.
    """
    asked = [m for m in prompt.messages if system == "keep" or m.role != "system"]
    return tuple(Message(m.role, harmless(m.content)) for m in (*asked, Message("assistant", answer)))


__all__ = ["Kept", "rated_answer", "rated_conversation"]
