"""Small files of stored rollouts, and rewards that misbehave on request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardsmith import Failure, Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup
from rewardsmith.records import to_json

# The value of a text is its length. What else happens is up to the environment: the n-th group may end the process.
REWARDS = '''
import asyncio, os, signal, time

from rewardsmith import Failure, Score
from rewardsmith.rewards.base import Halt

calls = 0

class Length:
    """Longer is better."""

    def __init__(self, *, scale: float = 1.0) -> None:
        self.scale = scale

    async def score(self, group):
        global calls
        calls += 1
        if calls == int(os.environ.get("STRIKE_AT", "0")):
            os.kill(os.getpid(), int(os.environ["STRIKE"]))
            time.sleep(0.3)  # the signal comes before the next group, however busy the machine is
        await asyncio.sleep(0.001 * (calls % 3))  # others overtake
        with open(os.environ["CALLS"], "a") if "CALLS" in os.environ else open(os.devnull, "w") as log:
            log.write(group.prompt.id + chr(10))
        return tuple(Score(self.scale * len(rollout.text)) for rollout in group.rollouts)

class Picky:
    """Cannot score short texts."""

    async def score(self, group):
        down = Score(failure=Failure("timeout", "too short"))
        return tuple(Score(float(len(r.text))) if len(r.text) > 2 else down for r in group.rollouts)

class Halts:
    """Wants to stop at the third group."""

    async def score(self, group):
        global calls
        calls += 1
        if calls == 3:
            raise Halt("the judge is gone")
        return tuple(Score(1.0) for _ in group.rollouts)

class Ill:
    """Cannot work."""

    async def check(self):
        raise RuntimeError("no key was given")

    async def score(self, group):
        raise AssertionError("it was called")
'''


def scored(name: str, texts: Sequence[str], scores: Sequence[float | str], *, answer: object = "7") -> ScoredGroup:
    """Return a group with these scores: values, or failures of that kind."""
    group = RolloutGroup(Prompt(name, [Message("user", f"{name}?")], "src", answer), [Rollout(text) for text in texts])
    return ScoredGroup(group, [Score(failure=Failure(s)) if isinstance(s, str) else Score(s) for s in scores])


def record(group: ScoredGroup, *, step: int = 1, kind: str = "train", dropped: str = "") -> dict[str, Any]:
    """Return the line of a run's file."""
    none = [0.5] * len(group.scores)
    return {"step": step, "kind": kind, "dropped": dropped, "scored": to_json(group), "advantages": none}


def some(count: int) -> list[ScoredGroup]:
    """Return groups of two to four rollouts, with the lengths of the texts as rewards."""
    groups = []
    for i in range(count):
        texts = ["x" * ((3 * i + 5 * j) % 11) for j in range(2 + i % 3)]
        groups.append(scored(f"p{i}", texts, [float(len(text)) for text in texts]))
    return groups


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(to_json(row)) + "\n" for row in rows), encoding="utf-8")
    return path


def run_folder(path: Path, count: int = 12) -> Path:
    """Write a run of two stages: `policy` trains and validates at steps 0, 1, 2; `greedy` has two groups."""
    groups = some(count)
    rows = [record(group, step=i % 3, kind="validation" if i % 4 == 0 else "train") for i, group in enumerate(groups)]
    write(path / "rollouts" / "policy.jsonl", rows)
    write(path / "rollouts" / "greedy.jsonl", [record(group, kind="validation") for group in groups[:2]])
    return path


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
