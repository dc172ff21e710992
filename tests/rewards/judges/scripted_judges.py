"""Groups, and rewards made as a recipe makes them, with a scripted model."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score
from rewardsmith.config import settings_of
from rewardsmith.llm import ChatRequest
from tests.rewards.models import Said, Scripted

Script = Sequence[Said] | Callable[[ChatRequest], Said]


def group(*texts: str, answer: object = "42", question: str = "How much is 6 · 7?", **info: object) -> RolloutGroup:
    """Return a prompt with these answers."""
    prompt = Prompt("p1", [Message("user", question)], source="tests", answer=answer, info=info)
    return RolloutGroup(prompt, [Rollout(text) for text in texts])


def make(kind: type, **settings: object) -> Any:
    """Return a reward of these settings, checked as those of a recipe are; its model is called judge."""
    checked = settings_of(kind).model_validate({"model": "judge", **settings})
    return kind(**{name: getattr(checked, name) for name in type(checked).model_fields})


def connected(kind: type, script: Script, **settings: object) -> tuple[Any, Scripted]:
    reward, model = make(kind, **settings), Scripted(script)
    reward.connect({"judge": model}.__getitem__)
    return reward, model


def judge(kind: type, script: Script, rollouts: RolloutGroup, **settings: object) -> tuple[tuple[Score, ...], Scripted]:
    """Return the scores of a group, and the model that was called."""
    reward, model = connected(kind, script, **settings)
    return asyncio.run(reward.score(rollouts)), model


def outcomes(scores: Sequence[Score]) -> list[float | str | None]:
    """Return the value of each score, or the kind of its failure."""
    return [score.value if score.failure is None else score.failure.kind for score in scores]
