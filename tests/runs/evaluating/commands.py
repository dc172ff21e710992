"""What the tests of `rewardsmith evaluate` share: rewards of our own, and ways to run the command."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rewardsmith.cli import main

REWARDS = '''
import os, signal

from rewardsmith import Failure, Score

class Numbers:
    """The number that an answer is."""

    def __init__(self, *, scale: float = 1.0) -> None:
        self.scale = scale

    async def score(self, group):
        if os.environ.get("STRIKE") and group.prompt.id.endswith("-2"):
            os.kill(os.getpid(), int(os.environ["STRIKE"]))
        return [self._score(rollout.text) for rollout in group.rollouts]

    def _score(self, text):
        try:
            return Score(self.scale * float(text))
        except ValueError:
            return Score(failure=Failure("unparsable", f"{text} is no number"))

class Steps:
    """Whether a text shows no question mark."""

    async def score(self, group):
        return [Score(float("?" not in rollout.text)) for rollout in group.rollouts]
'''


def write(file: Path, *rows: dict[str, Any]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file.name


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command in this process and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["rewardsmith", "evaluate", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Return the JSON that the command prints."""
    assert run(monkeypatch, *arguments, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


GROUPS = [{"prompt": f"q{i}", "candidates": ["1", "2", "3"], "scores": [0, 5, 9]} for i in range(4)]
PAIRS = [
    {"id": 1, "prompt": "a", "chosen": "2", "rejected": "1", "subset": "hep-go"},
    {"id": 1, "prompt": "b", "chosen": "1", "rejected": "2", "subset": "math-prm"},
]
GRADES = [
    {"prompt": "a", "response": "0.9", "grade": 1.0, "right": True, "sound": True},
    {"prompt": "b", "response": "0.3", "grade": 0.2, "right": True, "sound": False},
]
