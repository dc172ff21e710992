"""The ground truth of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from rewardsmith.rewards.base import CannotScore
from rewardsmith.types import Prompt

Reference = Annotated[
    str,
    Field(min_length=1, description='"answer", or the place in the prompt\'s info or extra_info: "references"'),
]


def extra(prompt: Prompt, name: str, default: Any = None) -> Any:
    """Return an entry that came with a prompt: in `info`, or in verl's column `extra_info` inside it."""
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


def references_of(prompt: Prompt, place: str) -> list[str]:
    """Return the reference translations of a prompt, at least one, none of them blank."""
    found: Any = prompt.answer
    if place != "answer":
        found = _at(prompt.info, place)
        found = _at(prompt.info.get("extra_info"), place) if found is None else found
    texts = [found] if isinstance(found, str) else found
    where = "answer" if place == "answer" else f"info.{place}"
    if not isinstance(texts, Sequence) or not texts:
        raise CannotScore("invalid", f"the prompt {prompt.id!r} has no reference text in {where}")
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise CannotScore("invalid", f"the prompt {prompt.id!r} has a reference in {where} that is blank or no text")
    return list(texts)


def _at(table: Any, path: str) -> Any:
    """Return what lies at a dotted path, None where there is nothing."""
    for name in path.split("."):
        table = table.get(name) if isinstance(table, Mapping) else None
    return table
