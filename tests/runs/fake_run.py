"""A run folder as a real run would leave it, made up: three stages, curves, rollouts with parts and failures."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from rewardsmith import Failure, Message, Prompt, Rollout, RolloutGroup, Score, ScoredGroup
from rewardsmith.records import to_json

RECIPE = """\
# The quickstart: imitate sloppy arithmetic, then let a verifiable reward select what is right.
title = "arithmetic with shown steps"

[models.policy]
init = "tiny-llama"

[[stages]]
type = "policy"
steps = 40
loss = { type = "clip", low = 0.2, high = 0.28 }
"""

SYSTEM = "Solve the problem step by step. End with # and the result."


def write_fake_run(folder: Path, *, steps: int = 40, prompts: int = 6, rollouts: int = 4, seed: int = 0) -> Path:
    """Write a whole run into `folder` and return it."""
    rng = random.Random(seed)
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text(RECIPE)
    metrics = [
        {"stage": "sft", "step": i, "seconds": 0.1 * i, "metrics": _sft(rng, i)} for i in range(1, 3 * steps + 1)
    ]
    groups = []
    for step in range(steps + 1):
        skill = 0.25 + 0.68 / (1 + math.exp(-(step - 0.4 * steps) / (0.1 * steps)))
        values: dict[str, float] = policy_metrics(rng, skill, step) if step else {}
        if step % max(1, steps // 8) == 0:
            values |= {"validation/mean@4": skill + rng.gauss(0, 0.01), "validation/pass@4": min(1.0, skill + 0.18)}
            values |= {"validation/arithmetic/mean@4": skill - 0.05, "validation/response_length": 17.0 + skill}
            groups += [_group(random.Random(1000 + i), skill, step, "validation", rollouts) for i in range(prompts)]
        metrics.append({"stage": "policy", "step": step, "seconds": 1.7 * step, "metrics": values})
        if step:
            groups += [_group(rng, skill, step, "train", rollouts) for _ in range(prompts)]
    metrics.append({"stage": "evaluate", "step": 0, "seconds": 2.0, "metrics": {"validation/mean@2": 0.89}})
    write_lines(folder / "metrics.jsonl", metrics)
    write_lines(folder / "rollouts" / "policy.jsonl", groups)
    (folder / "summary.json").write_text(json.dumps(_summary(metrics, steps)))
    return folder


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def line(
    text: str, score: Score, *, step: int = 1, kind: str = "train", dropped: str = "", prompt: Prompt | None = None
) -> dict[str, Any]:
    """Return one line of a rollouts file, with one rollout."""
    group = RolloutGroup(prompt or Prompt("p", [Message("user", "1+1?")]), [Rollout(text)])
    scored = to_json(ScoredGroup(group, [score]))
    return {"step": step, "kind": kind, "dropped": dropped, "scored": scored, "advantages": [0.5]}


def policy_metrics(rng: random.Random, skill: float, step: int) -> dict[str, float]:
    noise = rng.gauss
    return {
        "reward/mean": skill + noise(0, 0.03),
        "reward/spread": 0.4 * (1.1 - skill) + noise(0, 0.01),
        "reward/rule": skill + noise(0, 0.03),
        "reward/judge": 0.5 + 0.4 * skill + noise(0, 0.02),
        "response/length": 14 + 5 * skill + noise(0, 0.3),
        "response/truncated": max(0.0, 0.1 - 0.1 * skill + noise(0, 0.01)),
        "policy/entropy": 1.2 - skill + noise(0, 0.02),
        "policy/kl": 0.02 * skill * (1 + abs(noise(0, 0.3))),
        "policy/clip_fraction": 0.05 + abs(noise(0, 0.02)),
        "optimizer/grad_norm": 0.6 + abs(noise(0, 0.3)),
        "optimizer/lr": 2e-4 * (1 - 0.7 * step / 40),
        "loss/policy": -0.01 * skill + noise(0, 0.004),
        "groups/too_easy": 10 * skill,
        "time/generate": 0.9 + abs(noise(0, 0.05)),
        "time/score": 0.1,
        "time/update": 0.6 + abs(noise(0, 0.05)),
        "failures/judge/timeout": float(rng.random() < 0.2),
        "failures/judge/unparsable": float(rng.random() < 0.1),
    }


def _sft(rng: random.Random, step: int) -> dict[str, float]:
    return {
        "loss/imitation": 0.4 + 2.6 * math.exp(-step / 25) + rng.gauss(0, 0.04),
        "optimizer/grad_norm": 1.0 + rng.random(),
    }


def _group(rng: random.Random, skill: float, step: int, kind: str, rollouts: int) -> dict[str, Any]:
    a, b, c = rng.randint(2, 60), rng.randint(2, 30), rng.randint(2, 9)
    chat = [Message("system", SYSTEM), Message("user", f"({a} + {b}) - {c} = ?")]
    prompt = Prompt(f"arith-{a}-{b}-{c}", chat, source="arithmetic", answer=str(a + b - c))
    luck = random.Random(hash((a, b, c, step)))
    pairs = [_answer(luck, skill, a, b, c) for _ in range(rollouts)]
    group = RolloutGroup(prompt, [rollout for rollout, _ in pairs], policy_version=step)
    scores = [score for _, score in pairs]
    known = [score.value for score in scores if score.value is not None]
    mean = sum(known) / len(known) if known else 0.0
    dropped = "too_easy" if kind == "train" and known and min(known) > 0.9 else ""
    advantages = [
        None if dropped or kind == "validation" or score.value is None else round(score.value - mean, 4)
        for score in scores
    ]
    scored = to_json(ScoredGroup(group, scores))
    return {"step": step, "kind": kind, "dropped": dropped, "scored": scored, "advantages": advantages}


def _answer(rng: random.Random, skill: float, a: int, b: int, c: int) -> tuple[Rollout, Score]:
    right = rng.random() < skill
    first = a + b if right or rng.random() < 0.5 else a + b + rng.choice([-10, 1, 10])
    last = first - c if right else first - c + rng.choice([-1, 1, 9])
    right = last == a + b - c
    text = f"{a} + {b} = {first}\n{first} - {c} = {last}\n#{last}"
    cut = not right and rng.random() < 0.2
    text = text[: len(text) // 2] if cut else text
    tokens = list(text.encode())
    rollout = Rollout(text, tokens, [-0.1] * len(tokens), "length" if cut else "stop")
    rule = Score(float(right))
    if rng.random() < 0.06:
        down = Failure("timeout", "the judge did not answer within 30 s", attempts=3)
        return rollout, Score(failure=down, parts={"rule": rule, "judge": Score(failure=down)})
    style = Score(round(rng.uniform(0.4, 1.0), 2), feedback="The steps are shown, and they are easy to follow.")
    value = 0.8 * (rule.value or 0.0) + 0.2 * (style.value or 0.0)
    return rollout, Score(value, parts={"rule": rule, "judge": style}, feedback=style.feedback)


def _summary(metrics: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    seen = [row["metrics"] for row in metrics if row["stage"] == "policy" and "validation/mean@4" in row["metrics"]]
    names = [name for name in seen[0] if name.startswith("validation/")]
    ends = [{name: row[name] for name in names} for row in (seen[0], seen[-1])]
    policy = {"name": "policy", "type": "policy", "steps": steps, "seconds": 70.1, "before": ends[0], "after": ends[1]}
    last = {"name": "evaluate", "type": "evaluate", "steps": 0, "seconds": 2.0, "before": {}}
    return {
        "title": "arithmetic with shown steps: cold start, RL with a rule and a judge, held-out evaluation",
        "state": "finished",
        "seconds": 96.4,
        "stages": [
            {"name": "sft", "type": "sft", "steps": 3 * steps, "seconds": 12.3, "before": {}, "after": {}},
            policy,
            last | {"after": {"validation/mean@2": 0.89}},
        ],
    }
