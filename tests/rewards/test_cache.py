"""A model behind the cache: what is asked, what is not, and that nobody can tell the difference."""

import asyncio
import copy
import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError
from rewardsmith.rewards.cache import MOST, Cached, VerdictCache, key_of
from rewardsmith.rewards.judges.asking import Asker, AskingSettings
from rewardsmith.text.judge_replies import Unparsable
from rewardsmith.types import Message
from tests.rewards.counted import QUESTION, Model, talk


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[VerdictCache]:
    cache = VerdictCache(tmp_path / "cache", say=pytest.fail)
    yield cache
    cache.close()


# --- keys


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": talk("Is it wrong?")},
        {"prompt": [Message("system", "Is it right?")]},
        {"prompt": talk("Is it right?", "")},
        {"prompt": "Is it right?"},
        {"prompt": '[["user","Is it right?"]]'},
        {"temperature": 0.70000001},
        {"top_p": 0.9},
        {"max_tokens": 1025},
        {"stop": ("b", "a")},
        {"stop": ("a,b",)},
        {"stop": ()},
        {"seed": 1},
        {"attempt": 1},
        {"logprobs": True},
    ],
)
def test_whatever_may_change_the_answer_changes_the_key(change: dict) -> None:
    changed = replace(QUESTION, **change)
    assert key_of("m", "chat", changed.prompt, changed) != key_of("m", "chat", QUESTION.prompt, QUESTION)


def test_model_and_verb_change_the_key_and_spelling_does_not() -> None:
    keys = {key_of(model, verb, "text") for model in ("m", "n") for verb in ("chat", "rate", "embed")}
    assert len(keys) == 6
    same = replace(QUESTION, prompt=tuple(talk("Is it right?")), deadline=1.0, stop=["a", "b"])  # type: ignore[arg-type]
    assert key_of("m", "chat", same.prompt, same) == key_of("m", "chat", QUESTION.prompt, QUESTION)
    whole = [replace(QUESTION, temperature=zero) for zero in (0, 0.0, -0.0)]
    assert len({key_of("m", "chat", one.prompt, one) for one in whole}) == 1


TURNS = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(max_size=4)), max_size=3)
WORDS = st.text(st.characters(codec=None, exclude_categories=()), max_size=3)  # halves of surrogate pairs too
QUESTIONS = st.builds(
    ChatRequest,
    prompt=st.one_of(WORDS, TURNS.map(lambda turns: [Message(*turn) for turn in turns])),
    temperature=st.floats(0, 2),
    top_p=st.sampled_from([0.5, 1.0]),
    max_tokens=st.integers(1, 3),
    stop=st.lists(WORDS, max_size=2).map(tuple),
    seed=st.integers(0, 2),
    attempt=st.integers(0, 2),
    logprobs=st.booleans(),
    deadline=st.floats(1, 9),
)


@given(QUESTIONS, QUESTIONS)
@example(ChatRequest("\ud83d\ude00"), ChatRequest("\U0001f600"))  # what JSON's escapes cannot tell apart
@example(ChatRequest("a", stop=("\ud83d\ude00",)), ChatRequest("a", stop=("\U0001f600",)))
def test_two_questions_have_one_key_exactly_when_they_are_the_same(one: ChatRequest, other: ChatRequest) -> None:
    keys = [key_of("m", "chat", question.prompt, question) for question in (one, other)]
    assert (keys[0] == keys[1]) == (replace(one, deadline=1) == replace(other, deadline=1))


# --- answers


def test_a_replay_asks_nothing_and_gets_the_same(cache: VerdictCache) -> None:
    said = ChatReply(
        "text", truncated=True, thought="hm", prompt_tokens=7, tokens=9, logprobs=(-0.1, -math.inf, -1e-300),
        seconds=2.5, attempts=3,
    )  # fmt: skip
    first, second = Model(reply=lambda _: said), Model(name="other name")
    assert asyncio.run(Cached(first, cache).chat(QUESTION)) == said
    again = Cached(second, cache)
    assert asyncio.run(again.chat(QUESTION)) == replace(said, seconds=0.0, attempts=1, cached=True)
    assert second.asked == []
    assert again.usage is second.usage
    assert (first.usage.cached, second.usage.cached) == (0, 1)


