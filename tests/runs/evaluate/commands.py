"""What the tests of `rewardsmith evaluate` share: data, and ways to run the command."""

import json
from pathlib import Path
from typing import Any

from tests.command_line import Outcome, call


def write(file: Path, *rows: dict[str, Any]) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file.name


def evaluate(*arguments: str) -> Outcome:
    """Run `rewardsmith evaluate`, or `evaluate-policy` where the first argument is `policy`."""
    words = ["evaluate-policy", *arguments[1:]] if arguments[0] == "policy" else ["evaluate", *arguments]
    return call(*words)


def measured(*arguments: str) -> dict[str, Any]:
    """Return the JSON that the command prints."""
    ended = evaluate(*arguments, "--json")
    assert ended.status == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
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
