"""What a user may write before and after a judge."""

import asyncio
from typing import Any

from rewardsmith import Message, RolloutGroup
from rewardsmith.text.reading import Unreadable

NO_FUNCTION = 7


def messages(group: RolloutGroup) -> list[Any]:
    """One of each form that a prompt may have."""
    forms = [
        [Message("system", "Be strict."), Message("user", "first")],
        [{"role": "user", "content": "second"}],
        "third",
        None,
        7,
        [],
        [{"role": "user"}],
    ]
    return forms[: len(group.rollouts)]


async def slow_messages(group: RolloutGroup) -> list[str]:
    await asyncio.sleep(0)
    return [f"{group.prompt.id}: {rollout.text}" for rollout in group.rollouts]


def too_few(group: RolloutGroup) -> list[str]:
    return ["one"]


def no_list(group: RolloutGroup) -> str:
    return "one"


def broken(group: RolloutGroup) -> list[str]:
    raise KeyError("no such column")


def stars(text: str) -> float:
    return {"*": 0.1, "**": 0.2}[text]


def stars_or_again(text: str) -> float:
    if set(text) != {"*"}:
        raise ValueError(f"{text!r} is not made of stars")
    return len(text) / 10


def again(text: str) -> float:
    if text != "*":
        raise Unreadable("no star")
    return 1.0


async def slow_stars(text: str) -> tuple[float, str]:
    await asyncio.sleep(0)
    return len(text) / 10, f"{len(text)} stars"


def nothing(text: str) -> None:
    return None


def endless(text: str) -> float:
    return float("inf")


def words(text: str) -> str:
    return "0.5"
