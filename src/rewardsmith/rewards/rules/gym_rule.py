"""Marks that a task of reasoning-gym gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated

from pydantic import Field

from rewardsmith.data.reasoning_gym import UNSOUND, BrokenEntryError, Entry, Task, known_tasks
from rewardsmith.errors import nearest
from rewardsmith.rewards.base import CannotScore
from rewardsmith.rewards.rules.rule_settings import Extract, Final, TooSlowError, extracted, processor_limit
from rewardsmith.types import Prompt


def reasoning_gym(
    prompt: Prompt,
    text: str,
    *,
    extract: Extract = ("tagged",),
    final: Final = "auto",
    partial: Annotated[bool, Field(description="keep the scorer's marks between 0 and 1; false: they are 0")] = True,
) -> float:
    """What the scorer of the prompt's task gives for the answer, 0 to 1.

    The prompt's info has `task`, `config` and `metadata`, as the data source `reasoning-gym` writes them. An answer
    that is absent, that the scorer fails on, or that it must not see is 0. Less than 1 is given only where the prompt's
    own answer, if it has one, earns 1; otherwise the prompt is invalid. Tasks with a scorer that is not to be trusted
    are refused.
    """
    task, entry = _read(prompt)
    answer = extracted(text, extract, final)
    try:
        marks = _marks(task, answer, entry) if answer else 0.0
        if not answer:
            task.require_sound(entry)
    except BrokenEntryError as error:
        raise CannotScore("invalid", f"the prompt {prompt.id!r} is broken: {error}") from error
    if not 0 <= marks <= 1 + 1e-9:
        raise CannotScore("invalid", f"the scorer of {task.name} gave {marks}, which is not from 0 to 1")
    return float(marks >= 1) if not partial else min(1.0, marks)


def _marks(task: Task, answer: str, entry: Entry) -> float:
    """Return what the scorer gives; 0 for an answer that takes it too long."""
    try:
        with processor_limit():
            return task.score(answer, entry)
    except TooSlowError:
        task.require_sound(entry)
        return 0.0


def _read(prompt: Prompt) -> tuple[Task, Entry]:
    name, config, metadata = (prompt.info.get(key) for key in ("task", "config", "metadata"))
    if not isinstance(name, str) or not isinstance(metadata, Mapping) or not isinstance(config or {}, Mapping):
        raise CannotScore(
            "invalid",
            f"the prompt {prompt.id!r} is not from reasoning-gym: its info must have task, config and metadata",
        )
    if name in UNSOUND:
        raise CannotScore("refused", f"the task {name} of reasoning-gym cannot be scored: {UNSOUND[name]}")
    if prompt.answer is not None and not isinstance(prompt.answer, str):
        raise CannotScore("invalid", f"the answer of the prompt {prompt.id!r} is no text")
    task = _task(name, json.dumps(config or {}, sort_keys=True))
    return task, Entry(prompt.messages[-1].content, prompt.answer, metadata)


@lru_cache(maxsize=256)
def _task(name: str, config: str) -> Task:
    """Return the task, made once per worker; no entry is made."""
    known = known_tasks()
    if name not in known:
        raise CannotScore("invalid", f"reasoning-gym has no task {name!r}.{nearest(name, known)}")
    try:
        return Task(name, json.loads(config))
    except Exception as error:
        raise CannotScore(
            "invalid", f"the task {name} of reasoning-gym refuses {config}: {type(error).__name__}: {error}"
        ) from error
