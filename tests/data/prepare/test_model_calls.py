"""Many calls at once: each once, few at a time; failures, outages, kills: the same command continues."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.data.prepare.model_calls import MAX_STREAK, REPLIED, CallItem, ModelCalls
from rewardsmith.data.prepare.write_rubrics import RubricJob
from rewardsmith.engines.client.probes import QUESTIONS
from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError
from rewardsmith.storage import ResumableJsonl
from tests.data.prepare.jobs import JobTestContext, read_rows, write_rows
from tests.data.prepare.serving import Serving, graded_command, problems, reply_to, rubric_command, solved
from tests.engines.faulty import last_text
from tests.rewards.models import Scripted

LIMIT = 120.0
COUNT = 24


def call_all(folder: Path, work: Callable[[int], Awaitable[Any]], count: int, **settings: Any) -> dict[str, Any]:
    """Return what calls for numbers brought: replies, failures, and the error that ended them."""
    job = RubricJob(input="", out=folder / "out.jsonl", writer="m", **settings)
    items = [CallItem(str(i), f"row {i}", i) for i in range(count)]
    context, file, error = JobTestContext(models={"m": Scripted([])}), ResumableJsonl(folder / "r.jsonl"), None
    failures: list[dict[str, Any]] = []

    async def request(_: Any, number: int) -> dict[str, Any]:
        return {"value": await work(number)}

    with file.open():
        calls = ModelCalls(job, context, file, {"a": 1}, {})
        try:
            failures = asyncio.run(calls.run("m", items, request))
        except Exception as raised:  # noqa: BLE001 it is what is looked at
            error = raised
        replies = {i: reply["value"] for i in range(count) if (reply := calls.reply(str(i)))}
    return {"replies": replies, "failures": failures, "error": error}


def test_each_is_called_once_and_few_at_a_time(tmp_path: Path) -> None:
    called: Counter[int] = Counter()
    running, peak = 0, 0

    async def work(number: int) -> int:
        nonlocal running, peak
        called[number] += 1
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.001 * (number % 3))
        running -= 1
        return number * number

    assert call_all(tmp_path, work, 40, concurrency=7)["replies"] == {n: n * n for n in range(40)}
    assert peak == 7
    assert len(call_all(tmp_path, work, 45, concurrency=7)["replies"]) == 45
    assert set(called.values()) == {1}


def test_failures_of_rows_are_listed_and_not_kept(tmp_path: Path) -> None:
    async def work(number: int) -> int:
        if number < 2 * MAX_STREAK:
            raise ModelCallError(REPLIED[number % 3], f"no rubric {number}", attempts=3)  # type: ignore[arg-type]
        return number

    ended = call_all(tmp_path, work, 2 * MAX_STREAK + 5, concurrency=2)
    assert (ended["error"], len(ended["failures"]), len(ended["replies"])) == (None, 2 * MAX_STREAK, 5)
    assert ended["failures"][7] == {"where": "row 7", "kind": REPLIED[1], "detail": "no rubric 7", "tries": 3}


def test_endless_failures_an_unreachable_model_and_a_bug_end_it(tmp_path: Path) -> None:
    called = []

    async def work(number: int) -> int:
        called.append(number)
        if number >= 10:
            raise ModelCallError("refused", "the quota is used up")
        return number

    async def unreachable(number: int) -> int:
        raise ModelCallError("unreachable", "connection refused")

    async def bug(number: int) -> int:
        raise ZeroDivisionError

    ended = call_all(tmp_path, work, 500, concurrency=4)
    assert isinstance(ended["error"], UserError)
    assert "the quota is used up" in str(ended["error"])
    assert "continues with the 10 replies" in str(ended["error"])
    assert len(called) < 10 + MAX_STREAK + 4
    ended = call_all(tmp_path, unreachable, 20, concurrency=1)
    assert "unreachable" in str(ended["error"])
    assert sorted(ended["replies"]) == list(range(10))
    assert isinstance(call_all(tmp_path, bug, 20)["error"], ZeroDivisionError)


# ---- processes ----------------------------------------------------------------------------------------------------


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "rewardsmith", "prepare", *arguments, "--models", "models.toml", "--concurrency", "4"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str]:
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out + err


def slow_after(serving: Serving, count: int) -> None:
    """Let the server reply to so many requests, and then keep the others waiting."""
    replied = 0

    def say(body: dict[str, Any]) -> str:
        nonlocal replied
        replied += last_text(body) not in QUESTIONS  # probes of the cache do not count
        if replied >= count:
            serving.server.latency = 60.0
        return reply_to(body)

    serving.server.say = say


def kept_lines(count: int) -> list[str]:
    """Wait until so many replies are kept, and return the lines."""
    file, until = Path("out.replies.jsonl"), time.monotonic() + LIMIT
    lines: list[str] = []
    while time.monotonic() < until:
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        if sum(line.endswith("\n") for line in lines) >= count:
            return lines
        time.sleep(0.02)
    raise AssertionError(f"only {lines}")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stop"), [("rubric", signal.SIGKILL), ("graded", signal.SIGINT)])
def test_the_same_command_continues(serving: Serving, name: str, stop: signal.Signals) -> None:
    write_rows(Path("problems.jsonl"), problems(COUNT))
    write_rows(Path("solved.jsonl"), solved(COUNT // 2, each=2))
    run = rubric_command if name == "rubric" else graded_command
    arguments = {
        "rubric": ("rubric", "problems.jsonl", "out.jsonl", "--writer", "strong"),
        "graded": ("graded", "solved.jsonl", "out.jsonl", "--teacher", "strong"),
    }[name]
    assert run().status == 0
    expected = read_rows("out.jsonl")
    for file in Path().glob("out*"):
        file.unlink()
    serving.server.requests.clear()
    slow_after(serving, 9)
    process = start(*arguments)
    lines = kept_lines(6)
    process.send_signal(stop)
    code, printed = finish(process)
    if stop == signal.SIGKILL:
        assert code == -signal.SIGKILL
        with Path("out.replies.jsonl").open("a") as file:
            file.write('{"key": "half a li')  # as a process leaves that dies in the middle of a line
    else:
        assert code == 130, printed
        assert "The same command continues" in printed
        assert "Traceback" not in printed
    assert not Path("out.jsonl").exists()
    serving.server.say, serving.server.latency = reply_to, 0.0
    assert run().status == 0
    assert read_rows("out.jsonl") == expected
    assert len(serving.prompts) <= COUNT + 4  # those in flight are requested again, no others
    assert Path("out.replies.jsonl").read_text().startswith("".join(lines[:6]))


GONE = ("models.strong.retries=1", "models.strong.connect_timeout=1.0")


@pytest.mark.slow
def test_an_outage_is_waited_for_and_loses_nothing(serving: Serving) -> None:
    write_rows(Path("problems.jsonl"), problems(COUNT))
    slow_after(serving, 9)
    process = start("rubric", "problems.jsonl", "out.jsonl", *GONE, "--writer", "strong", "--wait", "100")
    kept_lines(6)
    serving.do(serving.server.stop())
    time.sleep(0.5)
    serving.server.say, serving.server.latency = reply_to, 0.0
    serving.do(serving.server.__aenter__())
    code, printed = finish(process)
    assert code == 0, printed
    assert len(read_rows("out.jsonl")) == COUNT
