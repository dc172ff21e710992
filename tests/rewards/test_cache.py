"""The verdict cache: what is sent and what is not, exact replies, damage, full disks, many users at once."""

import asyncio
import hashlib
import math
import multiprocessing
import os
import random
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rewardsmith.errors import UserError
from rewardsmith.llm import ChatReply, ChatRequest, Conversation, ModelCallError, Usage
from rewardsmith.rewards import cache as cache_module
from rewardsmith.rewards.cache import FILE, CachedModel, CacheRow, VerdictCache, cache_folder, key_of
from rewardsmith.types import Message


class CountingModel:
    """Replies with the number of the call, and records its input; `gate` holds the replies back."""

    def __init__(self, name: str = "judge", reply: Callable[[ChatRequest], ChatReply] | None = None) -> None:
        self.name, self.usage, self.weights = name, Usage(), "weights-1"
        self.calls: list[ChatRequest | Conversation | str] = []
        self.requests = self.cancelled = 0
        self.reply = reply or (lambda request: ChatReply(f"reply {len(self.calls)}", tokens=3, prompt_tokens=5))
        self.gate = asyncio.Event()
        self.gate.set()

    async def identity(self) -> str:
        return self.weights

    async def check(self) -> None: ...

    async def _call(self, *inputs: Any) -> None:
        self.calls += inputs
        self.requests += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def chat(self, question: ChatRequest) -> ChatReply:
        await self._call(question)
        return self.reply(question)

    async def rate(self, conversations: Sequence[Conversation]) -> list[float]:
        await self._call(*conversations)
        return [float(conversation[-1].content) for conversation in conversations]

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        await self._call(*texts)
        rows = [np.random.default_rng(len(text)).standard_normal(8) for text in texts]
        return np.array(rows, np.float32).reshape(len(texts), 8)


def talk(*texts: str) -> list[Message]:
    return [Message("user", text) for text in texts]


REQUEST = ChatRequest(talk("Is it right?"), temperature=0.7, stop=("a", "b"))


def row(number: int, value: bytes | None = None, **changes: Any) -> CacheRow:
    key = hashlib.sha256(str(number).encode()).digest()
    new = CacheRow(key, "judge", "m@1", "chat", 1000 + number, 10, 2, b"j%d" % number if value is None else value)
    return new._replace(**changes)


def count(folder: Path) -> int:
    """Return how many rows there are, after SQLite has checked every page."""
    with sqlite3.connect(folder / FILE) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found = connection.execute("SELECT count(*) FROM verdicts").fetchone()[0]
    connection.close()
    return int(found)


def raising(message: str) -> None:
    raise AssertionError(message)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[VerdictCache]:
    cache = VerdictCache(tmp_path / "cache", log=raising)
    yield cache
    cache.close()


# ---- keys -----------------------------------------------------------------------------------------------------------


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


