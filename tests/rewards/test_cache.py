"""A model behind the cache: what is sent, what is not, and that nobody can tell the difference."""

import asyncio
import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError
from rewardsmith.rewards.cache import CachedModel, VerdictCache, key_of
from rewardsmith.types import Message
from tests.rewards.cache_stubs import REQUEST, CountingModel, talk


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[VerdictCache]:
    cache = VerdictCache(tmp_path / "cache", say=pytest.fail)
    yield cache
    cache.close()


# --- keys


CHANGES: list[dict] = [
    {"prompt": talk("Is it wrong?")}, {"prompt": [Message("system", "Is it right?")]},
    {"prompt": talk("Is it right?", "")}, {"prompt": "Is it right?"}, {"prompt": '[["user","Is it right?"]]'},
    {"temperature": 0.70000001}, {"top_p": 0.9}, {"max_tokens": 1025}, {"stop": ("b", "a")}, {"stop": ("a,b",)},
    {"stop": ()}, {"seed": 1}, {"attempt": 1}, {"logprobs": True},
]  # fmt: skip


def test_whatever_may_change_the_reply_changes_the_key_and_spelling_does_not() -> None:
    changed = [replace(REQUEST, **change) for change in ({}, *CHANGES)]
    keys = {key_of(model, "chat", one.prompt, one) for one in changed for model in ("m", "n")}
    assert len(keys) == 2 * (len(CHANGES) + 1)
    assert len({key_of("m", verb, "text") for verb in ("chat", "rate", "embed")}) == 3
    same = replace(REQUEST, prompt=tuple(talk("Is it right?")), deadline=1.0, stop=["a", "b"])  # type: ignore[arg-type]
    assert key_of("m", "chat", same.prompt, same) in keys
    zeros = [replace(REQUEST, temperature=zero) for zero in (0, 0.0, -0.0)]
    assert len({key_of("m", "chat", one.prompt, one) for one in zeros}) == 1


WORDS = st.text(st.characters(codec=None, exclude_categories=()), max_size=3)  # halves of surrogate pairs too


# --- replies


def test_a_replay_sends_nothing_and_gets_the_same(cache: VerdictCache) -> None:
    reply = ChatReply(
        "text", truncated=True, thought="hm", prompt_tokens=7, tokens=np.int64(9),  # type: ignore[arg-type]
        logprobs=(np.float32(-0.5), -math.inf, -1e-300), seconds=2.5, attempts=3,
    )  # fmt: skip
    first, second = CountingModel(reply=lambda _: reply), CountingModel(name="other name")
    assert asyncio.run(CachedModel(first, cache).chat(REQUEST)) == reply
    replay = CachedModel(second, cache)
    assert asyncio.run(replay.chat(REQUEST)) == replace(reply, seconds=0.0, attempts=1, cached=True)
    assert second.calls == []
    assert (first.usage.cached, second.usage.cached, replay.usage.cached) == (0, 1, 1)


def test_other_weights_another_attempt_and_another_seed_are_sent(cache: VerdictCache) -> None:
    cached = CachedModel(model := CountingModel(), cache)

    async def replies() -> list[str]:
        requests = [REQUEST, replace(REQUEST, attempt=1), replace(REQUEST, seed=4), REQUEST]
        texts = [(await cached.chat(request)).text for request in requests]
        model.weights = "weights-2"
        return [*texts, (await cached.chat(REQUEST)).text]

    assert asyncio.run(replies()) == ["reply 1", "reply 2", "reply 3", "reply 1", "reply 4"]


@given(st.lists(WORDS, min_size=2, max_size=2), st.lists(st.floats(), max_size=3))
@example(["\ud83d\ude00 \ud800", "\x00"], [math.nan])
@example(["ünïcode " * 100_000, ""], [])
def test_any_text_and_any_number_comes_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], numbers: list[float]
) -> None:
    cache = VerdictCache(tmp_path_factory.mktemp("cache"), say=pytest.fail)
    reply = ChatReply(texts[0], thought=texts[1], logprobs=tuple(numbers))
    asyncio.run(CachedModel(CountingModel(reply=lambda _: reply), cache).chat(REQUEST))
    found = asyncio.run(CachedModel(CountingModel(), cache).chat(REQUEST))
    cache.close()
    assert (found.text, found.thought) == (reply.text, reply.thought)
    assert [struct.pack("d", n) for n in found.logprobs if n == n] == [struct.pack("d", n) for n in numbers if n == n]
    assert [n != n for n in found.logprobs] == [n != n for n in numbers]


