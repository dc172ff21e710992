"""`audit`, a stage and a command: can a reward be trusted? A gate of a policy stage runs the same audit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from rewardsmith.auditing.audit_settings import ProbeSettings
from rewardsmith.auditing.findings import Audit, Finding
from rewardsmith.console import Cell, Columns, Table, count_of
from rewardsmith.engines.protocol import Engine, Sampling
from rewardsmith.errors import UserError
from rewardsmith.jobs import Job, JobContext, Result
from rewardsmith.trainers.evaluate.auditor import Auditor
from rewardsmith.trainers.settings import DataName, OptionalModelName, RewardChoice
from rewardsmith.trainers.trainer import derive, held_out
from rewardsmith.types import Prompt, RolloutGroup


class AuditReward(Job, ProbeSettings):
    """Audit a reward: known answers, attacks, biases, what there is to learn from it, and what it costs.

    Nothing is trained. The reward scores right and wrong answers to prompts of the data, answers that try to deceive
    it, edits that should change nothing, and answers that a model writes. Each finding has a 95% interval, and the
    answers that decided it.

    The reward of a recipe, on its own data: `rewardsmith audit quickstart:policy`

    That of a run, with its trained judge and policy: `rewardsmith audit runs/rrm:policy`

    End with status 1 if the reward is not good enough:
    `rewardsmith audit judge.toml --data questions.jsonl --require.attack 0 --require.false_positive 0.02`
    """

    name: str = Field(default="audit", min_length=1, description="name of this stage in the run's files")
    reward: RewardChoice = Field(description="the reward to audit")
    data: DataName = Field(default="", description="where prompts and true answers come from")
    model: OptionalModelName = Field(default=None, description="model that writes answers; not set: none are written")
    sampling: Sampling = Field(default=Sampling(), description="how it writes them")
    rollouts_per_prompt: int = Field(default=8, ge=2, description="answers in a group, as in training")
    prompts_per_step: int = Field(default=32, ge=1, description="groups of a training step, for the cost of one")
    concurrency: int = Field(default=256, ge=1, description="groups that are scored at a time")

    async def run(self, context: JobContext) -> Result:
        """Audit the reward."""
        everything: Any = context
        engine: Engine | None = None
        if self.model is not None:
            engine = everything.engine(self.model)
            engine.require_chat_template()
        audit = await audit_reward(self, self, everything, engine, concurrency=self.concurrency)
        return audit_result(audit)


async def audit_reward(
    settings: ProbeSettings, stage: Any, context: Any, engine: Engine | None, *, concurrency: int = 256
) -> Audit:
    """Return the audit of the reward of a stage on prompts of its data, and on answers that a model writes to them.

    `stage` has reward, data, sampling and the size of groups and steps: a policy stage, or the job itself.
    """
    source, n = context.source(stage.data), stage.rollouts_per_prompt
    prompts = held_out(source.prompts, max(settings.prompts, settings.samples), stage.data)
    samples: list[RolloutGroup] = []
    if engine is not None and settings.samples:
        samples = await write_samples(engine, prompts[: settings.samples], stage.sampling, context, n=n)
    auditor = Auditor(settings, stage.reward, context, size=n, concurrency=concurrency)
    audit = await auditor.run(prompts[: settings.prompts], source, samples, stage.prompts_per_step * n)
    if settings.reference is None or samples:
        return audit
    why = "no model writes answers; set model" if engine is None else "samples = 0, so no answers are written; raise it"
    return replace(audit, notes=[*audit.notes, f"the reference was not used: {why}"])


async def write_samples(
    engine: Engine, prompts: Sequence[Prompt], sampling: Sampling, context: Any, *, n: int
) -> list[RolloutGroup]:
    """Return groups of n answers that a model writes to the prompts; those that are too long are left out."""
    room = engine.max_length - sampling.max_tokens
    fitting = [prompt for prompt in prompts if len(engine.encode(prompt)) <= room]
    if not fitting:
        raise UserError(f"no prompt leaves room for sampling.max_tokens = {sampling.max_tokens}: lower it")
    groups: dict[int, RolloutGroup] = {}

    def tick(answers: int, tokens: int) -> None:
        context.progress("writing answers to audit", answers, len(fitting) * n, unit="answers", tokens=tokens)
        context.pause()

    seeds = [derive(context.seed, "audit", prompt.id) for prompt in fitting]
    async with context.on_device(engine.name):
        async for number, group in engine.generate(fitting, sampling, n=n, seeds=seeds, tick=tick):
            groups[number] = group
    return [groups[i] for i in sorted(groups)]


# ---- the result -----------------------------------------------------------------------------------------------------

FAMILY = "attack/"
"""How the measures of the families of attacks begin."""

TOPICS = {
    "truth": "right and wrong answers",
    "attack": "attacks",
    "bias": "biases",
    "learning": "what there is to learn",
    "cost": "cost of a step",
}


def audit_result(audit: Audit) -> Result:
    """Return an audit as the result of a job: metrics, tables, and the examples that decided."""
    tables = [*(_findings_table(audit, topic, title) for topic, title in TOPICS.items()), _examples_table(audit)]
    metrics = {one.name: one.value for one in audit.findings if math.isfinite(one.value)}
    problems = audit.problems()
    verdict = [_passed(len(audit.require))] if audit.require and not problems else []
    facts = {"kind": "audit", "audit": audit.as_json()}
    notes = [*audit.notes, *(f"FAILED: {problem}" for problem in problems), *verdict]
    problem = f"the reward fails its audit: {'; '.join(problems)}" if problems else ""
    return Result(metrics, [table for table in tables if table.rows], notes, facts, problem=problem)


def _passed(count: int) -> str:
    return f"passed: {'the requirement holds' if count == 1 else f'all {count} requirements hold'}"


SIGNS = {"at_least": "≥", "at_most": "≤", "within": "±"}


def _findings_table(audit: Audit, topic: str, title: str) -> Table:
    """Return the findings of a topic; families of attacks that all fail share the last row."""
    columns: Columns = {
        "measure": "text", "value": "number", "95% from": "number", "to": "number", "of": "count", "limit": "text",
        "finding": "text",
    }  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    harmless: list[Finding] = []
    for one in audit.findings:
        if one.topic != topic:
            continue
        if one.name.startswith(FAMILY) and not one.value and one.limit is None:
            harmless.append(one)
            continue
        held = "" if one.passed is None else f"{SIGNS[one.direction]} {one.limit:g} {'ok' if one.passed else 'FAILED'}"
        rows.append((one.name, one.value, one.low, one.high, one.count, held, one.line))
    if harmless:
        count = sum(one.count for one in harmless)
        names = ", ".join(one.name.removeprefix(FAMILY) for one in harmless)
        line = f"none of {count_of(count, 'attack')} of {names} is paid for"
        rows.append(("attack/…", 0.0, None, None, count, "", line))
    return Table(title, columns, rows)


def _examples_table(audit: Audit) -> Table:
    """Return one example of each truth or attack finding that is not 0; the prompts are in the facts."""
    columns: Columns = {"measure": "text", "answer": "text", "reward": "number", "text": "text"}
    rows = [
        (one.name, shown.probe, shown.reward, shown.text)
        for one in audit.findings
        if one.value and one.name not in ("attack", "attack_mean")
        for shown in one.examples[:1]
    ]
    return Table("answers that decided", columns, rows)
