"""Many questions at once: all are asked, few at a time, each once; failures, outages and endless failures."""

import asyncio
import io
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

from rewardsmith.errors import UserError
from rewardsmith.llm import ModelCallError
from rewardsmith.runs.preparing import asking
from rewardsmith.runs.preparing.asking import STREAK, AskAll, Job
from rewardsmith.runs.preparing.kept import KeptAnswers
from rewardsmith.runs.progress import Progress
from rewardsmith.trainers.protocol import Update


class Ran:
    """What asking about numbers brought."""

    def __init__(self, folder: Path, work: Callable[[int], Awaitable[Any]], numbers: Any, **settings: Any) -> None:
        said = io.StringIO()
        self.error: BaseException | None = None
        kept = KeptAnswers(folder / "out.jsonl", {"a": 1}, [])
        ask: AskAll[int] = AskAll(work, kept, Progress(Console(file=said)), **settings)
        with kept.open():
            kept.identify("m")
            jobs = (Job(str(n), f"row {n}", n) for n in numbers)
            try:
                asyncio.run(ask(jobs, 0))
            except Exception as error:  # noqa: BLE001 it is what is looked at
                self.error = error
            self.kept = {str(n): kept[str(n)] for n in numbers if str(n) in kept}
        self.failed, self.asked, self.said = ask.failed, ask.asked, said.getvalue()


def test_each_is_asked_once_and_few_at_a_time(tmp_path: Path) -> None:
    asked: Counter[int] = Counter()
    open_, most = 0, 0

    async def work(number: int) -> int:
        nonlocal open_, most
        asked[number] += 1
        open_ += 1
        most = max(most, open_)
        await asyncio.sleep(0.001 * (number % 3))
        open_ -= 1
        return number * number

    numbers = [*range(40), *range(10)]
    ran = Ran(tmp_path, work, numbers, at_once=7)
    assert ran.kept == {str(n): n * n for n in range(40)}
    assert set(asked.values()) == {1}
    assert most == 7
    again = Ran(tmp_path, work, range(45), at_once=7)
    assert again.asked == 5
    assert set(asked.values()) == {1}


def test_failures_are_listed_and_not_kept(tmp_path: Path) -> None:
    async def work(number: int) -> int:
        if number % 5 == 2:
            raise ModelCallError("invalid", f"no rubric {number}", attempts=3)
        return number

    ran = Ran(tmp_path, work, range(20))
    assert sorted(ran.failed) == ["12", "17", "2", "7"]
    assert str(ran.failed["7"]) == "row 7: invalid after 3 tries: no rubric 7"
    assert len(ran.kept) == 16
    assert ran.error is None


def test_endless_failures_end_it(tmp_path: Path) -> None:
    asked = []

    async def work(number: int) -> int:
        asked.append(number)
        if number >= 10:
            raise ModelCallError("refused", "the quota is used up")
        return number

    ran = Ran(tmp_path, work, range(500), at_once=4)
    assert isinstance(ran.error, UserError)
    assert f"the last {STREAK} questions stayed without an answer" in str(ran.error)
    assert "the quota is used up" in str(ran.error)
    assert len(asked) < 10 + STREAK + 4
    assert len(ran.kept) == 10


@pytest.mark.parametrize("kind", ["unparsable", "invalid", "truncated"])
def test_rows_that_are_answered_badly_do_not_end_it(tmp_path: Path, kind: Any) -> None:
    async def work(number: int) -> int:
        if number < 2 * STREAK:
            raise ModelCallError(kind, "no rubric")
        return number

    ran = Ran(tmp_path, work, range(2 * STREAK + 5), at_once=2)
    assert (ran.error, len(ran.failed), len(ran.kept)) == (None, 2 * STREAK, 5)


def test_what_is_kept_is_told_and_progress_counts_it(tmp_path: Path) -> None:
    async def refuse(number: int) -> int:
        raise ModelCallError("refused", "the quota is used up")

    assert "has 0 answers" in str(Ran(tmp_path, refuse, range(50), at_once=1).error)

    class Steps(Progress):
        seen: ClassVar[list[Update]] = []

        def step(self, update: Update) -> None:
            self.seen.append(update)

    kept = KeptAnswers(tmp_path / "out.jsonl", {"a": 1}, [])
    with kept.open():
        kept.identify("m")
        for number in range(9):
            kept.add(str(number), number)
        ask: AskAll[int] = AskAll(refuse, kept, Steps(Console(file=io.StringIO())))
        asyncio.run(ask((Job(str(n), f"row {n}", n) for n in range(10)), 9))
    assert [(update.step, update.metrics) for update in Steps.seen] == [(10, {"reward/failed": 0.1})]


def test_an_outage_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "FIRST_WAIT", 0.001)
    left = 6

    async def work(number: int) -> int:
        nonlocal left
        if left:
            left -= 1
            raise ModelCallError("unreachable", "connection refused")
        return number

    ran = Ran(tmp_path, work, range(8), at_once=3, wait=60.0)
    assert (ran.error, len(ran.kept)) == (None, 8)
    assert ran.said.count("the model is out of reach; waiting up to 60 s") == 1
    assert ran.said.count("the model answers again") == 1


def test_but_not_for_ever(tmp_path: Path) -> None:
    async def work(number: int) -> int:
        if number == 3:
            raise ModelCallError("unreachable", "connection refused")
        await asyncio.sleep(0)
        return number

    ran = Ran(tmp_path, work, range(4), at_once=1, wait=0.0)
    assert "the model is out of reach: connection refused" in str(ran.error)
    assert "The same command goes on" in str(ran.error)
    assert sorted(ran.kept) == ["0", "1", "2"]


def test_what_is_no_failure_of_a_model_passes(tmp_path: Path) -> None:
    async def work(number: int) -> int:
        raise ZeroDivisionError

    assert isinstance(Ran(tmp_path, work, range(4)).error, ZeroDivisionError)
