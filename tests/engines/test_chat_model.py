"""Replies and log-probabilities of an embedded chat model: those of the engine, whatever arrives together."""

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewardsmith.engines import ModelSettings
from rewardsmith.engines.embedded.chat_model import EmbeddedChatModel
from rewardsmith.engines.embedded.engine import EmbeddedEngine
from rewardsmith.engines.protocol import Row, Sampling
from rewardsmith.llm import ChatRequest, ModelCallError, Usage
from rewardsmith.rewards.cache import CachedModel, VerdictCache
from rewardsmith.types import Message, Prompt, Rollout, RolloutGroup
from tests.engines.running import answer, ask, hf_logprobs, hf_model, shared_engine
from tests.engines.test_rater import chat, open_rater, write_folder


@pytest.fixture
def engine():
    return EmbeddedEngine.open(ModelSettings(init="tiny-llama"), seed=3, name="judge")


def messages(text):
    return (Message("user", text),)


def chat_all(engine, questions, **changes):
    async def main():
        model = EmbeddedChatModel(engine, **changes)
        replies = await asyncio.gather(*map(model.chat, questions), return_exceptions=True)
        await model.close()
        return replies, model.usage

    return asyncio.run(main())


def test_greedy_replies_are_those_of_the_engine(engine):
    texts = ["7+5?", "a rather longer question than the others?", "1"]
    replies, usage = chat_all(engine, [ChatRequest(messages(text), max_tokens=9) for text in texts])

    async def generated():
        prompts = [Prompt(text, messages(text)) for text in texts]
        found = engine.generate(prompts, Sampling(temperature=0, max_tokens=9), n=1, seeds=[0] * 3)
        return {number: group.rollouts[0] async for number, group in found}

    rollouts = asyncio.run(generated())
    for number, reply in enumerate(replies):
        assert reply.text == rollouts[number].text
        assert reply.truncated == (rollouts[number].stop_reason == "length")
        np.testing.assert_allclose(reply.logprobs, rollouts[number].logprobs, atol=1e-5)
        assert reply.tokens == len(rollouts[number].tokens)
        assert reply.prompt_tokens == len(engine.encode(Prompt("p", messages(texts[number]))))
    assert (usage.calls, usage.failed) == (3, 0)
    assert usage.tokens == sum(reply.tokens for reply in replies)


def test_a_prompt_beyond_the_model_is_refused_alone(engine):
    replies, usage = chat_all(engine, [ChatRequest(messages("x" * 2000)), ChatRequest(messages("x"), max_tokens=3)])
    assert isinstance(replies[0], ModelCallError)
    assert replies[0].kind == "refused"
    assert "2002 tokens, and judge reads 1 to 1024" in str(replies[0])
    assert replies[1].tokens <= 3
    assert (usage.calls, usage.failed) == (1, 1)


def test_what_the_engine_raises_is_a_failure_and_the_next_question_is_answered(engine):
    async def main():
        model = EmbeddedChatModel(engine)
        engine.sleep()
        with pytest.raises(ModelCallError, match="offloaded"):
            await model.chat(ChatRequest(messages("x"), max_tokens=3))
        engine.wake()
        return await model.chat(ChatRequest(messages("x"), max_tokens=3))

    assert asyncio.run(main()).tokens <= 3


ENGINE = shared_engine("tiny-llama")


def group(*rollouts: Rollout, text: str = "7+5-3?") -> RolloutGroup:
    return RolloutGroup(ask(text), rollouts)


def read(
    *groups: RolloutGroup, engine: EmbeddedEngine = ENGINE, settings: dict[str, Any] | None = None
) -> tuple[list[Any], Usage]:
    """Return what the model makes of each group, and what that cost."""

    async def main() -> list[Any]:
        found = await asyncio.gather(*(model.read(one, **(settings or {})) for one in groups), return_exceptions=True)
        await model.close()
        return list(found)

    model = EmbeddedChatModel(engine)
    return asyncio.run(main()), model.usage


def expected(one: RolloutGroup, response: np.ndarray) -> np.ndarray:
    row = Row(ENGINE.encode(one.prompt), response)
    return hf_logprobs(hf_model("tiny-llama"), row).detach().numpy()


def test_tokens_are_read_as_they_were_written() -> None:
    groups = answer(ENGINE, ["7+5", "a longer question?"], Sampling(max_tokens=17), n=3)
    found, usage = read(*groups)
    for one, reads in zip(groups, found, strict=True):
        for rollout, each in zip(one.rollouts, reads, strict=True):
            np.testing.assert_allclose(each.logprobs, expected(one, rollout.tokens), atol=1e-4)
            np.testing.assert_allclose(each.logprobs, rollout.logprobs, atol=1e-4)  # sampled at temperature 1
            assert each.logprobs.dtype == np.float32
            assert each.ends.tolist() == ENGINE.offsets.token_char_ends(rollout.tokens, rollout.text).tolist()
    assert (usage.calls, usage.failed, usage.tokens) == (6, 0, 0)
    prompts = sum(len(ENGINE.encode(one.prompt)) for one in groups)
    assert usage.prompt_tokens == prompts + sum(len(r.tokens) - 1 for one in groups for r in one.rollouts)


