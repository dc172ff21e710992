"""What a user may write before and after a judge."""

import asyncio
import os
import sys
import time
from typing import Any

from rewardsmith import Message, RolloutGroup
from rewardsmith.rewards import Halt
from rewardsmith.text.judge_replies import Unparsable

NO_FUNCTION = 7
LOOPS: list[asyncio.AbstractEventLoop] = []


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


def no_role(group: RolloutGroup) -> list[Any]:
    return [[{"role": "", "content": "x"}], *("chat" for _ in group.rollouts[1:])]


def no_unicode(group: RolloutGroup) -> list[str]:
    return ["\ud800", *("chat" for _ in group.rollouts[1:])]


async def hanging_messages(group: RolloutGroup) -> list[str]:
    await asyncio.sleep(3600)
    return []


def too_few(group: RolloutGroup) -> list[str]:
    return ["one"]


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
        raise Unparsable("no star")
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


def leaving(text: str) -> float:
    sys.exit(f"the score is {text}")


def halting(text: str) -> float:
    raise Halt("the judge is not the one that was meant")


async def hanging(text: str) -> float:
    await asyncio.sleep(3600)
    return 1.0


def blocking_messages(group: RolloutGroup) -> list[str]:
    while True:
        time.sleep(0.01)


def blocking_for_some(text: str) -> float:
    while "hang" in text:
        time.sleep(0.01)
    return 0.5


def slow_to_read(text: str) -> float:
    time.sleep(0.2)
    return 0.5


def dying(text: str) -> float:
    if "die" in text:
        os._exit(3)
    return 0.5


async def keeps_a_loop(text: str) -> float:
    LOOPS.append(asyncio.get_running_loop())
    return float(len({id(loop) for loop in LOOPS}))
