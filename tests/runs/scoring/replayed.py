"""Run folders whose advantages were computed by hand, in float64 and one rollout after the other."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any

import numpy as np

from rewardsmith.recipe import explain, parse_recipe
from rewardsmith.records import to_json
from rewardsmith.types import Failure, Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup
from tests.command_line import call
from tests.runs.scoring.groups import write

PARTS = {
    "digits": {"type": "tests.trainers.world:Digits", "weight": 2.0},
    "brevity": {"type": "tests.trainers.world:Brevity", "weight": -1.0},
}
"""Two parts of a sum: the share of digits, and 1 - tokens / 8."""


def recipe(**stage: Any) -> dict[str, Any]:
    """Return a recipe with one tiny policy stage."""
    policy = {"type": "policy", "model": "policy", "data": "train", "steps": 2, "prompts_per_step": 4}
    policy |= {"rollouts_per_prompt": 4, "sampling": {"max_tokens": 8}, "optimizer": {"lr": 1e-3}}
    return {
        "models": {"policy": {"init": "tiny-llama"}},
        "data": {"train": {"type": "arithmetic", "operations": 1}},
        "stages": [policy | {"reward": {"type": "sum", "parts": PARTS}} | stage],
    }


@dataclass
class Row:
    """One rollout: its tokens, the value of each part, None where it failed, and what it was estimated at."""

    group: int
    tokens: int
    values: dict[str, float | None]
    advantage: float | None = None
    text: str = ""
    stop: str = "stop"

    @property
    def total(self) -> float | None:
        values = [None if value is None else PARTS[name]["weight"] * value for name, value in self.values.items()]  # type: ignore[operator]
        return None if None in values else math.fsum(values)  # type: ignore[arg-type]


Estimate = Callable[[list[tuple[int, float, int]]], list[float]]
"""From (group, reward, tokens) of each rollout that could be scored to its advantage."""


def siblings(rows: Sequence[tuple[int, float, int]], group: int) -> list[float]:
    return [reward for other, reward, _ in rows if other == group]


def grpo(rows: list[tuple[int, float, int]]) -> list[float]:
    found = []
    for group, reward, _ in rows:
        rewards = siblings(rows, group)
        spread = stdev(rewards) if len(rewards) > 1 else 0.0
        found.append((reward - fmean(rewards)) / (spread + 1e-6) if spread else 0.0)
    return found


def rloo(rows: list[tuple[int, float, int]]) -> list[float]:
    found = []
    for group, reward, _ in rows:
        rewards = siblings(rows, group)
        found.append(reward - (sum(rewards) - reward) / (len(rewards) - 1) if len(rewards) > 1 else 0.0)
    return found


def reinforce_plus_plus(rows: list[tuple[int, float, int]]) -> list[float]:
    return whitened([reward for _, reward, _ in rows], [tokens for *_, tokens in rows])


def whitened(values: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """Return mean 0 and unbiased variance 1 over all tokens; every token of a rollout has its value."""
    each = [value for value, count in zip(values, tokens, strict=True) for _ in range(count)]
    mean, scale = fmean(each), math.sqrt(variance(each) + 1e-8)
    return [(value - mean) / scale for value in values]


def estimate(rows: list[Row], by: Estimate, value: Callable[[Row], float | None]) -> list[float | None]:
    """Return the advantage of each row; one without a value has none, and no vote."""
    scored = [(row, one) for row in rows if (one := value(row)) is not None]
    found = iter(by([(row.group, one, row.tokens) for row, one in scored]))
    voting = {id(row) for row, _ in scored}
    return [next(found) if id(row) in voting else None for row in rows]


def random_rows(seed: int, *, groups: int = 4, size: int = 4, failing: Sequence[str] = ()) -> list[Row]:
    """Return rollouts with multiples of 1/8 as values; of parts in `failing` every fourth value failed."""
    random = np.random.default_rng(seed)
    rows = []
    for i in range(groups * size):
        values: dict[str, float | None] = {name: float(random.integers(0, 9)) / 8 for name in PARTS}
        for name in failing:
            values[name] = None if random.random() < 0.25 else values[name]
        rows.append(Row(i // size, int(random.integers(1, 9)), values, text=f"answer {i}"))
    return rows


@dataclass
class HandMadeRun:
    """A run folder that is filled step by step."""

    folder: Path
    stage: dict[str, Any] = field(default_factory=dict)
    lines: list[Any] = field(default_factory=list)

    def add(self, step: int, rows: Sequence[Row], *, kind: str = "train", dropped: str = "", source: str = "") -> None:
        """Add the groups of a step, whose rows have their advantages."""
        for group in dict.fromkeys(row.group for row in rows):
            own = [row for row in rows if row.group == group]
            prompt = Prompt(f"p{step}.{group}", [Message("user", "?")], source or f"source {group % 2}", "7")
            scored = ScoredGroup(RolloutGroup(prompt, [_rollout(row) for row in own]), [_score(row) for row in own])
            line = {"step": step, "kind": kind, "dropped": dropped, "scored": to_json(scored)}
            self.lines.append({**line, "advantages": [row.advantage for row in own]})

    def write(self) -> Path:
        """Write the folder and return it."""
        write(self.folder / "rollouts" / "policy.jsonl", self.lines)
        (self.folder / "recipe.toml").write_text(explain(parse_recipe(recipe(**self.stage))))
        return self.folder


def _rollout(row: Row) -> Rollout:
    return Rollout(row.text, list(range(1, row.tokens + 1)), [-0.5] * row.tokens, row.stop)  # type: ignore[arg-type]


def _score(row: Row) -> Score:
    late = Failure("timeout", "too late")
    parts = {name: Score(failure=late) if one is None else Score(one) for name, one in row.values.items()}
    return Score(failure=late, parts=parts) if row.total is None else Score(row.total, parts=parts)


def replay(folder: Path, *arguments: str) -> dict[str, Any]:
    """Return the facts of `rewardsmith score --compare`; those of the advantages are under `replay`."""
    ended = call("score", str(folder), "--compare", "--json", *arguments)
    assert ended.status == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)["compared"]
    return found


# ---- rewards ---------------------------------------------------------------------------------------------------------


def number_of(response: str) -> float | None:
    """Return the number that an answer is; others cannot be scored."""
    return float(response) if response.isdigit() else None


def never(response: str) -> float:
    """Reject every answer."""
    return 0.0