def test_ratings_are_exact_and_only_unknown_ones_are_sent_in_order(cache: VerdictCache) -> None:
    class Rating(CountingModel):
        async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
            await super().rate(conversations)
            return [float(conversation[0].content) for conversation in conversations]

    texts = [str(number) for number in (0.1 + 0.2, -1e-300, 5e-324, 1.7976931348623157e308, -0.0, 3)]
    cached = CachedModel(model := Rating(), cache)
    asyncio.run(cached.rate([talk(texts[1])]))
    for wanted in (texts, [*texts, *texts]):
        found = asyncio.run(cached.rate([talk(text) for text in wanted]))
        assert [struct.pack("d", n) for n in found] == [struct.pack("d", float(text)) for text in wanted]
    assert model.calls == [talk(text) for text in (texts[1], texts[0], *texts[2:])]
    assert model.requests == 2
    assert model.usage.cached == 1 + 12
    assert asyncio.run(cached.rate([])) == []


def test_vectors_are_exact_and_only_unknown_texts_are_sent(cache: VerdictCache) -> None:
    model, texts = CountingModel(), ["one", "three", "one", ""]
    cached = CachedModel(model, cache)
    expected = asyncio.run(CountingModel().embed(texts))
    asyncio.run(cached.embed(["three"]))
    for _ in range(2):
        found = asyncio.run(cached.embed(texts))
        assert found.dtype == np.float32
        assert found.tobytes() == expected.tobytes()
    assert model.calls == ["three", "one", ""]
    assert asyncio.run(cached.embed([])).shape == (0, 8)


def test_failures_are_not_stored_and_replies_without_a_verdict_are_forgotten(cache: VerdictCache) -> None:
    def gone(_: ChatRequest) -> ChatReply:
        raise ModelCallError("unreachable", "no connection", attempts=4)

    cached = CachedModel(model := CountingModel(reply=gone), cache)
    with pytest.raises(ModelCallError, match="no connection"):
        asyncio.run(cached.chat(REQUEST))
    assert model.usage.cached == 0
    model.reply = lambda _: ChatReply("back")
    assert asyncio.run(cached.chat(REQUEST)).text == "back"
    asyncio.run(cached.forget([REQUEST]))
    cache.close()  # waits for the writer
    model.reply = lambda _: ChatReply("fixed")
    assert asyncio.run(cached.chat(REQUEST)).text == "fixed"


def test_claims_of_a_server_cannot_break_the_file(cache: VerdictCache) -> None:
    model = CountingModel(name="odd \ud800 name")
    model.weights = "\ud800"
    for tokens in (10**40, -5):
        model.reply = lambda request, tokens=tokens: ChatReply("text", tokens=tokens)  # type: ignore[misc]
        asyncio.run(CachedModel(model, cache).chat(ChatRequest(str(tokens))))
    assert [(one.model, one.identity, one.tokens) for one in cache.contents()] == [
        ("odd \\ud800 name", "\\ud800", 2**40)
    ]


ERRORS = [(UserError("name one"), "refused"), (ModelCallError("timeout", "gone"), "timeout")]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_a_model_without_identity_gives_no_reply(cache: VerdictCache, error: Exception, kind: str) -> None:
    class Nameless(CountingModel):
        async def identity(self) -> str:
            raise error

    cached = CachedModel(model := Nameless(), cache)
    for call in (cached.chat(REQUEST), cached.rate([talk("a")]), cached.embed(["a"])):
        with pytest.raises(ModelCallError, match=str(error)) as caught:
            asyncio.run(call)  # type: ignore[arg-type]
        assert caught.value.kind == kind
    assert (model.usage.failed, model.requests) == (3, 0)


