"""Rules in worker processes: whatever one answer does, every other gets its right verdict."""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rewardsmith import Message, Prompt, Score
from rewardsmith.rewards.pool import Call, Pool
from rewardsmith.types import MAX_DETAIL

HERE = "tests.rewards.bad_rules"
ACT = Call(f"{HERE}:act", {})
PROMPT = Prompt("p", [Message("user", "?")], answer="9")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def one() -> Iterator[Pool]:
    """A pool with one worker: all answers go through it."""
    made = Pool(1)
    yield made
    made.close()


def run(pool: Pool, *texts: str, call: Call = ACT, deadline: float = 5.0, memory: int = 256) -> list[Score]:
    return asyncio.run(pool.score(call, PROMPT, texts, deadline=deadline, memory=memory))


def outcomes(scores: list[Score]) -> list[object]:
    """Return the values, and the kinds of the failures."""
    return [score.value if score.ok else score.failure.kind for score in scores]


def gone(pid: int) -> bool:
    """Return whether a process is no more; one that nobody has waited for is no more either."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


# --- what it is for ---------------------------------------------------------------------------------------------------


def test_scores_come_in_the_order_of_the_texts(pool: Pool) -> None:
    texts = [f"slow {0.01 * (i % 3)} {i}" for i in range(60)]
    assert outcomes(run(pool, *texts)) == [float(i) for i in range(60)]
    assert run(pool) == []


def test_equal_texts_are_scored_once(pool: Pool, tmp_path: Path) -> None:
    texts = [f"note {tmp_path}/a", "good 3", f"note {tmp_path}/a", "good 4", "good 3", f"note {tmp_path}/a"]
    assert outcomes(run(pool, *texts)) == [1.0, 3.0, 1.0, 4.0, 3.0, 1.0]
    assert (tmp_path / "a").read_text() == "x"


def test_workers_last_and_see_no_gpu(one: Pool) -> None:
    before = one.lost
    assert len({score.value for score in run(one, *(f"process 0.00{i}" for i in range(9)))}) == 1
    assert outcomes(run(one, "environment CUDA_VISIBLE_DEVICES OMP_NUM_THREADS")) == [1.0]
    assert one.lost == before


# --- hostile answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deed", ["hang", "deaf", "power", "regex"])
def test_an_answer_that_hangs_is_ended_at_its_deadline(pool: Pool, deed: str) -> None:
    before = pool.lost
    first, bad, last = run(pool, "good 1", deed, "good 2", deadline=0.5)
    assert (first.value, last.value) == (1.0, 2.0)
    assert bad.failure.kind == "timeout"
    assert "within 0.5 s" in bad.failure.detail
    assert pool.lost > before


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("leave 3", "the worker died: exit 3"), ("leave 0", "the worker died: exit 0"),
        ("segfault", "the worker died: signal 11"), ("close", "the worker died: "),
        ("hoard", "MemoryError: the rule needed more than 64 MiB"), ("throw memory", "MemoryError"),
        ("recurse", "RecursionError"), ("recurse 1000000000", ""), ("garble nonsense", "malformed"),
        ('forge [0,false,"value",NaN]', "malformed"), ('forge [0,false,"value",true]', "malformed"),
        ('forge [0,false,"result",1.0]', "malformed"), ('forge [0,false,"value","1.0"]', "malformed"),
        ('forge [7,false,"value",1.0]', "malformed"), ('forge [0,false,"value",1e999]', "malformed"),
        ('forge [0,false,"failure","bribed","x"]', "malformed"),
        ('forge [0,false,"failure","timeout",["x"]]', "malformed"), ("forge " + "[" * 5000, "malformed"),
        ("forge " + "9" * 5000, "malformed"), ("forge {}", "malformed"), ("throw value", "ValueError: ? no"),
        ("throw exit", "SystemExit: 3"), ("throw interrupt", "KeyboardInterrupt"),
        ("throw generator", "GeneratorExit"), ("throw raising", "without a"), ("throw not-text", "NotTextError"),
        ("throw long", "LongError"), ("throw odd-kind", ""), ("no-such-deed", "KeyError: 'no-such-deed'"),
    ],
)  # fmt: skip
def test_an_answer_that_breaks_its_worker_fails_alone(pool: Pool, text: str, detail: str) -> None:
    first, bad, last = run(pool, "good 1", text, "good 2", memory=64)
    assert (first.value, last.value) == (1.0, 2.0)
    assert bad.failure.kind == "crashed"
    assert detail in bad.failure.detail


def test_the_detail_of_a_failure_is_bounded_and_its_kind_kept(pool: Pool) -> None:
    huge, cannot = run(pool, "throw huge", "throw cannot")
    assert huge.failure.detail == ("ValueError: " + "x" * MAX_DETAIL)[:MAX_DETAIL]
    assert cannot.failure.kind == "unparsable"
    assert cannot.failure.detail == ("no verdict" + "!" * MAX_DETAIL)[:MAX_DETAIL]


@pytest.mark.parametrize(
    ("text", "value"), [("true", 1.0), ("numpy", 0.5), ("zero-dimensional", 2.0), ("text", "crashed"),
                        ("none", "crashed"), ("nan", "invalid"), ("infinite", "invalid"), ("large", "crashed"),
                        ("array", "crashed")],
)  # fmt: skip
def test_a_rule_returns_a_finite_number(pool: Pool, text: str, value: object) -> None:
    assert outcomes(run(pool, text, call=Call(f"{HERE}:odd_value", {}))) == [value]


# --- neighbours -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trap", ["alarm", "mine", "leak 100", "twin"])
def test_what_an_answer_leaves_behind_harms_no_later_one(one: Pool, trap: str) -> None:
    before = one.lost
    texts = [text for i in range(4) for text in (f"{trap}{' ' * i}", f"slow 0.1 {i}")] * 2
    values = [value for i in range(4) for value in (1.0, float(i))] * 2
    assert outcomes(run(one, *texts)) == values
    assert one.lost == before or trap != "alarm"


def test_a_death_that_the_trainer_cannot_see_is_not_the_fault_of_the_next_answer(one: Pool) -> None:
    texts = ["clone", "mine", "slow 0.2 3", *(f"good {i}" for i in range(9))]
    assert outcomes(run(one, *texts, deadline=0.7)) == [1.0, 1.0, 3.0, *map(float, range(9))]
    texts[1:3] = ["patricide"]
    assert outcomes(run(one, *texts, deadline=0.7)) == [1.0, "crashed", *map(float, range(9))]


@pytest.mark.parametrize("trap", ["leak 150", "thread", "child"])
def test_a_worker_that_has_grown_or_is_not_alone_is_replaced(one: Pool, trap: str) -> None:
    lost, (worker,) = one.lost, outcomes(run(one, "process"))
    assert outcomes(run(one, "process ")) == [worker]
    assert outcomes(run(one, trap)) == [1.0]
    assert outcomes(run(one, "process")) != [worker]
    assert one.lost == lost


def test_five_hundred_mixed_answers() -> None:
    pool = Pool(2)
    rng = random.Random(4)
    kinds = {
        "hang": "timeout", "regex": "timeout", "leave 1": "crashed", "segfault": "crashed", "hoard": "crashed",
        "garble x": "crashed", "close": "crashed", "throw cannot": "unparsable", "throw exit": "crashed",
    }  # fmt: skip
    wanted = [(f"good {i}", float(i)) for i in range(470)]
    wanted += [(deed, kind) for _ in range(4) for deed, kind in kinds.items()]
    rng.shuffle(wanted)

    async def all_at_once() -> list[list[Score]]:
        groups = [[text for text, _ in wanted[i : i + 23]] for i in range(0, len(wanted), 23)]
        return await asyncio.gather(*(pool.score(ACT, PROMPT, g, deadline=0.5, memory=32) for g in groups))

    found = outcomes([score for group in asyncio.run(all_at_once()) for score in group])
    assert found == [value for _, value in wanted]
    pool.close()


def test_an_answer_that_kills_the_fork_server_fails_alone() -> None:
    pool = Pool(3)
    texts = ["patricide", "slow 0.3 1", "slow 0.3 2", *(f"good {i}" for i in range(40)), "patricide again", "good 50"]
    found = outcomes(run(pool, *texts))
    assert found[0] == found[-2] == "crashed"
    assert found[1:-2] == [1.0, 2.0, *map(float, range(40))]
    assert found[-1] == 50.0
    pool.close()


@LINUX
def test_a_worker_that_dies_while_it_waits_costs_no_answer(one: Pool) -> None:
    before = one.lost
    for _ in range(3):
        os.kill(int(run(one, "process")[0].value), signal.SIGKILL)
        assert outcomes(run(one, "good 1")) == [1.0]
    assert one.lost == before + 3


@LINUX
def test_whatever_a_rule_started_ends_with_its_worker(pool: Pool, tmp_path: Path) -> None:
    notes = tmp_path / "pids"
    assert outcomes(run(pool, f"breed {notes}", deadline=2.0)) == ["timeout"]
    pids = [*map(int, notes.read_text().split()), int(Path(f"{notes}.orphan").read_text())]
    assert len(pids) == 4
    assert eventually(lambda: all(map(gone, pids)))


# --- callers ----------------------------------------------------------------------------------------------------------


def test_many_threads_with_their_own_event_loops(pool: Pool) -> None:
    def work(thread: int) -> list[object]:
        return outcomes(run(pool, *(f"good {thread * 100 + i}" for i in range(30))))

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(work, range(6)))
    assert found == [[float(thread * 100 + i) for i in range(30)] for thread in range(6)]


def test_a_cancelled_call_takes_its_texts_out_of_the_queue(tmp_path: Path) -> None:
    pool = Pool(1)
    notes = [f"note {tmp_path}/{i}" for i in range(12)]

    async def cancel() -> None:
        first = asyncio.create_task(pool.score(ACT, PROMPT, ["slow 0.5 1"], deadline=5, memory=128))
        while not pool.busy:
            await asyncio.sleep(0.01)
        second = asyncio.create_task(pool.score(ACT, PROMPT, notes, deadline=5, memory=128))
        third = asyncio.create_task(pool.score(ACT, PROMPT, ["good 3"], deadline=5, memory=128))
        await asyncio.sleep(0.1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert outcomes(await first) == [1.0]
        assert outcomes(await third) == [3.0]

    asyncio.run(cancel())
    assert list(tmp_path.iterdir()) == []
    pool.close()


def test_waiting_in_the_queue_does_not_count_against_the_deadline(one: Pool) -> None:
    assert outcomes(run(one, *(f"slow 0.2 {i}" for i in range(5)), deadline=0.6)) == [0.0, 1.0, 2.0, 3.0, 4.0]
