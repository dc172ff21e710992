"""`rewardsmith score` with a rubric judge whose server the command starts and stops."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers.vllm import language_model, table

GRADE = "Total Score: ([0-9]|10)/10"
"""What the judge may write: a random model grades at random, and this makes it a grade."""


def toml(value: Any) -> str:
    """Return a value as TOML; for these, JSON is nearly that."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)


def processes_with(word: str) -> list[str]:
    """Return the command lines that have this word."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if word in line and file.parent.name != str(os.getpid()):
            found.append(line)
    return found


def test_stored_answers_are_graded_by_a_judge_of_the_runs_own(tmp_path: Path) -> None:
    pytest.importorskip("rewardsmith.rewards.judges.graders")
    language_model(tmp_path / "judge-model")
    settings = table(
        (tmp_path / "judge-model").absolute(),
        python=os.path.abspath(os.environ["REWARDSMITH_SERVER_PYTHON"]),
        body={"structured_outputs": {"regex": GRADE}},
    )
    judge = "\n".join(f"{key} = {toml(value)}" for key, value in settings.items())
    (tmp_path / "reward.toml").write_text(
        f"""
cache = ""
type = "rubric"
model = "judge"
criteria = "10 points for the right number."
request = {{ max_tokens = 40, temperature = 1.0 }}

[models.judge]
type = "managed"
{judge}
"""
    )
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {a}+{a}?"}], "responses": [str(2 * a), "I do not know."]}
        for a in range(1, 7)
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    command = ["score", "answers.jsonl", "--reward", "reward.toml", "--out", "scores.jsonl"]
    done = subprocess.run(
        [sys.executable, "-m", "rewardsmith.cli", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    scores = [score for line in lines for score in line.get("scores", [])]
    assert len(scores) == 12
    for score in scores:
        points = re.fullmatch(GRADE, score["feedback"])
        assert points is not None
        assert score["value"] == pytest.approx(int(points[1]) / 10)
    assert processes_with(str(tmp_path)) == []
