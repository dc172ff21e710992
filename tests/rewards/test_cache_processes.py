"""One file, several processes and threads: together, forked, and killed."""

import asyncio
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.errors import UserError
from rewardsmith.llm import ChatRequest
from rewardsmith.rewards.cache import Cached, VerdictCache
from rewardsmith.rewards.cache_tables import FILE
from tests.rewards.counted import QUESTION, Model, count, opened, raising, verdict

pytestmark = pytest.mark.slow

SPAWN = multiprocessing.get_context("spawn")


def open_together(folder: Path, worker: int, start: Any) -> None:
    """Open the same new files as all others, each at the same moment."""
    for number in range(60):
        start.wait(60)
        cache = VerdictCache(folder / str(number), say=raising)
        cache.keep([verdict(worker)])
        cache.close()


def hammer(folder: Path, worker: int, start: Any) -> dict[int, bytes]:
    """Keep the same 300 verdicts as all others, in an order of one's own, and return what was found of each."""
    cache = VerdictCache(folder, say=raising)
    numbers = list(range(300))
    random.Random(worker).shuffle(numbers)
    start.wait(60)
    found = {}
    for number in numbers:
        mine = verdict(number, b"j%d by %d" % (number, worker))
        known = cache.find([mine.key]).get(mine.key)
        found[number] = known or cache.keep([mine]).get(mine.key, mine.value)
    cache.close()
    return found


def lose(folder: Path, worker: int, start: Any) -> list[str]:
    """Keep 100 verdicts; then, after the file was removed under all, 100 more. Return what was told."""
    told: list[str] = []
    cache = VerdictCache(folder, say=told.append)
    cache.keep([verdict(100 * worker + number, bytes(2000)) for number in range(100)])
    start.wait(60)
    if worker == 0:
        (folder / FILE).unlink()  # and not what lies beside it, which the others still hold
    for turn in (worker == 0, worker != 0):
        if turn:
            cache.keep([verdict(1000 + 100 * worker + number, bytes(2000)) for number in range(100)])
        start.wait(60)
    assert len(cache.find([verdict(number).key for number in range(1000, 1400)])) == 400
    start.wait(60)
    cache.close()
    return told


def one_of_them(work: Callable[..., Any], folder: Path, worker: int, start: Any) -> Any:
    try:
        return work(folder, worker, start)
    except BaseException:
        start.abort()  # the others need not wait
        raise


def in_processes(work: Callable[..., Any], folder: Path) -> list[Any]:
    """Return what four processes make of it; if one of them fails, so does this."""
    with SPAWN.Manager() as manager, ProcessPoolExecutor(4, mp_context=SPAWN) as pool:
        start = manager.Barrier(4)
        workers = [pool.submit(one_of_them, work, folder, number, start) for number in range(4)]
        errors = [error for worker in workers if (error := worker.exception(120)) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return [worker.result() for worker in workers]


def test_several_processes_make_a_new_file_together(tmp_path: Path) -> None:
    in_processes(open_together, tmp_path)
    assert {count(folder) for folder in tmp_path.iterdir()} == {4}


def test_a_file_that_is_removed_under_several_processes_is_begun_anew(tmp_path: Path) -> None:
    for told in in_processes(lose, tmp_path):
        assert ["was removed or replaced meanwhile" in line for line in told] == [True]
    assert count(tmp_path) == 400


def test_several_processes_keep_the_same_verdicts_and_agree(tmp_path: Path) -> None:
    found = in_processes(hammer, tmp_path)
    assert found[0] == found[1] == found[2] == found[3]
    assert len({value.split()[-1] for value in found[0].values()}) > 1  # nobody did it all
    assert count(tmp_path) == 300


WRITER = """
import sys
from pathlib import Path
from tests.rewards.counted import raising, verdict
from rewardsmith.rewards.cache import VerdictCache
cache = VerdictCache(Path(sys.argv[1]), say=raising)
for number in range(int(sys.argv[2]), 10**9):
    cache.keep([verdict(number, b"j" + bytes(3000))])
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_loses_nothing_that_it_had_kept(tmp_path: Path) -> None:
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
        assert len(cache.find([verdict(number).key for number in range(last + 1)])) == last + 1
        cache.keep([verdict(10**9 + written)])  # and it goes on
        cache.close()
        first = last + 1
    assert count(tmp_path) >= 3 + 1 + 40 + 170


def test_threads_share_one_cache(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    wrong: list[int] = []

    def work(worker: int) -> None:
        for number in range(worker * 50, worker * 50 + 100):
            one = verdict(number)
            cache.keep([one])
            if cache.find([one.key]) != {one.key: one.value}:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    cache.close()
    assert wrong == []
    assert count(tmp_path) == 250


def test_what_comes_while_another_process_writes_is_written_together(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.check()
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    futures = [cache.keep_soon([verdict(number, b"jfirst")]) for number in range(20)]
    second = cache.keep_soon([verdict(7, b"jsecond")])
    futures[-1].cancel()  # nobody waits for it, but it was paid for
    assert not any(future.done() for future in futures[:-1])
    other.execute("COMMIT")
    other.close()
    for future in futures[:-1]:
        assert future.result(60).get(verdict(0).key) is None
    assert second.result(60)[verdict(7).key] == b"jfirst"
    cache.close()
    assert count(tmp_path) == 20


def test_whoever_waits_for_a_writer_learns_that_the_file_is_no_database(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 1000)
    with pytest.raises(UserError, match="damaged"):
        VerdictCache(tmp_path).keep_soon([verdict(0)]).result(60)


def test_a_child_that_was_forked_has_connections_of_its_own(tmp_path: Path) -> None:
    cached = Cached(model := Model(), opened(tmp_path))
    asyncio.run(cached.chat(QUESTION))
    child = os.fork()
    if not child:
        status = 1
        try:
            asyncio.run(cached.check())
            fresh = asyncio.run(cached.chat(ChatRequest("of the child")))
            known = asyncio.run(cached.chat(QUESTION))
            status = 0 if (fresh.cached, known.cached, len(model.asked)) == (False, True, 2) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert asyncio.run(cached.chat(ChatRequest("of the child"))).cached
    cached._cache.close()
    assert count(tmp_path) == 2
