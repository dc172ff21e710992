"""Commands that are killed, interrupted or out of luck: the same command goes on, and ends with the same files."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.engines.client.probes import QUESTIONS
from tests.engines.faulty import last_text
from tests.runs.preparing.commands import models_file, problems, read, run, solved, write
from tests.runs.preparing.serving import Serving, wrote

LIMIT = 120.0
COUNT = 24


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    monkeypatch.chdir(tmp_path)
    with Serving() as served:
        models_file(tmp_path, served)
        write(tmp_path / "problems.jsonl", problems(COUNT))
        write(tmp_path / "solved.jsonl", solved(COUNT // 2, each=2))
        yield served


COMMANDS = {
    "rubric": ("rubric", "problems.jsonl", "out.jsonl", "--models", "models.toml", "--judge", "writer"),
    "graded": ("graded", "solved.jsonl", "out.jsonl", "--models", "models.toml", "--teacher", "writer", "--balance"),
}


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rewardsmith.cli", "prepare", *arguments, "--at-once", "4"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out + err


def slow_after(serving: Serving, count: int) -> None:
    """Let the server answer so many questions, and then keep the others waiting."""
    answered = 0

    def say(body: dict[str, Any]) -> str:
        nonlocal answered
        answered += last_text(body) not in QUESTIONS  # the verdict cache's probes are no answers
        if answered >= count:
            serving.server.latency = 60.0
        return wrote(body)

    serving.server.say = say


def kept_lines(least: int) -> list[str]:
    """Wait until so many answers are kept, and return the lines."""
    file, until = Path("out.kept.jsonl"), time.monotonic() + LIMIT
    while time.monotonic() < until:
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        if sum(line.endswith("\n") for line in lines) > least:  # the first one is the heading
            return lines
        time.sleep(0.02)
    raise AssertionError(f"only {lines}")


STOPS = [
    ("rubric", signal.SIGKILL),
    ("rubric", signal.SIGINT),
    ("rubric", signal.SIGTERM),
    ("graded", signal.SIGKILL),
    ("graded", signal.SIGINT),
]


@pytest.mark.parametrize(("name", "how"), STOPS)
def test_the_same_command_goes_on(serving: Serving, monkeypatch: Any, name: str, how: signal.Signals) -> None:
    command = COMMANDS[name]
    assert run(monkeypatch, *command) == 0
    expected = read("out.jsonl")
    for file in Path().glob("out*"):
        file.unlink()
    serving.server.requests.clear()
    slow_after(serving, 9)
    process = start(*command)
    lines = kept_lines(6)
    process.send_signal(how)
    code, told = finish(process)
    if how == signal.SIGKILL:
        assert code == -signal.SIGKILL
        with Path("out.kept.jsonl").open("a") as file:
            file.write('{"key": "half a li')  # as a process leaves that dies in the middle of a line
    else:
        assert code == 130, told
        assert "The same command goes on" in told
        assert "Traceback" not in told
    assert not Path("out.jsonl").exists()
    serving.server.say, serving.server.latency = wrote, 0.0
    assert run(monkeypatch, *command) == 0
    assert read("out.jsonl") == expected
    assert len(serving.asked) <= COUNT + 4  # those that were under way are asked again, no others
    assert Path("out.kept.jsonl").read_text().startswith("".join(lines[:6]))


GONE = ("models.writer.retries=1", "models.writer.connect_timeout=1.0")


def test_a_model_that_goes_away_stops_it_and_nothing_is_lost(serving: Serving, monkeypatch: Any) -> None:
    slow_after(serving, 9)
    process = start(*COMMANDS["rubric"], "--wait", "0", *GONE)
    kept_lines(6)
    serving.do(serving.server.stop())
    code, told = finish(process)
    assert code == 2, told
    assert "the model is out of reach" in told
    assert "The same command goes on; out.kept.jsonl has" in told
    serving.server.say, serving.server.latency = wrote, 0.0
    serving.do(serving.server.__aenter__())
    assert run(monkeypatch, *COMMANDS["rubric"], *GONE) == 0
    assert len(read("out.jsonl")) == COUNT


def test_an_outage_is_waited_for(serving: Serving) -> None:
    slow_after(serving, 9)
    process = start(*COMMANDS["rubric"], "--wait", "100", *GONE)
    kept_lines(6)
    serving.do(serving.server.stop())
    time.sleep(0.5)
    serving.server.say, serving.server.latency = wrote, 0.0
    serving.do(serving.server.__aenter__())
    code, told = finish(process)
    assert code == 0, told
    assert len(read("out.jsonl")) == COUNT
