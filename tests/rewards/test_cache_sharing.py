"""Several who ask at the same time: in one event loop, in several threads, over several caches on one file."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rewardsmith.llm import ChatReply, ChatRequest, ModelCallError
from rewardsmith.rewards.cache import Cached, VerdictCache
from tests.rewards.counted import QUESTION, Model, talk


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[VerdictCache]:
    cache = VerdictCache(tmp_path / "cache", say=pytest.fail)
    yield cache
    cache.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def test_the_same_question_at_the_same_time_is_asked_once(cache: VerdictCache) -> None:
    model = Model()
    cached = Cached(model, cache)

    async def all_at_once() -> list[ChatReply]:
        return await asyncio.gather(*(cached.chat(QUESTION) for _ in range(8)))

    answers = asyncio.run(all_at_once())
    assert {answer.text for answer in answers} == {"answer 1"}
    assert sorted(answer.cached for answer in answers) == [False] + 7 * [True]
    assert model.usage.cached == 7
    assert cached._flights == {}


@pytest.mark.parametrize("verb", ["chat", "rate", "embed"])
@pytest.mark.parametrize("leaver", [0, 1])
def test_who_is_cancelled_takes_nothing_from_the_others(cache: VerdictCache, verb: str, leaver: int) -> None:
    model = Model()
    cached = Cached(model, cache)
    what = {"chat": QUESTION, "rate": [talk("a")], "embed": ["a"]}[verb]

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


def test_a_request_that_nobody_waits_for_is_cancelled(cache: VerdictCache) -> None:
    model = Model()
    cached = Cached(model, cache)

    async def all_leave() -> None:
        model.gate.clear()
        tasks = [asyncio.create_task(cached.chat(QUESTION)) for _ in range(3)]
        await until(lambda: model.requests == 1)
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in done)
        assert model.cancelled == 1
        model.gate.set()
        assert (await cached.chat(QUESTION)).text == "answer 2"

    asyncio.run(all_leave())


def test_a_deadline_around_a_question_ends_the_request(cache: VerdictCache) -> None:
    model = Model()

    async def hurried() -> None:
        model.gate.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await Cached(model, cache).chat(QUESTION)

    asyncio.run(hurried())
    assert model.cancelled == 1


def test_a_failure_is_shared_by_those_who_asked_the_same(cache: VerdictCache) -> None:
    def gone(_: ChatRequest) -> ChatReply:
        raise ModelCallError("unreachable", "no connection")

    model = Model(reply=gone)
    cached = Cached(model, cache)

    async def all_fail() -> list[object]:
        return list(await asyncio.gather(*(cached.chat(QUESTION) for _ in range(4)), return_exceptions=True))

    assert [type(one) for one in asyncio.run(all_fail())] == 4 * [ModelCallError]
    assert len(model.asked) == 1
    assert cached._flights == {}


def test_who_has_more_time_does_not_fail_with_who_has_less(cache: VerdictCache) -> None:
    def slow(question: ChatRequest) -> ChatReply:
        if question.deadline < 10:
            raise ModelCallError("timeout", "too late")
        return ChatReply("in time")

    model = Model(reply=slow)
    cached = Cached(model, cache)

    async def both() -> list[object]:
        model.gate.clear()
        hurried = asyncio.create_task(cached.chat(replace(QUESTION, deadline=1)))
        await until(lambda: model.requests == 1)
        patient = asyncio.create_task(cached.chat(replace(QUESTION, deadline=60)))
        await until(lambda: any(flight.waiting == 2 for flight in cached._flights.values()))
        model.gate.set()
        return list(await asyncio.gather(hurried, patient, return_exceptions=True))

    failed, answered = asyncio.run(both())
    assert isinstance(failed, ModelCallError)
    assert isinstance(answered, ChatReply)
    assert (answered.text, answered.cached) == ("in time", False)
    assert len(model.asked) == 2


def test_many_who_have_more_time_ask_once_more(cache: VerdictCache) -> None:
    def late(_: ChatRequest) -> ChatReply:
        raise ModelCallError("timeout", "too late")

    model = Model(reply=late)
    cached = Cached(model, cache)

    async def all_of_them() -> None:
        model.gate.clear()
        tasks = [asyncio.create_task(cached.chat(replace(QUESTION, deadline=1)))]
        await until(lambda: model.requests == 1)
        tasks += [asyncio.create_task(cached.chat(replace(QUESTION, deadline=5))) for _ in range(20)]
        await until(lambda: any(flight.waiting == 21 for flight in cached._flights.values()))
        model.gate.set()
        failed = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in failed] == 21 * [ModelCallError]

    asyncio.run(all_of_them())
    assert [asked.deadline for asked in model.asked if isinstance(asked, ChatRequest)] == [1, 5]


def test_equal_groups_that_fail_are_asked_for_once(cache: VerdictCache) -> None:
    model = Model()
    cached = Cached(model, cache)
    group = [talk("bad"), talk("good")]

    async def all_of_them() -> list[object]:
        return list(await asyncio.gather(*(cached.rate(group) for _ in range(20)), return_exceptions=True))

    assert [type(one) for one in asyncio.run(all_of_them())] == 20 * [ModelCallError]
    assert model.requests == 1


def test_what_many_groups_share_with_one_that_failed_is_asked_for_once_more(cache: VerdictCache) -> None:
    model = Model()
    cached = Cached(model, cache)

    async def all_of_them() -> list[object]:
        model.gate.clear()
        first = asyncio.create_task(cached.rate([talk("shared"), talk("bad")]))
        await until(lambda: model.requests == 1)
        others = [asyncio.create_task(cached.rate([talk("shared"), talk(str(number))])) for number in range(10)]
        await until(lambda: model.requests == 11)
        model.gate.set()
        return list(await asyncio.gather(first, *others, return_exceptions=True))

    failed, *rated = asyncio.run(all_of_them())
    assert isinstance(failed, ModelCallError)
    assert rated == 10 * [[len("shared") / 3, 1 / 3]]
    assert model.asked.count(talk("shared")) in (2, 3)  # not once for each of the ten


def test_a_group_does_not_fail_with_another_groups_conversation(cache: VerdictCache) -> None:
    model = Model()
    cached = Cached(model, cache)

    async def both() -> tuple[object, object]:
        model.gate.clear()
        first = asyncio.create_task(cached.rate([talk("shared"), talk("bad")]))
        await until(lambda: model.requests == 1)
        second = asyncio.create_task(cached.rate([talk("shared"), talk("own")]))
        await until(lambda: model.requests == 2)
        model.gate.set()
        return tuple(await asyncio.gather(first, second, return_exceptions=True))

    failed, rated = asyncio.run(both())
    assert isinstance(failed, ModelCallError)
    assert rated == [len("shared") / 3, len("own") / 3]
    assert model.asked == [talk("shared"), talk("bad"), talk("own"), talk("shared")]


def test_a_group_that_failed_itself_asks_for_nothing_more(cache: VerdictCache) -> None:
    model = Model()
    cached = Cached(model, cache)

    async def both() -> list[object]:
        model.gate.clear()
        first = asyncio.create_task(cached.rate([talk("shared"), talk("bad")]))
        await until(lambda: model.requests == 1)
        second = asyncio.create_task(cached.rate([talk("shared"), talk("also bad")]))
        await until(lambda: model.requests == 2)
        model.gate.set()
        return list(await asyncio.gather(first, second, return_exceptions=True))

    assert [type(one) for one in asyncio.run(both())] == [ModelCallError, ModelCallError]
    assert model.requests == 2


def test_groups_that_overlap_ask_for_each_conversation_once(cache: VerdictCache) -> None:
    model = Model()
    cached = Cached(model, cache)

    async def overlapping() -> list[list[float]]:
        groups = [[talk("x" * n) for n in range(first, first + 4)] for first in (1, 3, 5)]
        return await asyncio.gather(*(cached.rate(group) for group in groups))

    assert asyncio.run(overlapping()) == [[n / 3 for n in range(first, first + 4)] for first in (1, 3, 5)]
    assert len(model.asked) == 8
    assert model.usage.cached == 4


def test_who_joins_a_request_that_is_being_given_up_asks_anew(cache: VerdictCache) -> None:
    class Slow(Model):
        async def _open(self) -> None:
            try:
                await super()._open()
            except asyncio.CancelledError:
                await asyncio.sleep(0.05)  # saying goodbye to a server takes a while
                raise

    model = Slow()
    cached = Cached(model, cache)

    async def joined_late() -> ChatReply:
        model.gate.clear()
        first = asyncio.create_task(cached.chat(QUESTION))
        await until(lambda: model.requests == 1)
        first.cancel()
        await until(lambda: model.cancelled == 1)
        model.gate.set()
        return await cached.chat(QUESTION)

    assert asyncio.run(joined_late()).text == "answer 2"


def test_the_first_that_is_kept_counts_for_both_processes(tmp_path: Path) -> None:
    """Both have asked before either has kept: two caches on one file are as two processes."""
    caches = [VerdictCache(tmp_path, say=pytest.fail) for _ in range(2)]
    models = [Model(reply=lambda _: ChatReply("one")), Model(reply=lambda _: ChatReply("two"))]
    both = [Cached(model, cache) for model, cache in zip(models, caches, strict=True)]

    async def race() -> list[str]:
        for model in models:
            model.gate.clear()
        tasks = [asyncio.create_task(cached.chat(QUESTION)) for cached in both]
        await until(lambda: all(model.requests for model in models))
        texts = []
        for model, task in zip(models, tasks, strict=True):
            model.gate.set()
            texts.append((await task).text)
        return [*texts, (await both[1].chat(QUESTION)).text]

    assert asyncio.run(race()) == ["one", "one", "one"]
    for cache in caches:
        cache.close()


def test_every_thread_with_an_event_loop_of_its_own_gets_its_answers(cache: VerdictCache) -> None:
    model = Model(reply=lambda question: ChatReply(str(question.prompt)))
    cached = Cached(model, cache)
    wrong: list[object] = []

    async def many() -> None:
        questions = [ChatRequest(str(number % 40)) for number in range(80)]
        answers = await asyncio.gather(*(cached.chat(question) for question in questions))
        wrong.extend(a for q, a in zip(questions, answers, strict=True) if a.text != q.prompt)

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert sum(one.verdicts for one in cache.holdings()) == 40
    assert cached._flights == {}


def test_a_request_of_another_event_loop_is_not_waited_for(cache: VerdictCache) -> None:
    model = Model()
    cached = Cached(model, cache)
    there: list[str] = []
    go_on = threading.Event()

    async def stuck() -> None:
        model.gate = asyncio.Event()
        task = asyncio.create_task(cached.chat(QUESTION))
        await until(go_on.is_set)
        model.gate.set()
        there.append((await task).text)

    async def here() -> str:
        await until(lambda: model.requests == 1)
        model._open = lambda: asyncio.sleep(0)  # type: ignore[method-assign]
        answer = await cached.chat(QUESTION)
        go_on.set()
        return answer.text

    thread = threading.Thread(target=lambda: asyncio.run(stuck()))
    thread.start()
    assert asyncio.run(here()) == "answer 2"
    thread.join(60)
    assert there == ["answer 2"]