@given(WORDS, WORDS)
@example("\ud83d\ude00", "\U0001f600")  # equal in JSON's escapes
def test_different_texts_have_different_keys(one: str, other: str) -> None:
    assert (key_of("m", "chat", one) == key_of("m", "chat", other)) == (one == other)
    keys = [key_of("m", "chat", "a", ChatRequest("a", stop=(text,))) for text in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


# ---- replies --------------------------------------------------------------------------------------------------------


def test_a_replay_sends_nothing_and_gets_the_same(cache: VerdictCache) -> None:
    reply = ChatReply(
        "text", truncated=True, thought="hm", prompt_tokens=7, tokens=np.int64(9),  # type: ignore[arg-type]
        logprobs=(np.float32(-0.5), -math.inf, -1e-300), seconds=2.5, attempts=3,
    )  # fmt: skip
    first, second = CountingModel(reply=lambda _: reply), CountingModel(name="other name")
    assert asyncio.run(CachedModel(first, cache).chat(REQUEST)) == reply
    assert asyncio.run(CachedModel(second, cache).chat(REQUEST)) == replace(reply, seconds=0.0, attempts=1, cached=True)
    assert second.calls == []
    assert (first.usage.cached, second.usage.cached) == (0, 1)


@given(st.lists(WORDS, min_size=2, max_size=2), st.lists(st.floats(), max_size=3))
@example(["\ud83d\ude00 \ud800", "\x00"], [math.nan])
@example(["ünïcode " * 100_000, ""], [])
def test_any_text_and_any_number_comes_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], numbers: list[float]
) -> None:
    cache = VerdictCache(tmp_path_factory.mktemp("cache"), log=raising)
    reply = ChatReply(texts[0], thought=texts[1], logprobs=tuple(numbers))
    asyncio.run(CachedModel(CountingModel(reply=lambda _: reply), cache).chat(REQUEST))
    found = asyncio.run(CachedModel(CountingModel(), cache).chat(REQUEST))
    cache.close()
    assert (found.text, found.thought) == (reply.text, reply.thought)
    assert [struct.pack("d", n) for n in found.logprobs if n == n] == [struct.pack("d", n) for n in numbers if n == n]
    assert [n != n for n in found.logprobs] == [n != n for n in numbers]


def test_ratings_and_vectors_are_exact_and_only_unknown_ones_are_sent_in_order(cache: VerdictCache) -> None:
    texts = [str(number) for number in (0.1 + 0.2, -1e-300, 5e-324, 1.7976931348623157e308, -0.0, 3)]
    cached = CachedModel(model := CountingModel(), cache)
    asyncio.run(cached.rate([talk(texts[1])]))
    for wanted in (texts, [*texts, *texts]):
        found = asyncio.run(cached.rate([talk(text) for text in wanted]))
        assert [struct.pack("d", n) for n in found] == [struct.pack("d", float(text)) for text in wanted]
    assert model.calls == [talk(text) for text in (texts[1], texts[0], *texts[2:])]
    assert (model.requests, model.usage.cached) == (2, 1 + 12)
    assert asyncio.run(cached.rate([])) == []
    words = ["one", "three", "one", ""]
    expected = asyncio.run(CountingModel().embed(words))
    asyncio.run(cached.embed(["three"]))
    for _ in range(2):
        vectors = asyncio.run(cached.embed(words))
        assert (vectors.dtype, vectors.tobytes()) == (np.float32, expected.tobytes())
    assert model.calls[len(texts) :] == ["three", "one", ""]
    assert asyncio.run(cached.embed([])).shape == (0, 8)


def test_failures_are_not_stored_and_replies_without_a_verdict_are_forgotten(cache: VerdictCache) -> None:
    def gone(_: ChatRequest) -> ChatReply:
        raise ModelCallError("unreachable", "no connection", attempts=4)

    cached = CachedModel(model := CountingModel(reply=gone), cache)
    with pytest.raises(ModelCallError, match="no connection"):
        asyncio.run(cached.chat(REQUEST))
    model.reply = lambda _: ChatReply("back")
    assert asyncio.run(cached.chat(REQUEST)).text == "back"
    asyncio.run(cached.forget([REQUEST]))
    cache.close()  # waits for the writer
    model.reply = lambda _: ChatReply("fixed")
    assert asyncio.run(cached.chat(REQUEST)).text == "fixed"
    assert model.usage.cached == 0


def test_claims_of_a_server_cannot_break_the_file(cache: VerdictCache) -> None:
    model = CountingModel(name="odd \ud800 name")
    model.weights = "\ud800"
    for tokens in (10**40, -5):
        model.reply = lambda request, tokens=tokens: ChatReply("text", tokens=tokens)  # type: ignore[misc]
        asyncio.run(CachedModel(model, cache).chat(ChatRequest(str(tokens))))
    assert [(one.model, one.identity, one.tokens) for one in cache.contents()] == [
        ("odd \\ud800 name", "\\ud800", 2**40)
    ]


