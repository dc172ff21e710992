"""`rewardsmith prepare gqm-sft` and `gqm-rl` as a user meets them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rewardsmith.cli import main
from tests.data.gqm_rows import read_rows, row, write_rows


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "groups.jsonl", [row(i, 2 + i % 3) for i in range(30)])


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["rewardsmith", "prepare", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_rl_prompts(
    groups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, held = tmp_path / "train.parquet", tmp_path / "test.parquet"
    arguments = [groups, out, "--subgroup-augment", 4, "--shuffle-augment", 4, "--held-out", 6, "--held-out-out", held]
    assert run(monkeypatch, "gqm-rl", *arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    rows, test = read_rows(out), read_rows(held)
    assert len(test) == 6
    for line in (r"30  groups read", r"30  rows: original", rf"{len(rows)}  rows in .*train", r"6  rows in .*test"):
        assert re.search(rf"^ +{line}", captured.out, re.MULTILINE), captured.out
    assert run(monkeypatch, "gqm-rl", *arguments) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run(monkeypatch, "gqm-rl", *arguments, "--overwrite", "--json") == 0
    assert json.loads(capsys.readouterr().out)["written"] == len(rows)
    assert read_rows(out) == rows


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("both", r"### Final Ranking:\n\n.*\n\n### Scores:\n\n.*\n"),
        ("ranking_score", r"### Final Ranking:\n\n.*\n\n### Scores:\n\n.*\n"),
        ("ranking", r"### Final Ranking:\n\n[A-D >=]+\n"),
        ("scores", r"idiom\.\n\nA: \d+, B: \d+.*\n"),
        ("score", r"idiom\.\n\nA: \d+, B: \d+.*\n"),
    ],
)
def test_prompt_types_also_by_the_names_of_grrm(
    name: str, ends: str, groups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "sft.jsonl"
    assert run(monkeypatch, "gqm-sft", groups, out, "--prompt-type", name) == 0
    for one in read_rows(out):
        assert re.search(rf"{ends}\Z", one["messages"][1]["content"])


def test_llama_factory_finds_the_files(
    groups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = tmp_path / "data" / "dataset_info.json"
    info.parent.mkdir()
    info.write_text('{"mine": {"file_name": "x.json"}}', encoding="utf-8")
    arguments = [
        groups,
        info.with_name("sft.jsonl"),
        "--held-out",
        0.3,
        "--held-out-out",
        info.with_name("held.parquet"),
    ]
    assert run(monkeypatch, "gqm-sft", *arguments, "--llama-factory") == 0
    assert str(info) in capsys.readouterr().out
    entries = json.loads(info.read_text(encoding="utf-8"))
    assert set(entries) == {"mine", "sft", "held"}
    assert entries["sft"] == {
        "file_name": "sft.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": {
            "role_tag": "role",
            "content_tag": "content",
            "user_tag": "user",
            "assistant_tag": "assistant",
            "system_tag": "system",
        },
    }
    info.write_text('{"sft": {"file_name": "other.json"}}', encoding="utf-8")
    again = ["gqm-sft", groups, info.with_name("sft.parquet"), "--llama-factory"]
    assert run(monkeypatch, *again) == 2
    assert "has 'sft' already, for 'other.json': choose another name" in capsys.readouterr().err
    assert not info.with_name("sft.parquet").exists()
    assert run(monkeypatch, *again, "--overwrite") == 0
    assert json.loads(info.read_text(encoding="utf-8"))["sft"]["file_name"] == "sft.parquet"
    same = ["--held-out", 3, "--held-out-out", info.with_name("sft.jsonl"), "--overwrite"]
    assert run(monkeypatch, *again, *same) == 2
    assert "sft.parquet and sft.jsonl would have one name" in capsys.readouterr().err
    for broken in ("[1]", "{"):
        info.write_text(broken, encoding="utf-8")
        assert run(monkeypatch, "gqm-sft", groups, info.with_name("more.jsonl"), "--llama-factory") == 2
        assert "--llama-factory" in capsys.readouterr().err
        assert not info.with_name("more.jsonl").exists()


def test_questions_columns_and_scores_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [{"q": "Why?", "answers": ["a", "b"], "marks": [0.5, 1], "why": "B is right.", "key": "x"}]
    source, out = write_rows(tmp_path / "in.jsonl", given), tmp_path / "out.jsonl"
    named = ["candidates=answers", "scores=marks", "analysis=why", "id=key"]
    columns = [part for name in named for part in ("--column", name)]
    scale = ["--lowest", 0, "--highest", 1, "--decimals", "--data-source", "mine", "--criteria", "honesty"]
    assert run(monkeypatch, "gqm-sft", source, out, "--question-column", "q", *columns, *scale) == 0
    (made,) = read_rows(out)
    assert (made["id"], made["data_source"]) == ("x/AB", "mine")
    assert "Question:\n```\nWhy?\n```" in made["messages"][0]["content"]
    assert "honesty" in made["messages"][0]["content"]
    assert made["messages"][1]["content"].endswith("### Scores:\n\nB: 1, A: 0.5\n")


def test_bad_rows(
    groups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = write_rows(tmp_path / "in.jsonl", [row(0), row(1, scores=[1]), b"no"]), tmp_path / "out.jsonl"
    assert run(monkeypatch, "gqm-rl", source, out) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: 2 of 3 rows cannot be used:\n")
    assert "in.jsonl, line 2\n    scores has 1 and mt_texts 2: one score for each candidate" in captured.err
    assert not out.exists()
    assert run(monkeypatch, "gqm-rl", source, out, "--skip-bad") == 0
    assert "2 of 3 rows left out:" in capsys.readouterr().err
    assert len(read_rows(out)) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gqm-rl", "IN", "OUT", "--prompt-type", "rankings"], 'Did you mean "ranking"?'),
        (["gqm-sft", "IN", "OUT", "--subgroup-analysis", "kep"], 'Did you mean "keep"?'),
        (["gqm-rl", "IN", "OUT", "--column", "score=x"], 'Did you mean "scores"?'),
        (["gqm-rl", "IN", "OUT", "--column", "scores"], "write it as WHAT=NAME"),
        (["gqm-rl", "IN", "OUT", "--column", "scores=a", "--column", "scores=b"], "says twice"),
        (["gqm-rl", "IN", "OUT", "--question-column", "q", "--source-language", "zh"], "leave the languages out"),
        (["gqm-rl", "IN", "OUT", "--source-language", "zz"], "not a language that we know"),
        (["gqm-rl", "IN", "OUT", "--held-out", "0.1"], "give both, or none"),
        (["gqm-rl", "IN", "OUT", "--template", "rankingg"], 'Did you mean "ranking"?'),
        (["gqm-rl", "IN", "OUT", "--lowest", "10"], "the range is empty"),
        (["gqm-rl", "IN", "out.txt"], "does not end in .jsonl or .parquet"),
        (["gqm-rl", "grups.jsonl", "OUT"], "there is no file"),
    ],
)
def test_mistakes_are_told_with_their_remedy(
    arguments: list[str],
    told: str,
    groups: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out.jsonl"
    assert run(monkeypatch, *[{"IN": groups, "OUT": out}.get(part, part) for part in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert told in captured.err
    assert captured.out == ""
    assert not out.exists()


@pytest.mark.parametrize("command", ["gqm-sft", "gqm-rl"])
def test_help_teaches(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, command, "--help") == 0
    assert f"rewardsmith prepare {command} rankings.parquet" in capsys.readouterr().out


def test_a_real_process_with_two_workers(groups: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rewardsmith.cli", "prepare", "gqm-rl", str(groups), str(tmp_path / "o.parquet")]
    done = subprocess.run([*command, "--workers", "2"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(read_rows(tmp_path / "o.parquet")) == 30


@pytest.mark.parametrize(
    ("workers", "wish", "after"),
    [
        ("1", signal.SIGINT, 0.05),
        ("1", signal.SIGTERM, 0.05),
        ("2", signal.SIGINT, 0.4),  # the workers have just started
        ("2", signal.SIGINT, 1.5),  # they are at work
    ],
)
def test_ctrl_c_ends_all_processes_quietly(workers: str, wish: signal.Signals, after: float, tmp_path: Path) -> None:
    source, folder = write_rows(tmp_path / "in.jsonl", [row(i, 8) for i in range(4000)]), tmp_path / "out"
    command = [sys.executable, "-m", "rewardsmith.cli", "prepare", "gqm-rl", str(source), str(folder / "o.parquet")]
    options = ["--workers", workers, "--subgroup-augment", "10", "--shuffle-augment", "10"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while not (folder.exists() and any(folder.iterdir())):  # it has begun
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(after)
        if wish == signal.SIGINT:
            os.killpg(process.pid, wish)  # a terminal tells all of them
        else:
            process.send_signal(wish)
        out, told = process.communicate(timeout=120)
    assert (process.returncode, out, told) == (130, "", "stopped; nothing was written\n")
    assert list(folder.iterdir()) == []


def test_the_benchmark_runs() -> None:
    benchmark = Path(__file__).parents[1] / "benchmarks" / "prepare.py"
    command = [sys.executable, str(benchmark), "--rows", "40", "80", "--peer-most", "40", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ours, 1 process") == 2
    assert done.stdout.count("plain, in memory") == 1
