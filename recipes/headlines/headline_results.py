"""From the files of a run to a small summary, and from the summaries of several seeds to means with intervals."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headline_claims import Claim, Column, Difference, Panel, Reach

from rewardsmith.data.word_problems import chain_of, main_flaw, remarks
from rewardsmith.runs.trained_run import TrainedRun
from rewardsmith.storage import write_atomically

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5% points of Student's t for 1, 2, … degrees of freedom."""

PROCESS_VALUES = ("accuracy_fresh", "steps/found", "steps/chance", "steps/auc", "trust")
FINDINGS = ("false_positive", "unsound", "attack", "length_bias", "style_bias", "failed")
REPORTED = 10
"""Last steps whose mean reward is what training reports in the end."""

DIGITS = 6

Json = dict[str, Any]


# ---- one run -------------------------------------------------------------------------------------------------------


def summarise(run: TrainedRun) -> dict[str, Json]:
    """Return the values, and the curves of validations, of each stage that has finished."""
    rows: dict[str, list[Json]] = {}
    for row in run.metrics():
        rows.setdefault(row["stage"], []).append(row)
    evaluations, audits = run.evaluations(), _audits(run)
    found: dict[str, Json] = {}
    begun = 0.0
    for stage in run.recipe["stages"]:
        name, of_stage = stage["name"], rows.get(stage["name"], [])
        if stage["type"] == "policy" and of_stage and of_stage[-1]["step"] == stage["steps"]:
            curves = _curves(of_stage) | _reported(of_stage)
            found[name] = {"values": _of_training(of_stage, begun), "curves": curves}
        elif name in evaluations:
            found[name] = {"values": evaluations[name]["metrics"]}
            if stage["type"] == "evaluate":
                found[name]["values"] |= _of_answers(run, name)
        elif name in audits:
            found[name] = {"values": audits[name]}
        begun = of_stage[-1]["seconds"] if of_stage else begun
    return {name: _rounded(stage) for name, stage in found.items()}


def _audits(run: TrainedRun) -> dict[str, dict[str, float]]:
    """Return the findings of each audit that has one number for all prompts."""
    file = run.folder / "audit.json"
    audits = json.loads(file.read_text(encoding="utf-8"))["audits"] if file.exists() else {}
    return {
        stage: {one["name"]: one["value"] for one in audit["findings"] if one["name"] in FINDINGS}
        for stage, audit in audits.items()
    }


