"""The ground truth of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rewardsmith.rewards.base import CannotScore
from rewardsmith.types import Prompt


def extra(prompt: Prompt, name: str, default: Any = None) -> Any:
    """Return what came with a prompt beside its answer: in `info`, or in verl's column `extra_info` inside it."""
    inner = prompt.info.get("extra_info")
    nested = inner.get(name, default) if isinstance(inner, Mapping) else default
    return prompt.info.get(name, nested)


def truth(prompt: Prompt) -> str:
    """Return the prompt's answer as text; a prompt without exactly one cannot be scored by comparison."""
    answers = truths(prompt)
    if len(answers) != 1:
        raise CannotScore(
            "invalid", f"the prompt {prompt.id!r} has {len(answers)} answers; this rule compares with one"
        )
    return answers[0]


def truths(prompt: Prompt) -> tuple[str, ...]:
    """Return the prompt's accepted answers as text: one, or each of a list; a prompt without any cannot be scored."""
    given = prompt.answer if isinstance(prompt.answer, list | tuple) else (prompt.answer,)
    if any(isinstance(answer, Mapping | list | tuple) for answer in given):
        raise CannotScore("invalid", f"the answer of the prompt {prompt.id!r} is a table: it must be text or a number")
    answers = tuple(str(answer).strip() for answer in given if answer is not None)
    if not answers:
        raise CannotScore("invalid", f"the prompt {prompt.id!r} has no answer to compare with")
    return answers