@pytest.mark.parametrize(
    ("error", "kind"), [(UserError("name one"), "refused"), (ModelCallError("timeout", "gone"), "timeout")]
)
def test_a_model_without_identity_gives_no_reply(cache: VerdictCache, error: Exception, kind: str) -> None:
    class Nameless(CountingModel):
        async def identity(self) -> str:
            raise error

    cached = CachedModel(model := Nameless(), cache)
    for call in (cached.chat(REQUEST), cached.rate([talk("1")]), cached.embed(["a"])):
        with pytest.raises(ModelCallError, match=str(error)) as caught:
            asyncio.run(call)  # type: ignore[arg-type]
        assert caught.value.kind == kind
    assert (model.usage.failed, model.requests) == (3, 0)


# ---- the same request at the same time ------------------------------------------------------------------------------


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def test_the_same_request_at_the_same_time_is_sent_once(cache: VerdictCache) -> None:
    cached = CachedModel(model := CountingModel(), cache)

    async def all_at_once() -> list[ChatReply]:
        rates = asyncio.gather(*(cached.rate([talk("1"), talk("2")]) for _ in range(3)))
        replies = await asyncio.gather(*(cached.chat(REQUEST) for _ in range(8)))
        await rates
        return replies

    replies = asyncio.run(all_at_once())
    assert {reply.text for reply in replies} == {replies[0].text}
    assert sorted(reply.cached for reply in replies) == [False] + 7 * [True]
    assert (model.requests, model.usage.cached) == (2, 7 + 4)
    assert cached._flights == {}


@pytest.mark.parametrize(
    ("verb", "what", "leaver"), [("chat", REQUEST, 0), ("chat", REQUEST, 1), ("rate", [talk("1")], 0)]
)
def test_a_waiter_that_is_cancelled_takes_nothing_from_the_others(
    cache: VerdictCache, verb: str, what: Any, leaver: int
) -> None:
    cached = CachedModel(model := CountingModel(), cache)

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
        assert model.cancelled == 1
        model.gate.set()
        assert (await cached.chat(REQUEST)).text == "reply 2"

    asyncio.run(all_leave())


def test_a_failure_is_shared_by_calls_with_the_same_deadline_only(cache: VerdictCache) -> None:
    def slow(request: ChatRequest) -> ChatReply:
        if request.deadline < 10:
            raise ModelCallError("timeout", "too late")
        return ChatReply("in time")

    cached = CachedModel(model := CountingModel(reply=slow), cache)

    async def both() -> list[object]:
        calls = (cached.chat(replace(REQUEST, deadline=deadline)) for deadline in (1, 1, 60, 1))
        return list(await asyncio.gather(*calls, return_exceptions=True))

    assert [getattr(one, "text", "failed") for one in asyncio.run(both())] == ["failed", "failed", "in time", "failed"]
    assert len(model.calls) == 2


def test_the_first_reply_that_is_stored_counts_for_both_processes(tmp_path: Path) -> None:
    """Both have sent before either has stored: two caches on one file are like two processes."""
    caches = [VerdictCache(tmp_path, log=raising) for _ in range(2)]
    models = [CountingModel(reply=lambda _, i=i: ChatReply(f"by {i}")) for i in range(2)]  # type: ignore[misc]

    async def together() -> list[str]:
        for model in models:
            model.gate.clear()
        pairs = zip(models, caches, strict=True)
        tasks = [asyncio.create_task(CachedModel(model, cache).chat(REQUEST)) for model, cache in pairs]
        await until(lambda: all(model.requests for model in models))
        models[1].gate.set()
        await tasks[1]
        models[0].gate.set()
        return [(await task).text for task in tasks]

    assert asyncio.run(together()) == ["by 1", "by 1"]
    for cache in caches:
        cache.close()


