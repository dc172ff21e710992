"""What a model of this process works on at the same time changes no bit of its replies: that would depend on chance."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.engines import ModelSettings
from rewardsmith.engines.embedded.chat_model import EmbeddedChatModel, EmbeddedRater
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.llm import ChatRequest, Conversation
from rewardsmith.rewards.cache import CachedModel, VerdictCache
from rewardsmith.types import Message
from tests.engines.test_rater import chat, open_rater, write_folder

LETTERS = "abcdefgh 0123456789+-="


def text(rng: random.Random, longest: int) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(1, longest)))


@pytest.fixture(scope="module")
def rater(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedRater:
    return open_rater(write_folder("tiny-llama", tmp_path_factory.mktemp("rater") / "rm"))


def groups_of(count: int, seed: int = 0) -> list[list[Conversation]]:
    """Return answers to several prompts, some of which stand in two groups."""
    rng = random.Random(seed)
    groups = []
    for _ in range(count):
        question = text(rng, 80)
        groups.append([chat(question, text(rng, 60)) for _ in range(6)])
    return [*groups, *([*groups[i][:2], chat(groups[i][0][0].content, "another")] for i in range(min(3, count)))]


async def at_odd_times(calls: Sequence[Any], seed: int) -> list[Any]:
    """Return what calls return that begin one after the other, some of them together."""
    rng = random.Random(seed)
    order = list(range(len(calls)))
    rng.shuffle(order)
    tasks: dict[int, asyncio.Task[Any]] = {}
    for i in order:
        tasks[i] = asyncio.ensure_future(calls[i]())
        for _ in range(rng.choice([0, 0, 1, 3, 12])):
            await asyncio.sleep(0)
    return [await tasks[i] for i in range(len(calls))]


def test_groups_that_share_an_answer_change_no_bit_of_each_other_in_the_cache(
    rater: EmbeddedRater, tmp_path: Path
) -> None:
    """Which of two groups comes first, and what a run before it has kept, must not matter."""
    groups = groups_of(6)
    alone = [asyncio.run(rater.rate(group)) for group in groups]
    cache = VerdictCache(tmp_path, log=pytest.fail)
    cached = CachedModel(rater, cache)
    calls = [lambda group=group: cached.rate(group) for group in groups]
    asyncio.run(at_odd_times(calls[1::2], 1))  # a run that was stopped
    before = rater.usage.cached
    assert asyncio.run(at_odd_times(calls, 1)) == alone
    assert rater.usage.cached - before == sum(map(len, groups[1::2]))
    cache.close()


# ---- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "temperature"), [("tiny-llama", 0.0), ("tiny-gemma2", 1.0)])
def test_questions_that_are_answered_at_the_same_time_change_no_bit_of_each_other(
    name: str, temperature: float
) -> None:
    """On a CPU a prompt is read alone, and rows are decoded in eights: no bit depends on the other rows."""
    engine = EmbeddedEngine.open(ModelSettings(init=name, device="cpu"), seed=3)
    rng = random.Random(1)
    questions = [
        ChatRequest((Message("user", text(rng, 200)),), max_tokens=rng.choice([3, 12]), temperature=temperature, seed=i)
        for i in range(12)
    ]

    async def ask(seed: int | None) -> list[tuple[str, tuple[float, ...]]]:
        model = EmbeddedChatModel(engine)
        calls = [lambda question=question: model.chat(question) for question in questions]
        found = [await call() for call in calls] if seed is None else await at_odd_times(calls, seed)
        await model.close()
        return [(answer.text, answer.logprobs) for answer in found]

    alone = asyncio.run(ask(None))
    assert asyncio.run(ask(0)) == alone
