"""The file of the cache: damage, disks that are full or cannot be written to, what is kept, and clearing it."""

import asyncio
import os
import sqlite3
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rewardsmith.errors import UserError
from rewardsmith.llm import ChatRequest, ModelCallError
from rewardsmith.rewards import cache_file, cache_tables
from rewardsmith.rewards.cache import MOST, Cached, VerdictCache, cache_folder, key_of
from rewardsmith.rewards.cache_tables import FILE
from tests.rewards.counted import QUESTION, Model, count, opened, verdict


def test_a_writer_that_is_held_up_is_told_of_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_tables, "BUSY", 0.05)
    told: list[str] = []
    cache = VerdictCache(tmp_path, say=told.append)
    cache.keep([verdict(0)])
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for number in (1, 2):
        assert cache.keep([verdict(number)]) == {}
    assert cache.find([verdict(0).key])  # readers do not wait
    other.execute("ROLLBACK")
    other.close()
    assert len(told) == 1
    assert "not kept until" in told[0]
    later = time.monotonic() + cache_file.PAUSE
    monkeypatch.setattr(time, "monotonic", lambda: later + 1)
    cache.keep([verdict(3)])
    cache.close()
    assert count(tmp_path) == 2


def test_after_verdicts_that_cannot_be_stored_others_can(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    with pytest.raises(OverflowError):
        cache.keep([verdict(0), verdict(1, tokens=10**40)])
    cache.keep([verdict(2)])
    cache.close()
    assert count(tmp_path) == 1


# --- files that are not what they should be


def test_a_file_that_is_no_database_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"these are not the verdicts that you look for" * 100)
    cached = Cached(model := Model(), VerdictCache(tmp_path))
    for call in (cached.check, lambda: asyncio.to_thread(cached._cache.holdings)):
        with pytest.raises(UserError, match=r"verdicts\.sqlite' is damaged .* remove it"):
            asyncio.run(call())
    with pytest.raises(ModelCallError, match=r"verdicts\.sqlite' is damaged .* remove it") as caught:
        asyncio.run(cached.chat(QUESTION))
    assert caught.value.kind == "refused"
    assert model.asked == []


def test_a_newer_file_and_one_of_another_program_are_refused(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.keep([verdict(0)])
    cache.close()
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(UserError, match=r"newer rewardsmith \(format 7; this one knows 1\): .* REWARDSMITH_CACHE"):
        cache.check()
    (tmp_path / "other").mkdir()
    with sqlite3.connect(tmp_path / "other" / FILE) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    before = (tmp_path / "other" / FILE).read_bytes()
    with pytest.raises(UserError, match="database of another program"):
        opened(tmp_path / "other").check()
    assert (tmp_path / "other" / FILE).read_bytes() == before


def test_damage_that_is_found_during_a_run_does_not_end_it(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.keep([verdict(number, b"j" + bytes(500)) for number in range(2000)])
    cache.close()
    with (tmp_path / FILE).open("r+b") as file:  # behind the first pages, which are read when it is opened
        file.seek(3 * 4096)
        file.write(os.urandom((tmp_path / FILE).stat().st_size - 3 * 4096))
    told: list[str] = []
    cache = VerdictCache(tmp_path, say=told.append)
    cached = Cached(model := Model(), cache)
    assert [asyncio.run(cached.chat(ChatRequest(str(number)))).text for number in range(3)] == [
        "answer 1", "answer 2", "answer 3"
    ]  # fmt: skip
    assert len(model.asked) == 3
    assert len(told) == 1
    assert "goes on without kept verdicts" in told[0]
    assert "remove it" in told[0]
    cache.close()


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"j", b"j{}", b"j[]", b"jnull", b"j\xff", b"?{}", b"z\x00\x01", b"v\x00\x00", b"j" + b"[" * 100_000),
        *(b'j{"text": 3, "thought": "", "logprobs": []}', b'j{"text": "a", "logprobs": 7}'),
        b"z" + zlib.compress(b'{"text": "half", "logprobs": []}')[:-4],  # without its checksum
        b"z" + zlib.compress(b'{"text": "bomb", "logprobs": []}' + b" " * 2 * MOST),
    ],
)
def test_an_answer_that_cannot_be_unpacked_is_asked_anew_and_replaced(tmp_path: Path, value: bytes) -> None:
    cache = opened(tmp_path)
    cache.keep([verdict(0, value, key=key_of("weights-1", "chat", QUESTION.prompt, QUESTION))])
    cached = Cached(model := Model(), cache)
    assert asyncio.run(cached.chat(QUESTION)).text == asyncio.run(cached.chat(QUESTION)).text == "answer 1"
    assert len(model.asked) == 1
    cache.close()