def test_text_is_read_as_the_model_would_write_it() -> None:
    one = group(Rollout("7+5=12;#9"), Rollout("7+5=12;#9", stop_reason="length"), Rollout(""))
    ((ended, cut_off, nothing),), usage = read(one)
    tokens = ENGINE.encode_response("7+5=12;#9")
    np.testing.assert_allclose(ended.logprobs, expected(one, tokens), atol=1e-4)
    assert ended.ends.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]
    np.testing.assert_allclose(cut_off.logprobs, ended.logprobs[:-1], atol=1e-5)  # nobody ended it
    assert cut_off.ends.tolist() == list(range(1, 10))
    assert (len(nothing.logprobs), len(nothing.ends)) == (0, 0)
    assert usage.calls == 3


REFUSED = [
    (Rollout("12", tokens=[5, 10_000]), "token 10000 is beyond the .* another tokenizer"),
    (Rollout("hello", tokens=[20, 21]), "another tokenizer"),
    (Rollout("x" * 2_000), "prompt and response has 2009 tokens, and model reads 1 to 1024"),
]


@pytest.mark.parametrize(("rollout", "words"), REFUSED)
def test_what_the_model_cannot_read_is_refused_and_the_others_are_read(rollout: Rollout, words: str) -> None:
    (failed, fine), usage = read(group(Rollout("7"), rollout), group(Rollout("7")))
    assert isinstance(failed, ModelCallError)
    assert failed.kind == "refused"
    assert (usage.calls, usage.failed) == (1, 2)
    assert len(fine[0].logprobs) == 2
    with pytest.raises(ModelCallError, match=words):
        raise failed


# ---- what arrives together changes no bit ----------------------------------------------------------------------------


async def at_odd_times(calls: Sequence[Callable[[], Any]], seed: int) -> list[Any]:
    """Return what calls return that begin one after the other, some of them together."""
    rng = random.Random(seed)
    order = rng.sample(range(len(calls)), len(calls))
    tasks: dict[int, asyncio.Task[Any]] = {}
    for i in order:
        tasks[i] = asyncio.ensure_future(calls[i]())
        for _ in range(rng.choice([0, 0, 1, 3, 12])):
            await asyncio.sleep(0)
    return [await tasks[i] for i in range(len(calls))]


def random_text(rng: random.Random, max_length: int) -> str:
    return "".join(rng.choices("abcdefgh 0123456789+-=", k=rng.randint(1, max_length)))


def test_groups_that_share_an_answer_change_no_bit_of_each_other_in_the_cache(tmp_path: Path) -> None:
    """Which of two groups comes first, and what an earlier run has cached, must not matter."""
    rater = open_rater(write_folder("tiny-llama", tmp_path / "rm"))
    rng = random.Random(0)
    groups = [
        [chat(question, random_text(rng, 60)) for _ in range(6)]
        for question in (random_text(rng, 80) for _ in range(6))
    ]
    groups += [[*group[:2], chat(group[0][0].content, "another")] for group in groups[:3]]
    alone = [asyncio.run(rater.rate(group)) for group in groups]
    cache = VerdictCache(tmp_path / "cache", log=pytest.fail)
    cached = CachedModel(rater, cache)
    calls = [lambda group=group: cached.rate(group) for group in groups]
    asyncio.run(at_odd_times(calls[1::2], 1))  # a run that was stopped
    before = rater.usage.cached
    assert asyncio.run(at_odd_times(calls, 1)) == alone
    assert rater.usage.cached - before == sum(map(len, groups[1::2]))
    cache.close()


@pytest.mark.parametrize(("name", "temperature"), [("tiny-llama", 0.0), ("tiny-gemma2", 1.0)])
def test_requests_at_the_same_time_change_no_bit_of_each_other(name: str, temperature: float) -> None:
    """On a CPU a prompt is prefilled alone, and rows are decoded in eights: no bit depends on the other rows."""
    engine = EmbeddedEngine.open(ModelSettings(init=name, device="cpu"), seed=3)
    rng = random.Random(1)
    requests = [
        ChatRequest(messages(random_text(rng, 200)), max_tokens=rng.choice([3, 12]), temperature=temperature, seed=i)
        for i in range(12)
    ]

    async def replies(seed: int | None) -> list[tuple[str, tuple[float, ...]]]:
        model = EmbeddedChatModel(engine)
        calls = [lambda request=request: model.chat(request) for request in requests]
        found = [await call() for call in calls] if seed is None else await at_odd_times(calls, seed)
        await model.close()
        return [(reply.text, reply.logprobs) for reply in found]

    assert asyncio.run(replies(0)) == asyncio.run(replies(None))
