"""What it costs to score the answers of one step: calls, tokens, money, time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rewardsmith.auditing.findings import Finding
from rewardsmith.llm import Usage
from rewardsmith.rewards.measure import quantiles
from rewardsmith.types import RolloutGroup


def cost_findings(
    used: Usage, seconds: float, latency: Sequence[float], samples: Sequence[RolloutGroup], step_rollouts: int
) -> list[Finding]:
    """Return what the answers of one step of the recipe would cost, by those that were scored.

    `seconds` is the time in which all were scored, `latency` that of each group.
    """
    rollouts = sum(len(group.rollouts) for group in samples)
    if not rollouts:
        return []
    found: list[Finding] = []

    def add(name: str, value: float, line: str) -> None:
        found.append(Finding(name, "cost", value, math.nan, math.nan, rollouts, line))

    scale, requests = step_rollouts / rollouts, used.calls + used.cached
    if requests:
        each = (used.prompt_tokens + used.tokens) / used.calls if used.calls else 0.0
        calls = requests * scale
        add("calls_per_step", calls, f"{calls:,.0f} calls of models for a step of {step_rollouts:,} answers")
        if each:
            add("tokens_per_step", each * calls, f"{each * calls:,.0f} tokens of prompts and replies per step")
        if used.cost:
            cost = used.cost / used.calls * calls
            add("cost_per_step", cost, f"{cost:.3g} in money per step, by the prices of the models")
    each_step = seconds * max(1.0, scale)  # fewer groups than were scored at a time are not faster
    add("seconds_per_step", each_step, f"scoring a step takes {each_step:.3g} s, {len(samples)} groups at a time")
    if latency:
        slowest = quantiles(latency)["p99"]
        add("latency_p99", slowest, f"99% of the groups are scored within {slowest:.3g} s")
    return found