def test_threads_with_event_loops_of_their_own_share_one_cache(cache: VerdictCache) -> None:
    model = CountingModel(reply=lambda request: ChatReply(f"to {request.prompt}"))

    async def slow(request: ChatRequest) -> ChatReply:
        await asyncio.sleep(0.005)
        return model.reply(request)

    model.chat = slow  # type: ignore[method-assign]
    cached = CachedModel(model, cache)

    def work(worker: int) -> list[str]:
        for number in range(worker * 20, worker * 20 + 40):
            cache.keep([row(number)]).result()
            assert cache.find([row(number).key]) == {row(number).key: row(number).value}
        return [asyncio.run(cached.chat(ChatRequest(str(number)))).text for number in range(15)]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [[f"to {number}" for number in range(15)]] * 4
    cache.close()
    assert count(cache.folder) == 100 + 15


# ---- a file that cannot be used -------------------------------------------------------------------------------------


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = time.monotonic() + cache_module.RETRY_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: moment + 1)


def test_a_busy_file_is_reported_once_and_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "BUSY_SECONDS", 0.05)
    messages: list[str] = []
    cache = VerdictCache(tmp_path, log=messages.append)
    cache.keep([row(0)]).result()
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for number in (1, 2):
        assert cache.keep([row(number)]).result() == {}
    assert cache.find([row(0).key])  # readers do not wait
    other.execute("ROLLBACK")
    other.close()
    (message,) = messages
    assert "not stored until" in message
    later(monkeypatch)
    cache.keep([row(3)])
    cache.close()
    assert count(tmp_path) == 2


def test_a_file_that_is_not_ours_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"these are not the verdicts that you look for" * 100)
    cached = CachedModel(model := CountingModel(), VerdictCache(tmp_path))
    for call in (cached.check, lambda: asyncio.to_thread(cached.cache.contents)):
        with pytest.raises(UserError, match=r"verdicts\.sqlite' is damaged .* remove it"):
            asyncio.run(call())
    with pytest.raises(ModelCallError, match="remove it") as caught:
        asyncio.run(cached.chat(REQUEST))
    assert (caught.value.kind, model.calls) == ("refused", [])


def test_damage_that_is_found_during_a_run_does_not_end_it(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path, log=raising)
    cache.keep([row(number, b"j" + bytes(500)) for number in range(2000)])
    cache.close()
    with (tmp_path / FILE).open("r+b") as file:  # behind the first pages, which are read when it is opened
        file.seek(3 * 4096)
        file.write(os.urandom((tmp_path / FILE).stat().st_size - 3 * 4096))
    messages: list[str] = []
    cached = CachedModel(model := CountingModel(), VerdictCache(tmp_path, log=messages.append))
    for number in range(3):
        assert asyncio.run(cached.chat(ChatRequest(str(number)))).text == f"reply {number + 1}"
    assert len(model.calls) == 3
    (message,) = messages
    assert "remove it" in message
    cached.cache.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs the rights of root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_reported_once_and_the_run_goes_on(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    cache = VerdictCache(disk, log=messages.append)
    cache.keep([row(0)]).result()
    with (disk / "filling").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    for number in range(1, 4):
        cache.keep([row(number, b"j" + bytes(100_000))]).result()
    assert len(messages) == 1
    assert list(cache.find([row(number).key for number in range(4)])) == [row(0).key]
    (disk / "filling").unlink()
    later(monkeypatch)
    cache.keep([row(5)])
    cache.close()
    assert count(disk) == 2


def test_a_read_only_disk_is_read(disk: Path) -> None:
    cache = VerdictCache(disk / "cache", log=raising)
    asyncio.run(CachedModel(CountingModel(), cache).chat(REQUEST))
    cache.close()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    messages: list[str] = []
    cached = CachedModel(model := CountingModel(), VerdictCache(disk / "cache", log=messages.append))
    assert asyncio.run(cached.chat(REQUEST)).cached
    asyncio.run(cached.chat(ChatRequest("new")))
    assert (len(model.calls), len(messages)) == (1, 1)
    assert [one.verdicts for one in cached.cache.contents()] == [1]
    with pytest.raises(UserError, match="cannot write to"):
        cached.cache.clear()
    cached.cache.close()


# ---- contents and clearing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ({}, []),
        ({"model": "judge"}, [5]),
        ({"model": "m@2"}, [0, 1, 2, 3, 5]),
        ({"model": "judge", "before": 1002.5}, [3, 4, 5]),
    ],
)
def test_clear_removes_what_was_chosen_and_gives_the_space_back(
    cache: VerdictCache, chosen: dict[str, Any], left: list[int]
) -> None:
    large = b"j" + os.urandom(100_000)
    cache.keep([row(number, large) for number in range(4)])
    cache.keep([row(4, large, identity="m@2"), row(5, large, model="other")])
    assert cache.clear(**chosen) == 6 - len(left)
    assert sorted(cache.find(row(number).key for number in range(6))) == sorted(row(n).key for n in left)
    assert cache.size() < 100_000 * len(left) + 80_000


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("REWARDSMITH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_folder() == Path("/home/ann/.cache/rewardsmith")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/rewardsmith")
    monkeypatch.setenv("REWARDSMITH_CACHE", "~/verdicts")
    assert cache_folder() == VerdictCache().folder == Path("/home/ann/verdicts")