# --- the same request at the same time


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def test_the_same_request_at_the_same_time_is_sent_once(cache: VerdictCache) -> None:
    cached = CachedModel(model := CountingModel(), cache)

    async def all_at_once() -> list[ChatReply]:
        rates = asyncio.gather(*(cached.rate([talk("a"), talk("b")]) for _ in range(3)))
        replies = await asyncio.gather(*(cached.chat(REQUEST) for _ in range(8)))
        await rates
        return replies

    replies = asyncio.run(all_at_once())
    assert {reply.text for reply in replies} == {replies[0].text}
    assert sorted(reply.cached for reply in replies) == [False] + 7 * [True]
    assert model.requests == 2
    assert model.usage.cached == 7 + 4
    assert cached._flights == {}


@pytest.mark.parametrize("verb", ["chat", "rate", "embed"])
@pytest.mark.parametrize("leaver", [0, 1])
def test_a_waiter_that_is_cancelled_takes_nothing_from_the_others(cache: VerdictCache, verb: str, leaver: int) -> None:
    cached = CachedModel(model := CountingModel(), cache)
    what = {"chat": REQUEST, "rate": [talk("a")], "embed": ["a"]}[verb]

    async def one_leaves() -> object:
        model.gate.clear()
        tasks = [asyncio.create_task(getattr(cached, verb)(what)) for _ in range(2)]
        await until(lambda: model.requests == 1)
        tasks[leaver].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[leaver]
        assert not model.cancelled
        model.gate.set()
        return await tasks[1 - leaver]

    assert asyncio.run(one_leaves()) is not None
    assert model.requests == 1


def test_a_call_that_nobody_waits_for_is_cancelled(cache: VerdictCache) -> None:
    cached = CachedModel(model := CountingModel(), cache)

    async def all_leave() -> None:
        model.gate.clear()
        tasks = [asyncio.create_task(cached.chat(REQUEST)) for _ in range(3)]
        await until(lambda: model.requests == 1)
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in done)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await cached.chat(REQUEST)
        assert model.cancelled == 2
        model.gate.set()
        assert (await cached.chat(REQUEST)).text == "reply 3"

    asyncio.run(all_leave())


def test_a_failure_is_shared_by_calls_with_the_same_deadline_only(cache: VerdictCache) -> None:
    def slow(request: ChatRequest) -> ChatReply:
        if request.deadline < 10:
            raise ModelCallError("timeout", "too late")
        return ChatReply("in time")

    cached = CachedModel(model := CountingModel(reply=slow), cache)

    async def both() -> list[object]:
        deadlines = (1, 1, 60, 1)
        calls = (cached.chat(replace(REQUEST, deadline=deadline)) for deadline in deadlines)
        return list(await asyncio.gather(*calls, return_exceptions=True))

    assert [getattr(one, "text", "failed") for one in asyncio.run(both())] == ["failed", "failed", "in time", "failed"]
    assert len(model.calls) == 2


def test_the_first_reply_that_is_stored_counts_for_both_processes(tmp_path: Path) -> None:
    """Both have sent before either has stored: two caches on one file are like two processes."""
    caches = [VerdictCache(tmp_path, say=pytest.fail) for _ in range(2)]
    models = [CountingModel(reply=lambda _, i=i: ChatReply(f"by {i}")) for i in range(2)]  # type: ignore[misc]

    async def together() -> list[str]:
        for model in models:
            model.gate.clear()
        tasks = [
            asyncio.create_task(CachedModel(model, cache).chat(REQUEST))
            for model, cache in zip(models, caches, strict=True)
        ]
        await until(lambda: all(model.requests for model in models))
        models[1].gate.set()
        await tasks[1]
        models[0].gate.set()
        return [(await task).text for task in tasks]

    assert asyncio.run(together()) == ["by 1", "by 1"]
    for cache in caches:
        cache.close()


@given(WORDS, WORDS)
@example("\ud83d\ude00", "\U0001f600")  # what JSON's escapes cannot tell apart
def test_different_texts_have_different_keys(one: str, other: str) -> None:
    assert (key_of("m", "chat", one) == key_of("m", "chat", other)) == (one == other)
    keys = [key_of("m", "chat", "a", ChatRequest("a", stop=(text,))) for text in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


def test_the_example_in_the_document_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cache.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.S | re.M)
    exec(compile(example, "docs/cache.md", "exec"), {})
