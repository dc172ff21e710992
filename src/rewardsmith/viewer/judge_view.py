"""The prompts that the judges of a run were given: rendered again from its recipe, without any model."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rewardsmith.config import Chosen
from rewardsmith.errors import UserError
from rewardsmith.recipe import Recipe, load_recipe
from rewardsmith.rewards.base import failure_of
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.judges.judge import Judge, Question, Rendered
from rewardsmith.rewards.tree import walk
from rewardsmith.trainers.trainer import GroupRecord
from rewardsmith.types import Score

MAX_PROMPT = 60_000  # characters shown of one message
MAX_QUESTIONS = 200  # of one group
TIMEOUT = 30.0  # seconds for plug-ins that render


async def judge_prompts(folder: Path, stage: str, record: GroupRecord) -> list[dict[str, Any]]:
    """Return the questions of each judge about a group, with the part, the rollout and the messages.

    A `UserError` says why they cannot be rendered: the recipe is read as it is now, with its templates and plug-ins.
    """
    try:
        root = await asyncio.to_thread(_build, folder, stage, record.kind)
    except UserError as error:
        raise UserError(f"the reward of this run cannot be built here, so its prompts are not known: {error}") from None
    found: list[dict[str, Any]] = []
    for part, component in walk(root):
        if isinstance(component.reward, Judge):
            try:
                rendered = component.reward.render(record.scored.group)
                if inspect.isawaitable(rendered):
                    rendered = await asyncio.wait_for(rendered, TIMEOUT)
            except Exception as error:  # noqa: BLE001 a judge may be a user's own code
                raise UserError(
                    f"the prompts of {part or 'the judge'} cannot be rendered: {failure_of(error).detail}"
                ) from None
            found += _questions(part or "judge", component.reward.model_name, rendered)
    return found[:MAX_QUESTIONS]


def _build(folder: Path, stage: str, kind: str) -> Component:
    return Component.root(_reward(load_recipe(folder / "recipe.toml"), stage, kind))


def _reward(recipe: Recipe, stage: str, kind: str) -> Chosen:
    """Return the reward table that scored groups of a kind in a stage."""
    settings: Any = next((one.settings for one in recipe.stages if getattr(one.settings, "name", "") == stage), None)
    validation = getattr(settings, "validation", None) if kind == "validation" else None
    chosen: Chosen | None = getattr(validation, "reward", None) or getattr(settings, "reward", None)
    if chosen is None:
        raise UserError(f"its recipe has no stage {stage!r} with a reward")
    return chosen


def _questions(part: str, model: str, rendered: Rendered) -> Iterator[dict[str, Any]]:
    """Yield the questions about each rollout; equal ones, as about a whole group, once with all their rollouts."""
    asked: dict[Any, dict[str, Any]] = {}
    for place, item in enumerate(rendered):
        if isinstance(item, Score):
            continue
        for question in [item] if isinstance(item, Question) else item:
            made = asked.setdefault(
                question.key, {"part": part, "model": model, "rollouts": [], "messages": _messages(question)}
            )
            if place not in made["rollouts"]:
                made["rollouts"].append(place)
    yield from asked.values()


def _messages(question: Question) -> list[dict[str, Any]]:
    if isinstance(question.messages, str):
        pairs = [("text", question.messages)]
    else:
        pairs = [(message.role, message.content) for message in question.messages]
    return [{"role": role, "text": text[:MAX_PROMPT], "cut": max(0, len(text) - MAX_PROMPT)} for role, text in pairs]