# ---- several processes ----------------------------------------------------------------------------------------------


def share(folder: Path, worker: int, start: Any) -> dict[int, bytes]:
    """Open new files together with all others, then store the same 300 rows in an order of its own."""
    try:
        for number in range(40):
            start.wait(60)
            cache = VerdictCache(folder / f"new-{number}", log=raising)
            cache.keep([row(worker)]).result()
            cache.close()
        cache = VerdictCache(folder / "shared", log=raising)
        numbers = list(range(300))
        random.Random(worker).shuffle(numbers)
        start.wait(60)
        found = {}
        for number in numbers:
            mine = row(number, b"j%d by %d" % (number, worker))
            known = cache.find([mine.key]).get(mine.key)
            found[number] = known or cache.keep([mine]).result().get(mine.key, mine.value)
        cache.close()
        return found
    except BaseException:
        start.abort()  # the others need not wait
        raise


@pytest.mark.slow
def test_several_processes_create_a_file_together_and_agree_on_what_is_stored(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager, ProcessPoolExecutor(4, mp_context=spawn) as pool:
        start = manager.Barrier(4)
        workers = [pool.submit(share, tmp_path, number, start) for number in range(4)]
        found = [worker.result(120) for worker in workers]
    assert {count(folder) for folder in tmp_path.glob("new-*")} == {4}
    assert found[0] == found[1] == found[2] == found[3]
    assert len({value.split()[-1] for value in found[0].values()}) > 1  # nobody did it all
    assert count(tmp_path / "shared") == 300


WRITER = """
import sys
from pathlib import Path
from tests.rewards.test_cache import VerdictCache, raising, row
cache = VerdictCache(Path(sys.argv[1]), log=raising)
for number in range(int(sys.argv[2]), 10**9):
    cache.keep([row(number, b"j" + bytes(3000))]).result()
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_loses_nothing_that_it_had_stored(tmp_path: Path) -> None:
    first = 0
    for written in (1, 40, 170):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(written):
                last = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)  # wherever it is
            last = max([last, *(int(line) for line in process.stdout if line.endswith("\n"))])
        cache = VerdictCache(tmp_path, log=raising)
        assert len(cache.find([row(number).key for number in range(last + 1)])) == last + 1
        cache.keep([row(10**9 + written)])  # and it goes on
        cache.close()
        first = last + 1
    assert count(tmp_path) >= 3 + 1 + 40 + 170


def test_the_example_in_the_document_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cache.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.S | re.M)
    exec(compile(code, "docs/cache.md", "exec"), {})