def test_numbers_may_be_those_of_numpy(cache: VerdictCache) -> None:
    said = ChatReply("text", tokens=np.int64(3), logprobs=tuple(np.array([-0.1, -2.5], np.float32)))  # type: ignore[arg-type]
    model = Model(reply=lambda _: said)
    assert asyncio.run(Cached(model, cache).chat(QUESTION)) == said
    assert asyncio.run(Cached(model, cache).chat(QUESTION)) == replace(said, cached=True)


@pytest.mark.parametrize(("over", "times"), [(0, 1), (1, 2)])
def test_the_largest_answer_that_is_kept(tmp_path: Path, over: int, times: int) -> None:
    frame = len('{"logprobs":[],"prompt_tokens":0,"text":"","thought":"","tokens":0,"truncated":false}')
    model, cache = (
        Model(reply=lambda _: ChatReply("x" * (MOST - frame + over))),
        VerdictCache(tmp_path, say=lambda _: None),
    )
    for _ in range(2):
        asyncio.run(Cached(model, cache).chat(QUESTION))
    cache.close()
    assert len(model.asked) == times


def test_other_weights_another_attempt_and_another_seed_are_asked(cache: VerdictCache) -> None:
    model = Model()
    cached = Cached(model, cache)

    async def all_of_it() -> list[str]:
        questions = [QUESTION, replace(QUESTION, attempt=1), replace(QUESTION, seed=4), QUESTION]
        texts = [(await cached.chat(question)).text for question in questions]
        model.weights = "weights-2"
        return [*texts, (await cached.chat(QUESTION)).text]

    assert asyncio.run(all_of_it()) == ["answer 1", "answer 2", "answer 3", "answer 1", "answer 4"]


def test_an_unreadable_verdict_is_replayed_the_same_way(cache: VerdictCache) -> None:
    """The replay reads the bad answer, tries again as the run did, and finds that answer too."""

    def read(text: str) -> str:
        if text != "answer 3":
            raise Unparsable("no grade", text)
        return text

    async def verdict(model: Model) -> tuple[str, int]:
        asker = Asker("judge", AskingSettings())
        asker.connect({"judge": Cached(model, cache)}.__getitem__)
        found = await asker.verdict(talk("q"), read)
        return found.value, found.attempts

    run, replay = Model(), Model()
    assert asyncio.run(verdict(run)) == asyncio.run(verdict(replay)) == ("answer 3", 3)
    assert len(run.asked) == 3
    assert replay.asked == []


@given(st.lists(WORDS, min_size=2, max_size=2), st.lists(st.floats(), max_size=3))
@example(["\ud83d\ude00 \ud800", "\x00"], [math.nan])
def test_any_text_and_any_number_comes_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], numbers: list[float]
) -> None:
    cache = VerdictCache(tmp_path_factory.mktemp("cache"), say=pytest.fail)
    said = ChatReply(texts[0], thought=texts[1], logprobs=tuple(numbers))
    asyncio.run(Cached(Model(reply=lambda _: said), cache).chat(QUESTION))
    found = asyncio.run(Cached(Model(), cache).chat(QUESTION))
    cache.close()
    assert (found.text, found.thought) == (said.text, said.thought)
    assert [struct.pack("d", n) for n in found.logprobs if n == n] == [struct.pack("d", n) for n in numbers if n == n]
    assert [n != n for n in found.logprobs] == [n != n for n in numbers]


def test_long_answers_are_kept_and_endless_ones_are_told_of(tmp_path: Path) -> None:
    told: list[str] = []
    cache = VerdictCache(tmp_path, say=told.append)
    long, endless = "ünïcode " * 1_000_000, "x" * (MOST + 1)
    for text in (long, endless):
        model = Model(reply=lambda _, text=text: ChatReply(text))  # type: ignore[misc]
        for _ in range(2):
            assert asyncio.run(Cached(model, cache).chat(ChatRequest(text[:9]))).text == text
        assert len(model.asked) == (1 if text is long else 2)
    assert len(told) == 1
    assert "judge is not kept" in told[0]
    assert cache.size() < 1_000_000  # compressed
    cache.close()


@pytest.mark.parametrize("number", [0.1 + 0.2, -1e-300, 5e-324, 1.7976931348623157e308, -0.0, 3])
def test_ratings_are_exact(cache: VerdictCache, number: float) -> None:
    class Rating(Model):
        async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
            return [number]

    first = asyncio.run(Cached(Rating(), cache).rate([talk("a")]))
    model = Model()
    found = asyncio.run(Cached(model, cache).rate([talk("a")]))
    assert struct.pack("d", found[0]) == struct.pack("d", first[0]) == struct.pack("d", float(number))
    assert model.asked == []


