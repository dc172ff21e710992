"""The commands: flags are the settings of the jobs, docs name them all, and a stopped command leaves nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rewardsmith.cli import JOBS
from rewardsmith.config import import_name
from tests.command_line import call
from tests.data.prepare.jobs import group_row as row
from tests.data.prepare.jobs import names, read_rows, write_rows

DOCS = Path(__file__).parents[3] / "docs"
PAGES = {
    "gqm-sft": "ranking_data",
    "gqm-rl": "ranking_data",
    "preferences": "preferences",
    "rubric": "rubric_data",
    "graded": "rubric_data",
}


def test_flags_of_a_command(tmp_path: Path) -> None:
    groups = write_rows(tmp_path / "groups.jsonl", [row(i, 2 + i % 3) for i in range(30)])
    out, held = tmp_path / "train.parquet", tmp_path / "test.parquet"
    arguments = ["prepare", "gqm-rl", str(groups), str(out), "--subgroups", "4", "--shuffles", "4"]
    arguments += ["--held-out", "6", "--held-out-file", str(held), "--columns.candidates", "mt_texts"]
    ended = call(*arguments)
    assert (ended.status, ended.err) == (0, "")
    assert "30  rows read" in ended.out
    assert f"6  rows in {held}" in ended.out
    assert len(read_rows(held)) == 6
    again = call(*arguments)
    assert (again.status, "--fresh" in again.err) == (2, True)
    ended = call(*arguments, "--fresh", "--json")
    assert json.loads(ended.out)["written"][str(out)] == len(read_rows(out))


def test_mistakes_name_the_remedy(tmp_path: Path) -> None:
    groups, out = str(write_rows(tmp_path / "groups.jsonl", [row(0)])), str(tmp_path / "out.jsonl")
    for arguments, message in [
        (["gqm-rl", groups, out, "--verdict", "rankings"], "ranking"),
        (["gqm-rl", groups, out, "--shufles", "1"], "--shuffles"),
        (["gqm-rl", groups, out, "--held-out", "0.1"], "held_out_file"),
        (["gqm-rl", groups, out, "--columns.score", "x"], "scores"),
        (["gqm-rl", str(tmp_path / "grups.jsonl"), out], 'Did you mean "groups.jsonl"'),
        (["preferences", groups, out, "--labels", "score"], "scores"),
    ]:
        refused = call("prepare", *arguments)
        assert (refused.status, refused.out) == (2, "")
        assert message in refused.err
    assert names(tmp_path) == {"groups.jsonl"}


@pytest.mark.parametrize("name", PAGES)
def test_help_and_docs_name_every_setting(name: str) -> None:
    job = import_name(JOBS[f"prepare {name}"])
    printed = call("prepare", name, "--help").out
    page = (DOCS / f"{PAGES[name]}.md").read_text(encoding="utf-8")
    for setting in job.model_fields:
        flag = setting.upper() if setting in job.arguments else f"--{setting.replace('_', '-')}"
        assert flag in printed
        assert setting in job.arguments or flag in page or setting in page, setting


@pytest.mark.slow
def test_a_stopped_command_leaves_nothing(tmp_path: Path) -> None:
    source, folder = write_rows(tmp_path / "in.jsonl", [row(i, 8) for i in range(3000)]), tmp_path / "out"
    command = [sys.executable, "-m", "rewardsmith", "prepare", "gqm-rl", str(source), str(folder / "o.parquet")]
    with subprocess.Popen(
        [*command, "--subgroups", "10", "--shuffles", "10"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (folder.exists() and any(folder.iterdir())):  # it has begun to write
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_the_benchmark_runs() -> None:
    benchmark = Path(__file__).parents[3] / "benchmarks" / "prepare.py"
    command = [sys.executable, str(benchmark), "--rows", "40", "--max-peer", "40"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (ended.stdout.count("ours"), ended.stdout.count("in memory, unchecked")) == (1, 1)
