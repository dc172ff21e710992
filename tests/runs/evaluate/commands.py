"""What the tests of `rewardsmith evaluate` share: rewards of our own, and ways to run the command."""

import json
from pathlib import Path
from typing import Any

from tests.command_line import Outcome, call

REWARDS = '''
import os, signal

from rewardsmith import Failure, Message, Prompt, Score
from rewardsmith.types import Ranking

class Endless:
    """Groups without end."""

    def prompts(self, seed):
        return (ranking.prompt for ranking in self.rankings(seed))

    def rankings(self, seed):
        while True:
            yield Ranking(Prompt("p", [Message("user", "?")]), ["1", "2"], [1.0, 2.0])

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