def test_only_unknown_conversations_are_rated_in_their_order(cache: VerdictCache) -> None:
    model = Model()
    cached = Cached(model, cache)
    texts = ["a", "bb", "a", "ccc", "bb"]

    async def rated() -> list[float]:
        await cached.rate([talk("bb")])
        return await cached.rate([talk(text) for text in texts])

    assert asyncio.run(rated()) == [len(text) / 3 for text in texts]
    assert model.asked == [talk("bb"), talk("a"), talk("ccc")]
    assert model.requests == 2
    assert model.usage.cached == 3
    assert asyncio.run(cached.rate([])) == []
    assert model.requests == 2


def test_vectors_are_exact_and_only_unknown_texts_are_embedded(cache: VerdictCache) -> None:
    model, texts = Model(), ["one", "three", "one", ""]
    cached = Cached(model, cache)
    plain = asyncio.run(Model().embed(texts))
    asyncio.run(cached.embed(["three"]))
    for _ in range(2):
        found = asyncio.run(cached.embed(texts))
        assert found.dtype == np.float32
        assert found.tobytes() == plain.tobytes()
    assert model.asked == ["three", "one", ""]
    assert asyncio.run(cached.embed([])).shape == (0, 8)


def test_what_is_not_finite_is_not_kept(tmp_path: Path) -> None:
    class Broken(Model):
        async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
            return [math.nan for _ in conversations]

    told: list[str] = []
    cache = VerdictCache(tmp_path, say=told.append)
    asyncio.run(Cached(Broken(), cache).rate([talk("a")]))
    assert asyncio.run(Cached(Model(), cache).rate([talk("a")])) == [1 / 3]
    assert len(told) == 1
    cache.close()


def test_failures_are_not_kept(cache: VerdictCache) -> None:
    model = Model()

    def gone(_: ChatRequest) -> ChatReply:
        raise ModelCallError("unreachable", "no connection", attempts=4)

    model.reply = gone
    cached = Cached(model, cache)
    with pytest.raises(ModelCallError, match="no connection"):
        asyncio.run(cached.chat(QUESTION))
    assert model.usage.cached == 0
    model.reply = lambda _: ChatReply("back")
    assert asyncio.run(cached.chat(QUESTION)).text == "back"


def test_the_rest_of_the_model_is_its_own(cache: VerdictCache) -> None:
    model = Model()
    cached = Cached(model, cache)
    assert cached.name == "judge"
    assert asyncio.run(cached.identity()) == "weights-1"
    asyncio.run(cached.check())
    asyncio.run(cached.sleep())
    assert model.checked
    assert not model.awake
    with pytest.raises(AttributeError, match="fly"):
        _ = cached.fly
    assert copy.copy(cached).name == "judge"


def test_an_absurd_number_of_tokens_is_no_trouble(cache: VerdictCache) -> None:
    model = Model(name="odd \ud800 name")
    model.weights = "\ud800"
    for tokens in (10**40, -5):
        model.reply = lambda question, tokens=tokens: replace(Model().reply(question), tokens=tokens)  # type: ignore[misc]
        asyncio.run(Cached(model, cache).chat(ChatRequest(str(tokens))))
    assert [(one.model, one.identity, one.tokens) for one in cache.holdings()] == [
        ("odd \\ud800 name", "\\ud800", 2**40)
    ]


def test_the_example_in_the_document_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cache.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.S | re.M)
    exec(compile(example, "docs/cache.md", "exec"), {})


@pytest.mark.parametrize(("verb", "what"), [("chat", QUESTION), ("rate", [talk("a")]), ("embed", ["a"])])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UserError("there are several models: name one"), "refused"),
        (ModelCallError("unreachable", "gone"), "unreachable"),
    ],
)
def test_a_model_that_cannot_say_what_it_is_gives_no_answer(
    cache: VerdictCache, verb: str, what: object, error: Exception, kind: str
) -> None:
    class Nameless(Model):
        async def identity(self) -> str:
            raise error

    cached = Cached(model := Nameless(), cache)
    with pytest.raises(ModelCallError, match=str(error)) as caught:
        asyncio.run(getattr(cached, verb)(what))
    assert caught.value.kind == kind
    assert (model.usage.failed, model.requests) == (1, 0)
