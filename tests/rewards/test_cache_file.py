"""The cache file: damage, full and read-only disks, contents and clearing, several processes and threads."""

import asyncio
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.errors import UserError
from rewardsmith.llm import ChatRequest, ModelCallError
from rewardsmith.rewards import cache_file
from rewardsmith.rewards.cache import CachedModel, VerdictCache, cache_folder
from rewardsmith.rewards.cache_file import FILE
from tests.rewards.cache_stubs import REQUEST, CountingModel, count, raising, row


def opened(folder: Path) -> VerdictCache:
    return VerdictCache(folder, say=pytest.fail)


def test_a_busy_file_is_reported_once_and_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_file, "BUSY_SECONDS", 0.05)
    messages: list[str] = []
    cache = VerdictCache(tmp_path, say=messages.append)
    cache.keep([row(0)])
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for number in (1, 2):
        assert cache.keep([row(number)]) == {}
    assert cache.find([row(0).key])  # readers do not wait
    other.execute("ROLLBACK")
    other.close()
    (message,) = messages
    assert "not stored until" in message
    later = time.monotonic() + cache_file.RETRY_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later + 1)
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
    assert caught.value.kind == "refused"
    assert model.calls == []
    (tmp_path / "other").mkdir()
    with sqlite3.connect(tmp_path / "other" / FILE) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    before = (tmp_path / "other" / FILE).read_bytes()
    with pytest.raises(UserError, match=r"another program.* another folder"):
        opened(tmp_path / "other").check()
    assert (tmp_path / "other" / FILE).read_bytes() == before


def test_damage_that_is_found_during_a_run_does_not_end_it(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.keep([row(number, b"j" + bytes(500)) for number in range(2000)])
    cache.close()
    with (tmp_path / FILE).open("r+b") as file:  # behind the first pages, which are read when it is opened
        file.seek(3 * 4096)
        file.write(os.urandom((tmp_path / FILE).stat().st_size - 3 * 4096))
    messages: list[str] = []
    cache = VerdictCache(tmp_path, say=messages.append)
    cached = CachedModel(model := CountingModel(), cache)
    for number in range(3):
        assert asyncio.run(cached.chat(ChatRequest(str(number)))).text == f"reply {number + 1}"
    assert len(model.calls) == 3
    assert len(messages) == 1
    assert "remove it" in messages[0]
    cache.close()


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
    cache = VerdictCache(disk, say=messages.append)
    cache.keep([row(0)])
    with (disk / "filling").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    for number in range(1, 4):
        cache.keep([row(number, b"j" + bytes(100_000))])
    assert len(messages) == 1
    assert list(cache.find([row(number).key for number in range(4)])) == [row(0).key]
    (disk / "filling").unlink()
    later = time.monotonic() + cache_file.RETRY_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later + 1)
    cache.keep([row(5)])
    cache.close()
    assert count(disk) == 2


def test_a_read_only_disk_is_read(disk: Path) -> None:
    cache = opened(disk / "cache")
    asyncio.run(CachedModel(CountingModel(), cache).chat(REQUEST))
    cache.close()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    messages: list[str] = []
    cached = CachedModel(model := CountingModel(), VerdictCache(disk / "cache", say=messages.append))
    assert asyncio.run(cached.chat(REQUEST)).cached
    asyncio.run(cached.chat(ChatRequest("new")))
    assert len(model.calls) == 1
    assert len(messages) == 1
    assert [one.verdicts for one in cached.cache.contents()] == [1]
    with pytest.raises(UserError, match="cannot write to"):
        cached.cache.clear()
    cached.cache.close()


# --- contents and clearing


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ({}, []),
        ({"model": "judge"}, [5]),
        ({"model": "m@2"}, [0, 1, 2, 3, 5]),
        ({"model": "judge", "before": 1002.5}, [3, 4, 5]),
    ],
)
def test_clear_removes_what_was_chosen_and_gives_the_space_back(tmp_path: Path, chosen: dict, left: list[int]) -> None:
    cache = opened(tmp_path)
    large = b"j" + os.urandom(100_000)
    cache.keep([row(number, large) for number in range(4)])
    cache.keep([row(4, large, identity="m@2"), row(5, large, model="other")])
    assert cache.clear(**chosen) == 6 - len(left)
    assert sorted(cache.find(row(number).key for number in range(6))) == sorted(row(n).key for n in left)
    assert cache.size() < 100_000 * len(left) + 80_000
    cache.close()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("REWARDSMITH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_folder() == Path("/home/ann/.cache/rewardsmith")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/rewardsmith")
    monkeypatch.setenv("REWARDSMITH_CACHE", "~/verdicts")
    assert cache_folder() == VerdictCache().folder == Path("/home/ann/verdicts")


# --- several processes and threads


SPAWN = multiprocessing.get_context("spawn")


def open_together(folder: Path, worker: int, start: Any) -> None:
    """Open the same new files as all others, each at the same moment."""
    for number in range(40):
        start.wait(60)
        cache = VerdictCache(folder / str(number), say=raising)
        cache.keep([row(worker)])
        cache.close()


def hammer(folder: Path, worker: int, start: Any) -> dict[int, bytes]:
    """Store the same 300 rows as all others, in an order of one's own, and return what was found of each."""
    cache = VerdictCache(folder, say=raising)
    numbers = list(range(300))
    random.Random(worker).shuffle(numbers)
    start.wait(60)
    found = {}
    for number in numbers:
        mine = row(number, b"j%d by %d" % (number, worker))
        known = cache.find([mine.key]).get(mine.key)
        found[number] = known or cache.keep([mine]).get(mine.key, mine.value)
    cache.close()
    return found


def one_of_them(work: Callable[..., Any], folder: Path, worker: int, start: Any) -> Any:
    try:
        return work(folder, worker, start)
    except BaseException:
        start.abort()  # the others need not wait
        raise


@pytest.mark.slow
def test_several_processes_create_a_file_together_and_agree_on_what_is_stored(tmp_path: Path) -> None:
    with SPAWN.Manager() as manager, ProcessPoolExecutor(4, mp_context=SPAWN) as pool:
        for work, name in ((open_together, "new"), (hammer, "shared")):
            start = manager.Barrier(4)
            workers = [pool.submit(one_of_them, work, tmp_path / name, number, start) for number in range(4)]  # type: ignore[arg-type]
            found = [worker.result(120) for worker in workers]
    assert {count(folder) for folder in (tmp_path / "new").iterdir()} == {4}
    assert found[0] == found[1] == found[2] == found[3]
    assert len({value.split()[-1] for value in found[0].values()}) > 1  # nobody did it all
    assert count(tmp_path / "shared") == 300


WRITER = """
import sys
from pathlib import Path
from tests.rewards.cache_stubs import raising, row
from rewardsmith.rewards.cache import VerdictCache
cache = VerdictCache(Path(sys.argv[1]), say=raising)
for number in range(int(sys.argv[2]), 10**9):
    cache.keep([row(number, b"j" + bytes(3000))])
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
            process.send_signal(signal.SIGKILL)  # wherever it is: it does not wait for us
            last = max([last, *(int(line) for line in process.stdout if line.endswith("\n"))])
        cache = opened(tmp_path)
        assert len(cache.find([row(number).key for number in range(last + 1)])) == last + 1
        cache.keep([row(10**9 + written)])  # and it goes on
        cache.close()
        first = last + 1
    assert count(tmp_path) >= 3 + 1 + 40 + 170
