"""The gate before a policy stage, and the watch while it learns: is the reward still to be trusted?"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from rewardsmith.auditing.audit_measures import MAX_EXAMPLES, MAX_TEXT
from rewardsmith.auditing.audit_settings import StageAudit
from rewardsmith.auditing.exploit_features import Evidence, Exploit, features_of
from rewardsmith.auditing.findings import Example
from rewardsmith.auditing.watch_statistics import (
    Alarm,
    AlarmLimits,
    Baseline,
    FreshGroup,
    above_mean,
    alarms_of,
    baseline_of,
    exploits_of,
    has_spread,
    look_metrics,
)
from rewardsmith.config import as_json
from rewardsmith.console import count_of
from rewardsmith.data.rows import printable
from rewardsmith.engines.protocol import Engine
from rewardsmith.errors import UserError
from rewardsmith.rewards.base import Halt, parts_of
from rewardsmith.rewards.component import Component
from rewardsmith.rewards.compose import Sum
from rewardsmith.rewards.tree import check
from rewardsmith.trainers.evaluate.audit_reward import audit_reward
from rewardsmith.trainers.evaluate.scorer import Values, score_rollouts, values_of
from rewardsmith.trainers.trainer import Context, derive
from rewardsmith.types import Score, ScoredGroup

MAX_EMPTY = 3
"""Looks in a row without enough verdicts of the reference after which `on_alarm = "stop"` stops the run."""

MAX_DETAIL = 200


class RewardWatch:
    """Audits the reward of a policy stage before its first step, and compares it with a reference while it learns."""

    def __init__(self, stage: Any, context: Context, reward: Component, policy: Engine) -> None:
        audit: StageAudit = stage.audit
        self._stage, self._audit, self._context, self._reward, self._policy = stage, audit, context, reward, policy
        self._reference = None if audit.reference is None else context.reward(audit.reference)
        self._limits = AlarmLimits(audit.max_gap, audit.max_false_discovery)
        self._baseline: Baseline | None = None
        self._evidence: dict[str, Evidence] = {}
        self._alarms: list[dict[str, Any]] = []
        self._lowered = 1.0
        self._first_high = 1.0  # false-discovery rate of the first look of the run, at most
        self._empty = 0  # looks in a row without enough verdicts of the reference
        self._stopped = self._gate_again = False

    # ---- before the first step --------------------------------------------------------------------------------------

    async def gate(self) -> None:
        """Audit the reward if something is required of it; a `UserError` if that does not hold."""
        if self._reference is not None:
            await check(self._reference)
        audit, stage, context = self._audit, self._stage, self._context
        if not audit.require:
            return
        found = await audit_reward(audit, stage, context, self._policy)
        context.keep_audit("audits", found.as_json())
        problems = found.problems()
        for problem in problems:
            context.log(f"audit of the reward: {problem}")
        if problems and audit.on_fail == "stop":
            raise UserError(
                f"the reward of {stage.name} fails its audit, so this stage does not start: {'; '.join(problems)}."
                " audit.json in the run folder has the answers that decided. Fix the reward, change audit.require, or"
                ' set audit.on_fail = "warn", and run again with --accept-changes'
            )
        if not problems:
            context.log(f"audit of the reward: {count_of(len(audit.require), 'requirement')} hold")

    async def gate_again(self) -> None:
        """Audit the reward once more if it has changed since the checkpoint."""
        if self._gate_again:
            self._gate_again = False
            await self.gate()

    # ---- while the policy learns ------------------------------------------------------------------------------------

    def due(self, number: int) -> bool:
        """Whether to look after step `number`; the first look is at answers of the policy as it began."""
        every = self._audit.watches
        never_yet = self._baseline is None and not self._alarms
        return bool(every) and (never_yet or number % every == 0)

    def may_lower(self, number: int) -> bool:
        """Whether a weight of the reward may change after step `number`."""
        return bool(self._audit.lower) and self.due(number)

    async def look(
        self, number: int, sampled: Sequence[ScoredGroup], pause: Callable[[Component], None]
    ) -> tuple[dict[str, float], Halt | None]:
        """Return the metrics of a look at fresh answers, and why the run must stop, if it must."""
        assert self._reference is not None
        reference, chosen = self._reference, self._chosen(number, sampled)
        if self._baseline is None and not any(has_spread(values_of(one.scores)) for one in chosen):
            self._context.log(f"step {number}: rewards are equal within their groups: the watch begins later")
            return {}, None
        self._context.progress("comparing with the reference", 0, 0)
        found = await score_rollouts(reference, [one.group for one in chosen], pause=lambda: pause(reference))
        looked_at = [(scored, values_of(verdicts)) for scored, verdicts in zip(chosen, found, strict=True)]
        groups = [one for one in (self._fresh(*pair) for pair in looked_at) if len(one.texts)]
        total = sum(len(one.scores) for one in chosen)
        metrics = {"watch/unscored": 1 - sum(len(one.texts) for one in groups) / total if total else 1.0}
        if len(groups) < 2:
            return metrics, self._count_empty(number, found)
        self._empty, accepts = 0, self._audit.reference_threshold
        if self._baseline is None:
            first = baseline_of(groups, accepts)
            self._first_high = min(self._first_high, first.false_discovery_high)
            # With a lowered weight the reward is another one; the answers were spoiled by the former.
            self._baseline = replace(first, false_discovery_high=self._first_high)
        looked = look_metrics(groups, self._baseline, accepts)
        exploits, self._evidence = exploits_of(groups, self._baseline, self._evidence)
        looked["exploits"] = float(len(exploits))
        alarms = alarms_of(looked, exploits, self._baseline, self._limits, number)
        metrics |= {f"watch/{name}": value for name, value in looked.items()}
        metrics["watch/alarm"] = float(bool(alarms))
        halt = self._raise(alarms, self._examples(looked_at, exploits)) if alarms else None
        if self._audit.lower:
            metrics["watch/weight"] = self._lowered
        self._keep()
        return metrics, halt

    def _count_empty(self, number: int, verdicts: Sequence[Sequence[Score]]) -> Halt | None:
        """Log why the reference has scored too little; return why the run must stop after several looks like that."""
        failures = (score.failure for scores in verdicts for score in scores if score.failure is not None)
        first = next(failures, None)
        cause = "" if first is None else f": {first.kind}, {printable(first.detail, MAX_DETAIL)}"
        line = f"the reference of the watch has scored fewer than two groups{cause}"
        self._context.log(f"step {number}: {line}")
        self._empty += 1
        self._keep(problem=f"step {number}: {line}")
        if self._empty < MAX_EMPTY or self._audit.on_alarm != "stop":
            return None
        return Halt(
            f"the watch of {self._stage.name} stopped the run at step {number}: {line}, {self._empty} times in a row."
            ' Fix audit.reference, or set audit.on_alarm = "warn", and resume with --accept-changes'
        )

    def _chosen(self, number: int, sampled: Sequence[ScoredGroup]) -> list[ScoredGroup]:
        """Return whole groups, in a drawn order, of about as many answers as the watch samples."""
        order = random.Random(derive(self._context.seed, self._stage.name, "watch", number))
        shuffled = order.sample(list(sampled), len(sampled))
        count = max(2, -(-self._audit.sample // self._stage.rollouts_per_prompt))
        return shuffled[:count]

    def _raise(self, alarms: Sequence[Alarm], examples: list[Example]) -> Halt | None:
        for alarm in alarms:
            self._alarms.append({**asdict(alarm), "examples": [asdict(one) for one in examples]})
            self._context.log(f"ALARM at step {alarm.step}: {alarm.line}")
        if self._audit.on_alarm == "lower":
            self._lower(self._lowered * self._audit.factor)
            self._context.log(f"the weight of {self._audit.lower} is now {self._lowered:.3g} of what it was")
            self._baseline, self._evidence = None, {}  # the reward is another one: the next look is its first
        if self._audit.on_alarm != "stop":
            return None
        self._stopped = True
        return Halt(
            f"the watch of {self._stage.name} stopped the run at step {alarms[0].step}: {alarms[0].line}. A"
            " checkpoint is saved, and the report has the answers. Fix the reward, or set audit.on_alarm ="
            ' "warn" and resume with --accept-changes'
        )

    def _examples(self, looked_at: Sequence[tuple[ScoredGroup, Values]], exploits: Sequence[Exploit]) -> list[Example]:
        """Return rewarded answers that the reference rejects: first those with the exploited feature."""
        feature = exploits[0].feature if exploits and self._baseline else ""
        found: list[tuple[bool, Example]] = []
        for scored, verdicts in looked_at:
            rewards, rollouts = values_of(scored.scores), scored.group.rollouts
            both = np.flatnonzero(~np.isnan(rewards) & ~np.isnan(verdicts))
            for i in both[above_mean(rewards[both]) & (verdicts[both] < self._audit.reference_threshold)].tolist():
                text, expected = rollouts[i].text, f"the reference gives it {verdicts[i]:.3g}"
                median = self._baseline.median if self._baseline else 0.0
                has = feature in features_of(text, len(rollouts[i].tokens), median)
                shown = Example(scored.group.prompt.id, "fresh answer", text[:MAX_TEXT], float(rewards[i]), expected)
                found.append((has, shown))
        found.sort(key=lambda one: (not one[0], -(one[1].reward or 0.0)))
        return [shown for _, shown in found[:MAX_EXAMPLES]]

    def _lower(self, scale: float) -> None:
        assert isinstance(self._reward.reward, Sum)
        self._reward.reward.scale_weight(self._audit.lower, scale)
        self._lowered = scale

    def _keep(self, problem: str = "") -> None:
        reference = self._audit.reference
        about = {
            "reference": "" if reference is None else reference.name,
            "every": self._audit.watches,
            "on_alarm": self._audit.on_alarm,
            "alarms": self._alarms,
            "problem": problem,
        }
        self._context.keep_audit("watch", about)

    def _fresh(self, scored: ScoredGroup, reference: Values) -> FreshGroup:
        """Return the answers of a group that have both a reward and a verdict of the reference."""
        rewards = values_of(scored.scores)
        both = np.flatnonzero(~np.isnan(rewards) & ~np.isnan(reference)).tolist()
        rollouts = [scored.group.rollouts[i] for i in both]
        lengths = np.array([len(one.tokens) for one in rollouts], dtype=np.float64)
        scores = [scored.scores[i] for i in both]
        names = [name for name in parts_of(self._reward) if any(name in score.parts for score in scores)]
        parts = {name: values_of([score.parts[name] for score in scores]) for name in names}
        return FreshGroup([one.text for one in rollouts], lengths, rewards[both], reference[both], parts)

    # ---- state ------------------------------------------------------------------------------------------------------

    def _compared(self) -> dict[str, Any]:
        """Return what a gate and a first look hold for; a resumed run may have other settings."""
        audit = self._audit
        return {"reward": as_json(self._stage.reward), "reference": as_json(audit.reference), "require": audit.require}

    def state(self) -> dict[str, Any]:
        """Return the first look, the evidence, the alarms and the weight, as JSON values."""
        return {
            "settings": self._compared(),
            "baseline": None if self._baseline is None else self._baseline.as_json(),
            "evidence": {feature: list(one) for feature, one in self._evidence.items()},
            "alarms": list(self._alarms),
            "lowered": self._lowered,
            "first_high": self._first_high,
            "empty": self._empty,
            "stopped": self._stopped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned; with another reward the gate and the first look come again."""
        same = state["settings"] == self._compared()
        self._alarms = list(state["alarms"])
        if same and state["stopped"] and self._audit.on_alarm == "stop":
            raise UserError(
                f"the watch stopped this run: {self._alarms[-1]['line']}. Fix the reward, or set audit.on_alarm ="
                ' "warn", and resume with --accept-changes'
            )
        if same:
            self._baseline = None if state["baseline"] is None else Baseline.from_json(state["baseline"])
            self._evidence = {feature: Evidence(*one) for feature, one in state["evidence"].items()}
            self._first_high, self._empty = state["first_high"], state["empty"]
        else:
            self._context.log(f"{self._stage.name}: reward or reference have changed: the audit begins again")
            self._gate_again = True
        if self._audit.lower:
            self._lower(state["lowered"])
        if self._audit.watches:
            self._keep()
