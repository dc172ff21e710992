"""How rules come into the pool, and how nothing is left when it ends."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rewardsmith import Score, UserError
from rewardsmith.rewards.pool import Call, Pool, shared
from tests.rewards.test_pool import ACT, HERE, LINUX, PROMPT, eventually, gone, outcomes, pool, run

__all__ = ["pool"]  # the fixture, for the tests here

NAMES = map("bad_module_{}".format, itertools.count())


def test_a_closed_pool_leaves_nothing_running() -> None:
    pool = Pool(2)
    pids = [int(score.value) for score in run(pool, "process 0.1", "process 0.11")]
    waiting: list[list[Score]] = []
    thread = threading.Thread(
        target=lambda: waiting.append(run(pool, "hang", "hang ", *map("good {}".format, range(9))))
    )
    thread.start()
    assert eventually(lambda: pool.busy == 2)
    pool.close()
    pool.close()
    thread.join(10)
    assert set(outcomes(waiting[0])) == {"cancelled"}
    assert eventually(lambda: all(map(gone, pids)))
    assert not any(thread.is_alive() for thread in pool._threads)
    with pytest.raises(RuntimeError, match="closed"):
        run(pool, "good 1")
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(pool.load(ACT))


PROGRAM = """
import asyncio, os, sys, threading, time
from rewardsmith import Message, Prompt
from rewardsmith.rewards.pool import Call, Pool, shared
act, prompt = Call("tests.rewards.bad_rules:act", {}), Prompt("p", [Message("user", "?")])
def run(pool, *texts):
    return [score.value for score in asyncio.run(pool.score(act, prompt, texts, deadline=60, memory=256))]
"""


def program(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM + code], stdout=subprocess.PIPE, text=True)


@LINUX
@pytest.mark.parametrize("end", ["kill", "exit"])
def test_no_process_outlives_the_trainer(tmp_path: Path, end: str) -> None:
    notes = tmp_path / "pids"
    code = f"""
pool = Pool(2)
print(*map(int, run(pool, "process 0.1", "process 0.11")), pool._server.process.pid, flush=True)
threading.Thread(target=run, args=(pool, "breed {notes}", "hang"), daemon=True).start()
while not os.path.exists("{notes}"): time.sleep(0.02)
fork = os.fork() if hasattr(os, "fork") else 1
if fork == 0:  # a copy of the trainer that lives on, as loaders of data do, must not keep the pool alive
    time.sleep(60)
    os._exit(0)
print("bred", fork, flush=True)
{"time.sleep(60)" if end == "kill" else "sys.exit()"}
"""
    with program(code) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        bred, fork = process.stdout.readline().split()
        assert bred == "bred"
        pids += [*map(int, notes.read_text().split()), int(Path(f"{notes}.orphan").read_text())]
        if end == "kill":
            process.kill()
        process.wait(30)
        try:
            assert len(set(pids)) >= 6
            assert eventually(lambda: all(map(gone, pids)))
            assert not gone(int(fork))
        finally:
            os.kill(int(fork), signal.SIGKILL)


def test_a_fork_of_the_trainer_gets_a_pool_of_its_own() -> None:
    code = """
old = shared(1)
assert run(old, "good 1") == [1.0]
ours = run(old, "process")
child = os.fork()
if child == 0:
    try:
        run(old, "good 2")
    except RuntimeError as error:
        assert "another process" in str(error)
        assert shared() is not old
        assert run(shared(), "good 2") == [2.0]
        assert run(shared(), "process") != ours
        shared().close()
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert run(old, "process") == ours
print("fine")
"""
    with program(code) as process:
        assert process.communicate(timeout=300)[0] == "fine\n"
        assert process.returncode == 0


def test_the_shared_pool_is_one_and_is_made_again_when_closed() -> None:
    first = shared()
    assert shared() is first
    assert shared(first.workers) is first
    second = shared(first.workers + 1)
    assert second is not first
    assert first.closed
    assert shared() is second
    assert outcomes(run(second, "good 1")) == [1.0]
    second.close()


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        (None, "absent_module:rule", "No module named 'absent_module'"),
        ("import sys; sys.exit(4)", "rule", "SystemExit: 4"),
        ("def rul(prompt, text): return 1.0", "rule", 'Did you mean "rul"?'),
        ("import os; os._exit(9)", "rule", "ended with status 9"),
        ("import time; time.sleep(60)", "rule", "took more than 1 s"),
        ("while True:\n    try: 9 ** 9 ** 9\n    except BaseException: pass", "rule", "took more than 1 s"),
    ],
)
def test_a_rule_that_cannot_be_loaded(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str | None, name: str, words: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    if code:
        name = f"{next(NAMES)}:{name}"
        (tmp_path / f"{name.partition(':')[0]}.py").write_text(code)
    call = Call(name, {})
    with pytest.raises(UserError) as caught:
        asyncio.run(pool.load(call, limit=1.0))
    assert words in str(caught.value)
    assert name in str(caught.value)
    if "took more" not in words:
        results = run(pool, "a", "b", call=call)
        assert outcomes(results) == ["crashed", "crashed"]
        assert words in results[0].failure.detail
    assert outcomes(run(pool, "good 1")) == [1.0]


def test_a_missing_module_and_settings_that_cannot_be_sent(pool: Pool) -> None:
    call = Call(f"{HERE}:act", {}, ("absent_module",))
    with pytest.raises(UserError, match="absent_module"):
        asyncio.run(pool.load(call))
    assert "absent_module" in run(pool, "good 1", call=call)[0].failure.detail
    with pytest.raises(UserError, match="cannot be sent"):
        Call(f"{HERE}:act", {"plus": lambda: 1})


def test_a_rule_that_hangs_in_its_import_does_not_fail_the_answers_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sleepy_module.py").write_text("import time; time.sleep(60)")
    pool = Pool(1)
    assert outcomes(run(pool, "good 1")) == [1.0]

    async def both() -> list[Score]:
        load = asyncio.create_task(pool.load(Call("sleepy_module:rule", {}), limit=0.5))
        scores = await pool.score(ACT, PROMPT, ["slow 1.2 2", "good 3"], deadline=5, memory=128)
        with pytest.raises(UserError, match="took more than"):
            await load
        return scores

    assert outcomes(asyncio.run(both())) == [2.0, 3.0]
    pool.close()


def test_a_module_that_changed_is_imported_again(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, value in (("1", 1.0), ("2", 2.0)):
        folder = tmp_path / version
        folder.mkdir()
        (folder / "changing_module.py").write_text(f"def rule(prompt, text): return {value}")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            assert outcomes(run(pool, "any", call=Call("changing_module:rule", {}, version=version))) == [value]


def test_a_fork_server_that_cannot_start_names_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("raise RuntimeError('a file named like a library')")
    monkeypatch.syspath_prepend(tmp_path)
    pool = Pool(1)
    with pytest.raises(UserError, match=r"(?s)did not start.*a file named like a library"):
        asyncio.run(pool.load(ACT))
    pool.close()