def test_an_event_loop_does_not_wait_while_a_bad_verdict_is_removed(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.keep([verdict(0, b"junk", key=key_of("weights-1", "chat", QUESTION.prompt, QUESTION))])
    cached = Cached(model := Model(), cache)

    async def held_up() -> bool:
        cache._writing.acquire()  # as by another process, until the timer ends it
        timer = threading.Timer(3.0, cache._writing.release)
        timer.start()
        asking = asyncio.create_task(cached.chat(QUESTION))
        while not model.asked:
            await asyncio.sleep(0.01)
        held = cache._writing.locked()
        await asking
        return held

    assert asyncio.run(held_up())
    assert asyncio.run(cached.chat(QUESTION)).cached
    cache.close()


@pytest.mark.parametrize("beside", [True, False])
def test_a_file_that_is_removed_during_a_run_is_begun_anew(tmp_path: Path, beside: bool) -> None:
    told: list[str] = []
    caches = [VerdictCache(tmp_path, say=told.append) for _ in range(2)]  # as two processes
    for number, cache in enumerate(caches):
        cache.keep([verdict(number)])
    for file in tmp_path.iterdir():
        if beside or file.name == FILE:
            file.unlink()
    for number, cache in enumerate(caches * 2):
        cache.keep([verdict(10 + number)])
    assert len(told) == 2  # once each
    assert "was removed or replaced meanwhile" in told[0]
    for cache in caches:
        assert len(cache.find([verdict(10 + number).key for number in range(4)])) == 4
        cache.close()
    assert count(tmp_path) == 4


def test_a_file_that_was_replaced_by_one_that_is_none_does_not_end_a_run(tmp_path: Path) -> None:
    told: list[str] = []
    cached = Cached(Model(), VerdictCache(tmp_path, say=told.append))
    asyncio.run(cached.chat(QUESTION))
    for file in tmp_path.iterdir():
        file.unlink()
    (tmp_path / FILE).write_bytes(b"no database" * 1000)
    for number in range(3):
        asyncio.run(cached.chat(ChatRequest(str(number))))
    assert ["goes on without kept verdicts" in line for line in told] == [False, True]
    cached._cache.close()


# --- disks


def test_without_a_folder_to_write_to_the_models_are_asked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    told: list[str] = []
    cached = Cached(model := Model(), VerdictCache(tmp_path / "file" / "cache", say=told.append))
    asyncio.run(cached.check())
    for _ in range(3):
        asyncio.run(cached.chat(QUESTION))
    assert len(model.asked) == 3
    assert len(told) == 1
    assert "cannot be written to (Not a directory): verdicts are not kept" in told[0]
    cached._cache.close()


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


def test_a_full_disk_is_told_of_once_and_the_run_goes_on(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    cache = VerdictCache(disk, say=told.append)
    cache.keep([verdict(0)])
    with (disk / "filling").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    for number in range(1, 4):
        cache.keep([verdict(number, b"j" + bytes(100_000))])
    assert len(told) == 1
    assert "not kept until" in told[0]
    assert list(cache.find([verdict(number).key for number in range(4)])) == [verdict(0).key]
    (disk / "filling").unlink()
    later = time.monotonic() + cache_file.PAUSE
    monkeypatch.setattr(time, "monotonic", lambda: later + 1)
    cache.keep([verdict(5)])
    cache.close()
    assert count(disk) == 2


def test_a_disk_that_cannot_be_written_to_is_read(disk: Path) -> None:
    cache = opened(disk / "cache")
    asyncio.run(Cached(Model(), cache).chat(QUESTION))
    cache.close()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    told: list[str] = []
    cached = Cached(model := Model(), VerdictCache(disk / "cache", say=told.append))
    assert asyncio.run(cached.chat(QUESTION)).cached
    asyncio.run(cached.chat(ChatRequest("new")))
    assert len(model.asked) == 1
    assert len(told) == 1
    assert "those that it has are used" in told[0]
    assert [one.verdicts for one in cached._cache.holdings()] == [1]
    with pytest.raises(UserError, match="cannot write to"):
        cached._cache.clear()
    cached._cache.close()


# --- what is kept, and clearing it


def test_holdings_count_by_model_identity_and_verb(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    assert cache.holdings() == []
    assert not cache.file.exists()  # looking creates nothing
    cache.keep([verdict(number) for number in range(3)])
    cache.keep([verdict(3, b"v1234", verb="embed"), verdict(4, identity="m@2"), verdict(5, model="other")])
    found = {(one.model, one.identity, one.verb): one for one in cache.holdings()}
    assert {what: one.verdicts for what, one in found.items()} == {
        ("judge", "m@1", "chat"): 3,
        ("judge", "m@1", "embed"): 1, ("judge", "m@2", "chat"): 1, ("other", "m@1", "chat"): 1
    }  # fmt: skip
    one = found["judge", "m@1", "chat"]
    assert (one.bytes, one.prompt_tokens, one.tokens, one.oldest, one.newest) == (6, 30, 6, 1000, 1002)
    cache.close()


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ({}, []),
        ({"model": "judge"}, [5]),
        ({"model": "m@2"}, [0, 1, 2, 3, 5]),
        ({"before": 1002.0}, [2, 3, 4, 5]),
        ({"model": "judge", "before": 1002.5}, [3, 4, 5]),
        ({"model": "nobody"}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_clear_removes_what_was_chosen_and_gives_the_space_back(tmp_path: Path, chosen: dict, left: list[int]) -> None:
    cache = opened(tmp_path)
    large = b"j" + os.urandom(100_000)
    cache.keep([verdict(number, large) for number in range(4)])
    cache.keep([verdict(4, large, identity="m@2"), verdict(5, large, model="other")])
    assert cache.clear(**chosen) == 6 - len(left)
    assert sorted(cache.find(verdict(number).key for number in range(6))) == sorted(verdict(n).key for n in left)
    assert cache.size() < 100_000 * len(left) + 80_000
    cache.close()


def test_space_that_does_not_come_back_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_tables, "BUSY", 0.05)
    monkeypatch.setattr(cache_tables, "SHRINK", 0.1)
    told: list[str] = []
    cache = VerdictCache(tmp_path, say=told.append)
    cache.keep([verdict(number) for number in range(3)])
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM verdicts").fetchone()
    assert cache.clear() == 3
    other.close()
    assert ["another process is using it" in line for line in told] == [True]
    cache.close()


def test_where_verdicts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("REWARDSMITH_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/ann/.cache/rewardsmith")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_folder() == Path("/home/ann/.cache/rewardsmith")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/rewardsmith")
    monkeypatch.setenv("REWARDSMITH_CACHE", "~/verdicts")
    assert cache_folder() == VerdictCache().folder == Path("/home/ann/verdicts")
