"""A run folder of a policy with a process reward, made up: rollouts whose tokens have rewards, and what was learned."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rewardsmith import Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup
from rewardsmith.records import to_json
from tests.runs.fake_run import policy_metrics, write_lines

PROBLEM = Prompt("chain", [Message("user", "(14 + 27) - 6 = ?")], source="arithmetic", answer="35")
RIGHT = "14 + 27 = 41\n41 - 6 = 35\n#35"
WRONG = "14 + 27 = 31\n31 - 6 = 25\n#25"


def by_letter(text: str) -> Rollout:
    """Return a rollout with a token for each character, and one that ends it."""
    tokens = [ord(letter) for letter in text]
    return Rollout(text, [*tokens, 0], ends=[*range(1, len(text) + 1), len(text)])


def dense(values: Sequence[float], support: Sequence[bool] | None = None, feedback: str = "") -> Score:
    """Return the score of a part with rewards per token; its value is their sum."""
    return Score(float(sum(values)), token_values=values, token_support=support, feedback=feedback)


def row(
    rollouts: Sequence[Rollout], scores: Sequence[Score], step: int = 1, prompt: Prompt = PROBLEM
) -> dict[str, Any]:
    """Return one line of a rollouts file."""
    scored = ScoredGroup(RolloutGroup(prompt, rollouts), scores)
    return {"step": step, "kind": "train", "dropped": "", "scored": to_json(scored), "advantages": [0.25] * len(scores)}


def write_process_run(folder: Path, *, steps: int = 30, seed: int = 0) -> Path:
    """Write the run into `folder` and return it: rewards by token and by step, which learn to find the wrong step."""
    rng = random.Random(seed)
    metrics, groups = [], []
    for step in range(1, steps + 1):
        skill = 1 - math.exp(-step / 8)
        values = policy_metrics(rng, skill, step) | _learned(rng, skill, "process") | _learned(rng, skill / 2, "step")
        metrics.append({"stage": "policy", "step": step, "metrics": values})
        rollouts = [by_letter(rng.choice([RIGHT, WRONG, WRONG[:17]])) for _ in range(4)]
        groups.append(row(rollouts, [_score(rng, rollout, skill) for rollout in rollouts], step))
    write_lines(folder / "metrics.jsonl", metrics)
    write_lines(folder / "rollouts" / "policy.jsonl", groups)
    (folder / "summary.json").write_text(json.dumps({"title": "arithmetic with process rewards", "state": "finished"}))
    return folder


def _learned(rng: random.Random, skill: float, part: str) -> dict[str, float]:
    accuracy = 0.5 + 0.35 * skill + rng.gauss(0, 0.03)
    found = {
        "accuracy_fresh": accuracy,
        "accuracy_after": min(1.0, accuracy + 0.05),
        "trust": max(0.0, 2 * accuracy - 1),
        "loss": 0.69 - 0.3 * skill + rng.gauss(0, 0.01),
        "steps/found": 0.3 + 0.3 * skill,
        "steps/chance": 0.33,
        "grad_norm": 1.0 + rng.random(),
    }
    return {f"learned/{part}/{name}": value for name, value in found.items()}


def _score(rng: random.Random, rollout: Rollout, skill: float) -> Score:
    right = rollout.text == RIGHT
    values = np.array([rng.gauss(0, 0.02) for _ in rollout.tokens])
    # The wrong step is the first: its digits are where the model points, once it has learned.
    values[10:12] += 0.15 * skill if right else -0.3 * skill
    values[-1] += 0.1 * skill * (1 if right else -1)
    ends = np.array([letter == "\n" for letter in rollout.text] + [True])
    starts = np.concatenate(([0], np.flatnonzero(ends)[:-1] + 1))
    sums = np.zeros_like(values)
    sums[ends] = np.add.reduceat(values, starts)
    output = "" if right else "first wrong step: 1"
    parts = {
        "answer": Score(float(right)),
        "process": dense(values.tolist(), feedback=output),
        "step": dense(sums.tolist(), ends.tolist()),
    }
    return replace(Score(float(right)), parts=parts)
