"""A run on a cluster that loses a process in the middle: it stops with the cause, and resumes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.scale.test_verl_run import HEAD, STAGE, run, start, write_recipe

pytestmark = pytest.mark.slow


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended since
        return ""


def test_a_run_that_loses_a_worker_stops_with_the_cause_and_resumes(tmp_path: Path) -> None:
    text = HEAD + STAGE.format(name="policy", steps=6, more='advantage = "grpo"\nsave = { every = 1 }')
    recipe = write_recipe(tmp_path, text)
    here = run(recipe, tmp_path / "here")
    process = start(recipe, tmp_path / "there", "--on", "verl")
    deadline = time.monotonic() + 400
    while not list((tmp_path / "there").glob("checkpoints/*policy-000002")):
        assert process.poll() is None, process.communicate()[0][-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(next(child.pid for child in family if "PolicyWorker" in command_of(child)), signal.SIGKILL)
    printed, _ = process.communicate(timeout=400)
    assert process.returncode == 2, printed[-4000:]
    assert "error: a worker of the cluster died (pid: " in printed
    assert "The same command resumes" in printed
    assert "a worker of the cluster died" in (tmp_path / "there" / "summary.json").read_text()
    resumed = run(recipe, tmp_path / "there", "--on", "verl")
    assert resumed.keys() == here.keys()
    for step, values in here.items():
        assert resumed[step] == pytest.approx(values, rel=2e-3, abs=5e-4), step
