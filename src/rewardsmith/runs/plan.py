"""`rewardsmith plan`: memory of each device and seconds of each part of a step, for a cluster of a given size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from rewardsmith.console import Table
from rewardsmith.errors import UserError
from rewardsmith.jobs import Job, JobContext, Result
from rewardsmith.recipe import Recipe, load_recipe
from rewardsmith.runs.folder import RECIPE
from rewardsmith.runs.memory import ModelShapes, memory_problems, memory_report, recipe_memory
from rewardsmith.runs.plan_workload import LAPS, WorkloadBuilder, measured_figures, policy_stage
from rewardsmith.runs.step_time import GPUS, Speeds, StepTime, Workload, remedies, step_time
from rewardsmith.scale.scale_settings import ScaleSettings

MIN_GAIN = 0.02  # of a step, for a remedy to be listed


class PlanJob(Job):
    """Estimate memory and seconds per step of a recipe on a cluster, and what would make it faster.

    Nothing is loaded or started. Each assumption is printed, and has a flag; `--measured RUN` takes lengths, rates and
    latencies from a run of the same or a similar recipe.

    Example: `rewardsmith plan scale/rrm --gpus 64 --judges 8`
    """

    arguments: ClassVar[tuple[str, ...]] = ("recipe",)

    recipe: Path = Field(description="a TOML file, or the name of a shipped recipe")
    overrides: list[str] = Field(default=[], description="KEY.PATH=VALUE: settings to change")
    stage: str | None = Field(default=None, description="which policy stage; not set: the first")
    gpus: int | None = Field(default=None, ge=1, description="GPUs of the trainer; not set: those of [scale], or 1")
    nodes: int | None = Field(default=None, ge=1, description="machines that have them; not set: 8 GPUs in each")
    gpu: Literal["h200", "h100", "b200", "a100-80", "a100-40", "l40s", "rtx4090", "cpu"] = Field(
        default="h200", description="kind of device"
    )
    judges: int | None = Field(default=None, ge=1, description="servers of each judge, on GPUs of their own")
    measured: Path | None = Field(default=None, description="a run folder to take figures from, run on the same kind")
    measured_gpus: int = Field(default=1, ge=1, description="GPUs of the measured run")
    prompt_tokens: float | None = Field(default=None, gt=0, description="mean length of a prompt")
    answer_tokens: float | None = Field(default=None, gt=0, description="mean length of an answer")
    longest_tokens: float | None = Field(default=None, gt=0, description="length of the longest answer of a step")
    written: float | None = Field(default=None, ge=1, description="groups written for each that passes the selection")
    learned: float | None = Field(default=None, gt=0, le=1, description="share of the groups with an advantage")
    learn_mfu: float | None = Field(
        default=None, gt=0, le=1, description="share of the peak flops when learning; not set: by the size of the model"
    )
    prefill_mfu: float = Field(default=0.5, gt=0, le=1, description="share of the peak flops when reading")
    bandwidth_use: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="share of the memory bandwidth when writing; not set: 0.8, of a server 0.6",
    )
    network_use: float = Field(default=0.6, gt=0, le=1, description="share of links and network between GPUs")
    judge_size: float | None = Field(default=None, gt=0, description="billions of parameters of a served judge")
    judge_requests: float | None = Field(default=None, ge=0, description="requests to a judge for each answer")
    judge_prompt_tokens: float | None = Field(default=None, gt=0, description="mean length of a judge's prompt")
    judge_tokens: float | None = Field(default=None, ge=0, description="mean length of a judge's reply")
    judge_seconds: float | None = Field(default=None, gt=0, description="latency of a judge whose size is not known")
    cache_hits: float | None = Field(
        default=None, ge=0, le=1, description="share of the verdicts that are in the cache"
    )
    sync_seconds: float = Field(default=2.0, ge=0, description="of a weight transfer, apart from the bytes")
    other_seconds: float | None = Field(default=None, ge=0, description="of a step: collecting, logging, saving")

    async def run(self, context: JobContext) -> Result:
        """Estimate."""
        recipe = load_recipe(self.recipe, self.overrides)
        builder = WorkloadBuilder(recipe, self)
        factors = dict.fromkeys(LAPS.values(), 1.0)
        if self.measured is not None:
            builder, factors = self._calibrated(recipe, self.measured)
        load, speeds = builder.workload(), self.speeds()
        now = scaled(step_time(load, speeds), factors)
        changed = {name: scaled(step_time(other, speeds), factors) for name, other in remedies(load).items()}
        memory, problems = self._memory(recipe, load, builder.shapes)
        bottleneck = max(asdict(now), key=lambda part: asdict(now)[part])
        notes = [
            *([memory] if isinstance(memory, str) else []),
            *(f"warning: {problem}" for problem in problems),
            f"bottleneck: {bottleneck}, {asdict(now)[bottleneck] / now.total:.0%} of {_time(now.total)} per step",
        ]
        tables = [
            *([memory] if isinstance(memory, Table) else []),
            _step_table(now, _cluster_name(load, self.gpu)),
            _remedy_table(now, changed),
            builder.assumptions.table(),
        ]
        seconds = {f"seconds/{part}": value for part, value in asdict(now).items()}
        facts = {"bottleneck": bottleneck, "problems": problems, "gpus": load.gpus}
        return Result(seconds | {"seconds/total": now.total}, [t for t in tables if t.rows], notes, facts)

    def speeds(self) -> Speeds:
        """Return how fast the devices are."""
        uses = (self.prefill_mfu, self.bandwidth_use, self.network_use)
        if self.gpu == "cpu":
            overheads = dict.fromkeys(("row_overhead", "server_overhead", "judge_overhead"), 0.0)
            overheads |= {"layer_overhead": 1.5e-3, "pass_overhead": 5e-3}
            return Speeds(GPUS["cpu"], self.learn_mfu or 0.35, *uses, **overheads)
        return Speeds(GPUS[self.gpu], self.learn_mfu, *uses)

    def _calibrated(self, recipe: Recipe, run: Path) -> tuple[WorkloadBuilder, dict[str, float]]:
        """Return the workload with the lengths of a run, and by part how much longer it took than the model says."""
        if not (run / RECIPE).exists():
            raise UserError(f"--measured {str(run)!r}: there is no run in this folder")
        before = load_recipe(run / RECIPE)
        stage = policy_stage(before, self.stage)
        figures = measured_figures(run, stage.settings)
        # The run itself, on its own devices, with its own lengths.
        unset = {name: None for name, info in type(self).model_fields.items() if info.default is None}
        same = self.model_copy(update=unset | {"stage": self.stage, "gpus": self.measured_gpus})
        load = WorkloadBuilder(before, same, figures).workload()
        model = asdict(step_time(load, self.speeds()))
        factors = {
            part: figures[f"time/{lap}"] / model[part] if model[part] and figures.get(f"time/{lap}") else 1.0
            for lap, part in LAPS.items()
        }
        old: Any = stage.settings
        new: Any = policy_stage(recipe, self.stage).settings
        # Where answers ran into the limit, another limit makes others of them.
        longer = new.sampling.max_tokens / old.sampling.max_tokens
        if figures["response/longest"] >= old.sampling.max_tokens:
            figures["response/longest"] *= longer
            cut = figures.get("response/truncated", 0.0)
            figures["response/length"] *= 1 + cut * (longer - 1) if longer > 1 else longer
        return WorkloadBuilder(recipe, self, figures, source=f"measured in {run}"), factors

    def _memory(self, recipe: Recipe, load: Workload, shapes: ModelShapes) -> tuple[Table | str, list[str]]:
        each, scale = GPUS[self.gpu].memory, recipe.scale or ScaleSettings()
        if load.cluster:
            nodes = -(-load.gpus // load.gpus_per_node)
            scale = scale.model_copy(update={"nodes": nodes, "gpus_per_node": load.gpus // nodes})
            recipe = recipe.model_copy(update={"scale": scale})
        name = "each GPU" if load.cluster else "cpu" if self.gpu == "cpu" else "cuda:0"
        parts = recipe_memory(recipe, shapes, {} if name == "cpu" else {name: each}, cluster=load.cluster)
        refused, warned = memory_problems(parts, {name: each})
        return memory_report(parts, {name: each}), [*refused, *warned]


def scaled(step: StepTime, factors: Mapping[str, float]) -> StepTime:
    """Return a step whose parts take that many times longer."""
    return replace(step, **{part: getattr(step, part) * factor for part, factor in factors.items()})


# ---- for people ------------------------------------------------------------------------------------------------------


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:,.0f} s"


def _cluster_name(load: Workload, gpu: str) -> str:
    judges = sum(judge.servers * judge.gpus for judge in load.judges if not judge.shared)
    return f"{load.gpus} x {gpu}" + (f" and {judges} for judges" if judges else "")


def _step_table(now: StepTime, title: str) -> Table:
    rows: list[list[Any]] = [[part, _time(value), value / now.total] for part, value in asdict(now).items() if value]
    return Table(
        f"seconds per step, {title}",
        {"part": "text", "time": "text", "share": "share"},
        [*rows, ["total", _time(now.total), 1.0]],
        f"{3600 / now.total:,.0f} steps an hour",
    )


def _remedy_table(now: StepTime, changed: Mapping[str, StepTime]) -> Table:
    gains = {name: 1 - step.total / now.total for name, step in changed.items()}
    best = sorted((name for name in gains if gains[name] >= MIN_GAIN), key=lambda name: -gains[name])
    rows: list[list[Any]] = [[name, _time(changed[name].total), now.total / changed[name].total] for name in best]
    return Table("what would help", {"change": "text", "step": "text", "faster": "number"}, rows)
