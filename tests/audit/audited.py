"""Audits of rewards in this process, as the command runs them, on rows with known answers."""

import random
from typing import Any

import rewardsmith as rs
from rewardsmith.data import SOURCE
from rewardsmith.runs.background_loop import call_without_loop
from rewardsmith.runs.commands import CommandInputs, CommandOptions, CommandRun, validated
from rewardsmith.trainers.evaluate.audit_reward import AuditReward


def audited(reward: Any, data: Any, models: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """Return the content of `audit.json` for a reward, and under `problem` why its requirements fail."""
    loaded = rs.reward(reward, models)
    inputs = CommandInputs(given=loaded.models)
    inputs.take(loaded.found)
    inputs.data["data"] = SOURCE.choose(data)
    job = validated(AuditReward, {"reward": loaded.found.reward, "data": "data", **settings})
    result = call_without_loop(lambda stop: CommandRun(job, inputs, CommandOptions(), stop).result())
    found: dict[str, Any] = result.facts["audit"]
    return {**found, "problem": result.problem}


def by_name(audit: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the findings by their names."""
    return {one["name"]: one for one in audit["findings"]}


def sums(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return problems with a worked solution; no two have the same answer."""
    rng = random.Random(seed)
    rows = []
    for i, total in enumerate(rng.sample(range(200, 900), count)):
        a = rng.randrange(101, total - 20)
        text = f"First I read both numbers.\nThen I add them: {a} + {total - a} = {total}.\nSo it is \\boxed{{{total}}}"
        question = f"What is {a} + {total - a}?"
        truth = {"ground_truth": str(total)}
        rows.append({"id": f"sum-{i}", "prompt": question, "response": text, "reward_model": truth})
    return rows
