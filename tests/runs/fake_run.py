"""Run folders as real runs would leave them, made up: curves, rollouts with parts and failures, rewards per token."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardsmith import Failure, Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup
from rewardsmith.records import to_json

RECIPE = """\
# The quickstart: imitate sloppy arithmetic, then let a verifiable reward select what is right.
title = "arithmetic with steps"

[[stages]]
type = "policy"
loss = { type = "clip", low = 0.2, high = 0.28 }
"""
PROBLEM = Prompt("chain", [Message("user", "(14 + 27) - 6 = ?")], source="arithmetic", answer="35")


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def record(
    rollouts: Sequence[Rollout], scores: Sequence[Score], step: int = 1, prompt: Prompt = PROBLEM, **changes: Any
) -> dict[str, Any]:
    """Return one line of a rollouts file."""
    scored = to_json(ScoredGroup(RolloutGroup(prompt, rollouts), scores))
    line = {"step": step, "kind": "train", "dropped": "", "scored": scored, "advantages": [0.25] * len(scores)}
    return line | changes


def line(text: str, score: Score, *, step: int = 1, dropped: str = "", prompt: Prompt = PROBLEM) -> dict[str, Any]:
    """Return one line of a rollouts file, with one rollout."""
    return record([Rollout(text)], [score], step, prompt, dropped=dropped)


# ---- a policy with a rule and a judge --------------------------------------------------------------------------------


def write_fake_run(folder: Path, *, steps: int = 40, prompts: int = 6) -> Path:
    """Write a whole run into `folder` and return it."""
    rng = random.Random(0)
    metrics = [{"stage": "sft", "step": i, "metrics": {"loss": 3 * math.exp(-i / 25)}} for i in range(1, 3 * steps)]
    groups, ends = [], []
    for step in range(steps + 1):
        skill = 0.25 + 0.68 / (1 + math.exp(-(step - 0.4 * steps) / (0.1 * steps)))
        values = _policy_metrics(rng, skill) if step else {}
        if step % max(1, steps // 8) == 0:
            ends.append({"validation/mean@4": skill, "validation/pass@4": min(1.0, skill + 0.18)})
            values |= ends[-1]
            groups += [_group(random.Random(1000 + i), skill, step, "validation") for i in range(prompts)]
        metrics.append({"stage": "policy", "step": step, "metrics": values})
        groups += [_group(rng, skill, step, "train") for _ in range(prompts if step else 0)]
    metrics.append({"stage": "evaluate", "step": 0, "metrics": {"validation/mean@2": 0.89}})
    write_lines(folder / "metrics.jsonl", metrics)
    write_lines(folder / "rollouts" / "policy.jsonl", groups)
    (folder / "recipe.toml").write_text(RECIPE)
    stages = [
        {"name": "sft", "type": "sft", "steps": 3 * steps, "seconds": 12.3, "before": {}, "after": {}},
        {"name": "policy", "type": "policy", "steps": steps, "seconds": 70, "before": ends[0], "after": ends[-1]},
        {"name": "evaluate", "type": "evaluate", "steps": 0, "seconds": 2.0, "after": {"validation/mean@2": 0.89}},
    ]
    summary = {"title": "arithmetic: a cold start, then RL", "state": "finished", "seconds": 96.4, "stages": stages}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def _policy_metrics(rng: random.Random, skill: float) -> dict[str, float]:
    return {
        "reward/mean": skill + rng.gauss(0, 0.03),
        "reward/rule": skill,
        "reward/judge": 0.5 + 0.4 * skill,
        "policy/entropy": 1.2 - skill,
        "time/generate": 0.9,
        "time/score": 0.1,
        "failures/judge/timeout": float(rng.random() < 0.2),
    }


def _group(rng: random.Random, skill: float, step: int, kind: str) -> dict[str, Any]:
    a, b = rng.randint(2, 60), rng.randint(2, 30)
    chat = [Message("system", "End with # and the result."), Message("user", f"{a} + {b} = ?")]
    luck = random.Random(1000 * a + 10 * b + step)
    rollouts, scores = [], []
    for _ in range(4):
        result = a + b if luck.random() < skill else a + b + 1
        rollouts.append(Rollout(f"{a} + {b} = {result}\n#{result}", [1, 2], [-0.1, -0.1]))
        rule, judge = Score(float(result == a + b)), Score(round(luck.uniform(0.4, 1.0), 2), feedback="easy to follow")
        if luck.random() < 0.06:
            failure = Failure("timeout", "no reply within 30 s", attempts=3)
            scores.append(Score(failure=failure, parts={"rule": rule, "judge": Score(failure=failure)}))
        else:
            value = 0.8 * (rule.value or 0.0) + 0.2 * (judge.value or 0.0)
            scores.append(Score(value, parts={"rule": rule, "judge": judge}))
    known = [score.value for score in scores if score.value is not None]
    dropped = "too_easy" if kind == "train" and known and min(known) > 0.8 else ""
    without = kind == "validation" or bool(dropped)
    advantages = [None if without or score.value is None else score.value - 0.5 for score in scores]
    prompt = Prompt(f"arith-{a}-{b}", chat, source="arithmetic", answer=str(a + b))
    return record(rollouts, scores, step, prompt, kind=kind, dropped=dropped, advantages=advantages)


# ---- rewards per token -----------------------------------------------------------------------------------------------


def by_letter(text: str) -> Rollout:
    """Return a rollout with a token for each character, and one that ends it."""
    return Rollout(text, [*map(ord, text), 0], ends=[*range(1, len(text) + 1), len(text)])


def dense(values: Sequence[float], support: Sequence[bool] | None = None) -> Score:
    """Return the score of a part with rewards per token; its value is their sum."""
    return Score(float(sum(values)), token_values=values, token_support=support)


def write_process_run(folder: Path, *, steps: int) -> Path:
    """Write a run whose policy has rewards by token and by step, which learn to find the wrong step."""
    rng = random.Random(0)
    metrics, groups = [], []
    for step in range(1, steps + 1):
        learned = {
            f"learned/{part}/{name}": value
            for part in ("process", "step")
            for name, value in {
                "accuracy_fresh": 0.6, "accuracy_after": 0.7, "steps/found": 0.5, "steps/chance": 0.3, "trust": 0.4,
                "loss": 0.6,
            }.items()
        }  # fmt: skip
        values = _policy_metrics(rng, 0.5) | learned | {"learned/grad_norm": 0.5 / step}
        metrics.append({"stage": "policy", "step": step, "metrics": values})
        rollouts = [by_letter("14 + 27 = 41\n#35"), by_letter("14 + 27 = 31\n#25")]
        tokens = [[rng.gauss(0, 1) for _ in rollout.tokens] for rollout in rollouts]
        ends = [[token in (10, 0) for token in rollout.tokens.tolist()] for rollout in rollouts]
        scores = [
            Score(1.0, parts={"process": dense(values), "step": dense(values, support)})
            for values, support in zip(tokens, ends, strict=True)
        ]
        groups.append(record(rollouts, scores, step))
    write_lines(folder / "metrics.jsonl", metrics)
    write_lines(folder / "rollouts" / "policy.jsonl", groups)
    (folder / "summary.json").write_text(json.dumps({"title": "process rewards", "state": "finished"}))
    return folder
