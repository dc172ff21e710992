"""What a judge is shown as the question."""

from __future__ import annotations

from collections.abc import Mapping

from rewardsmith.types import Prompt


def question_of(prompt: Prompt) -> str:
    """Return the question of a prompt as text; it is foreign text, to be quoted like any other.

    It is `question` of the prompt's `info`, or of the table `extra_info` in it, where that is text. Else it is the
    user's message, or, where there are several messages beside those of the system, all of them with their roles:

        user: How much is 6 · 7?

        assistant: 42.

        user: And twice that?
    """
    nested = prompt.info.get("extra_info")
    for table in (prompt.info, nested if isinstance(nested, Mapping) else {}):
        found = table.get("question")
        if isinstance(found, str) and found.strip():
            return found
    said = [message for message in prompt.messages if message.role != "system"] or list(prompt.messages)
    if len(said) == 1:
        return said[0].content
    return "\n\n".join(f"{message.role}: {message.content}" for message in said)


__all__ = ["question_of"]
