"""Rewards to be measured that read their verdict from the answer, and nouns to measure them with."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from rewardsmith.config import Chosen
from rewardsmith.jobs import Result
from rewardsmith.rewards import REWARD
from rewardsmith.trainers.evaluate.evaluate_reward import EvaluateReward
from rewardsmith.trainers.evaluate.scorer import Scorer
from rewardsmith.types import Failure, Graded, Message, Preference, Prompt, Ranking, RolloutGroup, Score

T = TypeVar("T")


class Numbers:
    """The number that an answer is; what is no number cannot be parsed."""

    def __init__(self, *, scale: float = 1.0) -> None:
        self.scale = scale

    async def score(self, group: RolloutGroup) -> list[Score]:
        found = [_number(rollout.text) for rollout in group.rollouts]
        return [s if s.value is None else Score(self.scale * s.value) for s in found]


class LikesFirst:
    """The number that an answer is, and half a point for standing first."""

    async def score(self, group: RolloutGroup) -> list[Score]:
        found = [_number(rollout.text) for rollout in group.rollouts]
        return [Score(s.value + 0.5 * (i == 0)) if s.value is not None else s for i, s in enumerate(found)]


class Fickle:
    """Gives the same answer another score with each call."""

    calls = 0

    async def score(self, group: RolloutGroup) -> list[Score]:
        Fickle.calls += 1
        return [Score(float(Fickle.calls)) for _ in group.rollouts]


class Steps:
    """1 for an answer whose steps hold: its text has no question mark."""

    async def score(self, group: RolloutGroup) -> list[Score]:
        return [Score(float("?" not in rollout.text)) for rollout in group.rollouts]


class Endless:
    """Groups without end."""

    def prompts(self, seed: int) -> Iterator[Prompt]:
        return (one.prompt for one in self.rankings(seed))

    def rankings(self, seed: int) -> Iterator[Ranking]:
        while True:
            yield ranking([1.0, 2.0], ["1", "2"])


def _number(text: str) -> Score:
    try:
        return Score(float(text))
    except ValueError:
        return Score(failure=Failure("unparsable", f"{text} is no number"))


def chosen(name: str) -> Chosen:
    """Return a reward of this file as a recipe would choose it; another type is taken as it is."""
    return REWARD.choose(name if ":" in name else f"tests.trainers.evaluate.rewards:{name}")


def scorer(name: str = "Numbers", **options: Any) -> Scorer:
    return Scorer(chosen(name), **options)


def evaluate(kind: str, items: list[Any], reward: str = "Numbers", **settings: Any) -> Result:
    """Measure a reward of this file."""
    job = EvaluateReward(kind=kind, data="data", reward=chosen(reward), **settings)  # type: ignore[arg-type]
    return asyncio.run(job.evaluate(items, scorer(reward)))


def prompt(number: int = 0, **info: Any) -> Prompt:
    return Prompt(f"p{number}", [Message("user", "Which is best?")], source=info.pop("source", ""), info=info)


def ranking(truth: list[float], texts: list[str], number: int = 0) -> Ranking:
    return Ranking(prompt(number), texts, truth)  # type: ignore[arg-type]


def graded(grade: float, text: str, right: bool | None = None, sound: bool | None = None) -> Graded:
    return Graded(prompt(), text, grade, right, sound)


def pair(good: str, bad: str, subset: str = "", *, tied: bool = False) -> Preference:
    return Preference(prompt(**({"subset": subset} if subset else {})), good, bad, tied=tied)


def wait(result: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(result)
