"""`rewardsmith cache` as a user meets it."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rewardsmith.cli import main
from rewardsmith.rewards.cache import CacheRow, VerdictCache

DAY = 86400


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command line in this process and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["rewardsmith", "cache", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder for caches is an empty one."""
    monkeypatch.setenv("REWARDSMITH_CACHE", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def filled(home: Path) -> Path:
    """30 verdicts of `judge`, the oldest 29 days old, and 5 new ones of `[red]rater`."""
    cache, now = VerdictCache(home, log=pytest.fail), int(time.time())
    cache.keep([
        *(CacheRow(b"a%d" % i, "judge", "m@1", "chat", now - i * DAY - 60, 100, 10, bytes(20_000)) for i in range(30)),
        *(CacheRow(b"b%d" % i, "[red]rater", "r@1", "rate", now, 0, 0, b"j1.0") for i in range(5)),
    ])  # fmt: skip
    cache.close()
    return home


def left(folder: Path) -> dict[str, int]:
    cache = VerdictCache(folder, log=pytest.fail)
    found = {one.model: one.verdicts for one in cache.contents()}
    cache.close()
    return found


def test_stats_show_each_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], filled: Path
) -> None:
    assert run(monkeypatch, "stats") == 0
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    oldest, newest, today = (time.strftime("%Y-%m-%d", time.localtime(time.time() - s)) for s in (29 * DAY + 60, 60, 0))
    assert rows == [
        ["judge", "m@1", "chat", "30", "600.0 kB", "3,300", oldest, newest],
        ["[red]rater", "r@1", "rate", "5", "20 bytes", "-", today, today],
    ]
    assert re.search(r"^35 verdicts, 6\d\d\.\d kB on disk in (.*)$", printed, re.M)[1] == str(filled)  # type: ignore[index]


def test_stats_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], filled: Path) -> None:
    assert run(monkeypatch, "stats", "--folder", str(filled), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["folder"], shown["verdicts"]) == (str(filled), 35)
    assert shown["bytes_on_disk"] > 600_000
    judge, rater = shown["models"]
    assert (judge["model"], judge["verdicts"], judge["bytes"], judge["tokens"]) == ("judge", 30, 600_000, 300)
    assert judge["newest"] - judge["oldest"] == 29 * DAY
    assert (rater["model"], rater["verb"]) == ("[red]rater", "rate")


@pytest.mark.parametrize("command", [["stats"], ["clear", "--yes"], ["clear", "--model", "judge"]])
def test_an_empty_cache(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path, command: list[str]
) -> None:
    assert run(monkeypatch, *command) == 0
    assert capsys.readouterr().out.startswith(f"no verdicts in {home}")
    assert not home.exists()


@pytest.mark.parametrize(
    ("options", "removed", "remain"),
    [
        ([], "removed 35 verdicts", {}),
        (["--model", "judge"], "removed 30 verdicts", {"[red]rater": 5}),
        (["--model", "r@1"], "removed 5 verdicts", {"judge": 30}),
        (["--older-than", "20"], "removed 10 verdicts", {"judge": 20, "[red]rater": 5}),
        (["--older-than", "28.5", "--model", "judge"], "removed 1 verdict;", {"judge": 29, "[red]rater": 5}),
        (["--older-than", "40"], "no verdict is that old: there is nothing", {"judge": 30, "[red]rater": 5}),
    ],
)
def test_clear_removes_the_selected_verdicts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    filled: Path,
    options: list[str],
    removed: str,
    remain: dict[str, int],
) -> None:
    assert run(monkeypatch, "clear", "--yes", *options) == 0
    assert removed in capsys.readouterr().out
    assert left(filled) == remain


COMMAND = [sys.executable, "-m", "rewardsmith.cli", "cache", "clear"]


@pytest.mark.parametrize(("typed", "status", "remain"), [("y\n", 0, {}), ("\n", 1, None)])
def test_clear_needs_confirmation(filled: Path, typed: str, status: int, remain: dict[str, int] | None) -> None:
    done = subprocess.run(COMMAND, input=typed, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert f"Remove 35 verdicts by [red]rater, judge from {filled}? The models will be called again." in done.stdout
    assert ("nothing was deleted" in done.stderr) == bool(status)
    assert "Traceback" not in done.stderr
    assert left(filled) == ({"judge": 30, "[red]rater": 5} if remain is None else remain)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["clear", "--model", "jugde"], "no verdicts of a model 'jugde'. Did you mean \"judge\"? Known: [red]"),
        (["clear", "--older-than", "nan"], "--older-than is nan: it must be a number of days"),
        (["clear", "--older-than", "soon"], "--older-than"),
        (["clear", "--older-than", "-1"], "--older-than is -1: it must be a number of days"),
        (["stats", "--folder", "/nowhere/at/all"], "--folder is '/nowhere/at/all': there is no such folder"),
        (["stast"], 'Did you mean "stats"?'),
    ],
)
def test_mistakes_end_with_a_message_and_status_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    filled: Path,
    options: list[str],
    message: str,
) -> None:
    assert run(monkeypatch, *options) == 2
    assert message in capsys.readouterr().err
    assert left(filled) == {"judge": 30, "[red]rater": 5}
