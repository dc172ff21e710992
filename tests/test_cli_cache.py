"""`rewardsmith cache` as a user meets it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rewardsmith.rewards.cache import CacheRow, VerdictCache
from tests.command_line import Outcome, call

DAY = 86400
ALL = {"judge": 30, "[red]rater": 5}


def cache_command(*arguments: str) -> Outcome:
    return call("cache", *arguments)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder for caches is an empty one."""
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def filled(home: Path) -> Path:
    """30 verdicts of `judge`, the oldest 29 days old, and 5 new ones of `[red]rater`."""
    cache, now = VerdictCache(home, pytest.fail), int(time.time())
    cache.keep([
        *(CacheRow(b"a%d" % i, "judge", "m@1", "chat", now - i * DAY - 60, 100, 10, bytes(20_000)) for i in range(30)),
        *(CacheRow(b"b%d" % i, "[red]rater", "r@1", "rate", now, 0, 0, b"j1.0") for i in range(5)),
    ])  # fmt: skip
    cache.close()
    return home


def left(folder: Path) -> dict[str, int]:
    cache = VerdictCache(folder, pytest.fail)
    found = {one.model: one.verdicts for one in cache.contents()}
    cache.close()
    return found


def test_stats_show_each_model(filled: Path) -> None:
    printed = cache_command("stats").out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    oldest, newest, today = (time.strftime("%Y-%m-%d", time.localtime(time.time() - s)) for s in (29 * DAY + 60, 60, 0))
    assert rows == [
        ["judge", "m@1", "chat", "30", "600.0 kB", "3,300", oldest, newest],
        ["[red]rater", "r@1", "rate", "5", "20 bytes", "-", today, today],
    ]
    assert f"kB on disk in {filled}" in printed
    shown = json.loads(cache_command("stats", "--folder", str(filled), "--json").out)
    assert (shown["folder"], shown["verdicts"], shown["bytes_on_disk"] > 600_000) == (str(filled), 35, True)
    judge, _ = shown["models"]
    assert (judge["model"], judge["verdicts"], judge["bytes"], judge["tokens"]) == ("judge", 30, 600_000, 300)
    assert judge["newest"] - judge["oldest"] == 29 * DAY


def test_an_empty_cache(home: Path) -> None:
    for command in (["stats"], ["clear", "--yes"], ["clear", "--model", "judge"]):
        assert cache_command(*command).out.startswith(f"no verdicts in {home}")
    assert not home.exists()


def test_clear_removes_the_selected_verdicts(filled: Path) -> None:
    for options, removed, remain in (
        (["--older-than", "40"], "to remove", ALL),
        (["--older-than", "28.5", "--model", "judge"], "removed 1 verdict;", {"judge": 29, "[red]rater": 5}),
        (["--older-than", "20"], "removed 9 verdicts", {"judge": 20, "[red]rater": 5}),
        (["--model", "r@1"], "removed 5 verdicts", {"judge": 20}),
        ([], "removed 20 verdicts", {}),
    ):
        assert removed in cache_command("clear", "--yes", *options).out
        assert left(filled) == remain


@pytest.mark.parametrize(("typed", "status", "remain"), [("y\n", 0, {}), ("\n", 1, ALL)])
def test_clear_needs_confirmation(filled: Path, typed: str, status: int, remain: dict[str, int]) -> None:
    command = [sys.executable, "-m", "rewardsmith.cli", "cache", "clear"]
    done = subprocess.run(command, input=typed, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert f"Remove 35 verdicts by [red]rater, judge from {filled}?" in done.stdout
    assert ("nothing was deleted" in done.stderr) == bool(status)
    assert left(filled) == remain


def test_mistakes_end_with_a_message_and_status_2(filled: Path) -> None:
    for options, message in (
        (["clear", "--model", "jugde"], "no verdicts of a model 'jugde'. Did you mean \"judge\"? Known: [red]"),
        (["clear", "--older-than", "nan"], "--older-than is nan: it must be a number of days"),
        (["clear", "--older-than", "-1"], "--older-than is -1: it must be a number of days"),
        (["stats", "--folder", "/nowhere/at/all"], "--folder is '/nowhere/at/all': there is no such folder"),
        (["stast"], 'Did you mean "stats"?'),
    ):
        refused = cache_command(*options)
        assert (refused.status, message in refused.err) == (2, True)
    assert left(filled) == ALL