def _of_training(rows: Sequence[Json], begun: float) -> dict[str, float]:
    """Return means over the steps of a policy stage; of process rewards over the second half.

    `learning` is the mean of the validations after the first step: the area under the learning curve.
    """
    steps = [row for row in rows if row["step"] > 0]
    values = {"steps": float(len(steps)), "seconds": steps[-1]["seconds"] - begun}
    values |= _mean("failed", steps, lambda name: name == "reward/failed")
    values |= _mean("reward", steps[-REPORTED:], lambda name: name == "reward/mean")
    values |= _mean("learning", steps, lambda name: name == _mean_name(rows))
    for what in ("calls", "tokens", "prompt_tokens"):
        values |= _mean(f"judge/{what}", steps, lambda name, what=what: _is_of_model(name, what), add=True)
    for what in PROCESS_VALUES:
        values |= _mean(f"process/{what}", steps[len(steps) // 2 :], lambda name, what=what: _is_process(name, what))
    return values


def _is_of_model(name: str, what: str) -> bool:
    return name.startswith("models/") and name.split("/", 2)[-1] == what


def _is_process(name: str, what: str) -> bool:
    return name.startswith("learned/") and name.split("/", 2)[-1] == what


def _mean(key: str, rows: Sequence[Json], chosen: Any, *, add: bool = False) -> dict[str, float]:
    """Return the mean of a metric over the steps that have it; with `add` several metrics of a step are added."""
    found = [[value for name, value in row.items() if chosen(name) and value is not None] for row in rows]
    values = [math.fsum(some) if add else some[0] for some in found if some]
    return {key: math.fsum(values) / len(values)} if values else {}


def _curves(rows: Sequence[Json]) -> dict[str, list[float | None]]:
    """Return what was validated, by step; `accuracy` is the mean reward of the validation."""
    found = [row for row in rows if any(name.startswith("validation/") for name in row)]
    names = {
        "accuracy": _mean_name(found),
        **{what: f"validation/{what}" for what in ("verified", "unsound", "length")},
    }
    curves: dict[str, list[float | None]] = {"step": [row["step"] for row in found]}
    for what, name in names.items():
        if any(row.get(name) is not None for row in found):
            curves[what] = [row.get(name) for row in found]
    return curves


def _reported(rows: Sequence[Json]) -> dict[str, list[float | None]]:
    """Return the mean reward of the training steps from one validation to the next."""
    steps = [row["step"] for row in rows if any(name.startswith("validation/") for name in row)]
    means = []
    for before, step in zip([-1, *steps], steps, strict=False):
        some = [
            row["reward/mean"] for row in rows if before < row["step"] <= step and row.get("reward/mean") is not None
        ]
        means.append(math.fsum(some) / len(some) if some else None)
    return {"reward": means}


def _mean_name(rows: Sequence[Json]) -> str:
    names = (name for row in rows for name in row if name.startswith("validation/mean@"))
    return next(names, "validation/mean@1")


def _of_answers(run: TrainedRun, stage: str) -> dict[str, float]:
    """Return the share of right answers by their main flaw, and idle lines per answer; only of word problems."""
    kinds: Counter[str] = Counter()
    idle = total = 0
    for stored in run.groups(stage):
        assert stored.record is not None  # of a run
        group, scores = stored.record.scored.group, stored.record.scored.scores
        try:
            chain = chain_of(group.prompt)
        except ValueError:
            return {}
        for rollout, score in zip(group.rollouts, scores, strict=True):
            total += 1
            idle += remarks(rollout.text)
            if score.value == 1.0:
                kinds[main_flaw(chain, rollout.text) or ""] += 1
    right = max(1, kinds.total())
    shares = {f"flaw/{kind}": count / right for kind, count in sorted(kinds.items()) if kind}
    return shares | {"remarks": idle / max(1, total)}


def _rounded(stage: Json) -> Json:
    """Return a stage with fewer digits, so that its file is small."""

    def short(value: Any) -> Any:
        return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value

    rounded = {"values": {name: short(value) for name, value in sorted(stage["values"].items())}}
    if "curves" in stage:
        rounded["curves"] = {name: [short(value) for value in curve] for name, curve in stage["curves"].items()}
    return rounded


# ---- summaries -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seed:
    """What a claim has for one seed: the runs that made it, and the stages that they finished."""

    seed: int
    runs: Sequence[Json]  # of each: arms, device, seconds, versions, the model, settings that differ, why it failed
    stages: Mapping[str, Json]

    def value(self, stage: str, name: str) -> float | None:
        """Return a value of a stage."""
        value = self.stages.get(stage, {}).get("values", {}).get(name)
        return None if value is None else float(value)

    def curve(self, stage: str, name: str) -> tuple[list[int], list[float | None]] | None:
        """Return the steps and values of a curve."""
        curves = self.stages.get(stage, {}).get("curves", {})
        return (curves["step"], curves[name]) if name in curves else None

    @property
    def failed(self) -> str:
        """Why the last run did not finish; "" where it did."""
        return str(self.runs[-1].get("failed", ""))


def file_of(folder: Path, claim: str, seed: int) -> Path:
    """Return the file of a summary."""
    return folder / f"{claim}-{seed}.json"


def write(folder: Path, claim: str, seed: int, run: Json, stages: Mapping[str, Json]) -> None:
    """Write what a run has finished; what earlier runs of the seed have finished stays as it is.

    A run of the same arms that was stopped before is replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = file_of(folder, claim, seed)
    known = read_file(file) if file.exists() else Seed(seed, [], {})
    runs = [*(one for one in known.runs if one["arms"] != run["arms"]), run]
    table = {"claim": claim, "seed": seed, "runs": runs, "stages": {**stages, **known.stages}}
    write_atomically(file, json.dumps(table, indent=1) + "\n")


def read_file(file: Path) -> Seed:
    """Return a summary."""
    table = json.loads(file.read_text(encoding="utf-8"))
    return Seed(table["seed"], table["runs"], table["stages"])


def read(folder: Path, claim: str) -> list[Seed]:
    """Return the summaries of a claim by seed."""
    found = [read_file(file) for file in folder.glob(f"{claim}-*.json") if file.stem[len(claim) + 1 :].isdigit()]
    return sorted(found, key=lambda one: one.seed)


# ---- several seeds -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean:
    """A mean over the seeds that have a value; `half` is half of the 95% interval by Student's t, None for one seed."""

    value: float
    half: float | None
    seeds: int

    @property
    def differs(self) -> bool:
        """Whether the interval is on one side of 0."""
        return self.half is not None and abs(self.value) > self.half


def mean(values: Iterable[float | None]) -> Mean | None:
    """Return the mean of the seeds that have a value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    n = len(known)
    middle = math.fsum(known) / n
    if n == 1:
        return Mean(middle, None, 1)
    variance = math.fsum((value - middle) ** 2 for value in known) / (n - 1)
    return Mean(middle, T_975[min(n - 2, len(T_975) - 1)] * math.sqrt(variance / n), n)


def value_of(claim: Claim, arm: str, column: Column, one: Seed) -> float | None:
    """Return what a table has in a column for an arm, or for another stage, with one seed."""
    if isinstance(column, Reach):
        return steps_to_reach(claim, arm, column, one)
    stage, name = _stage_of(arm, column.key)
    if name.startswith("flaw/") and one.value(stage, "remarks") is not None:
        return one.value(stage, name) or 0.0  # flaws that no answer has are not in the file
    return one.value(stage, name)


def steps_to_reach(claim: Claim, arm: str, column: Column, one: Seed) -> float | None:
    """Return the first step at which an arm has the last value of the first arm; None if it never has."""
    first = curve_of(next(iter(claim.arms)), column.key, one)
    own = curve_of(arm, column.key, one)
    if first is None or own is None or first[1][-1] is None:
        return None
    goal = first[1][-1]
    return next((float(step) for step, value in zip(*own, strict=True) if value is not None and value >= goal), None)


def curve_of(arm: str, key: str, one: Seed) -> tuple[list[int], list[float | None]] | None:
    """Return a curve of an arm, such as `policy/accuracy`."""
    return one.curve(*_stage_of(arm, key))


def apart(claim: Claim, difference: Difference, seeds: Sequence[Seed]) -> list[float | None]:
    """Return how far an arm is above another one, for each seed; None for a seed that lacks one of them."""
    pairs = [
        [value_of(claim, arm, difference.column, one) for arm in (difference.arm, difference.other)] for one in seeds
    ]
    return [a - b if a is not None and b is not None else None for a, b in pairs]


def band(arm: str, panel: Panel, seeds: Sequence[Seed]) -> list[tuple[int, float, float, float]]:
    """Return (step, smallest, mean, largest) over the seeds, at the steps that all seeds have."""
    curves = [curve for one in seeds if (curve := curve_of(arm, panel.key, one)) is not None]
    by_step: dict[int, list[float]] = {}
    for steps, values in curves:
        for step, value in zip(steps, values, strict=True):
            if value is not None:
                by_step.setdefault(step, []).append(value)
    return [
        (step, min(some), math.fsum(some) / len(some), max(some))
        for step, some in sorted(by_step.items())
        if len(some) == len(curves)
    ]


def _stage_of(arm: str, key: str) -> tuple[str, str]:
    """Return the stage and the value that a key means for an arm; without a slash it is a value of the stage itself."""
    kind, _, name = key.partition("/")
    stages = {"policy": arm, "answers": f"{arm}_answers", "audit": f"audit_{arm}"}
    return (stages[kind], name) if kind in stages else (arm, key)
