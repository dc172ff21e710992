"""From a recipe, flags and a measured run to the workload of a step, with the assumptions that it rests on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from rewardsmith.config import Chosen
from rewardsmith.console import Table
from rewardsmith.engines.memory_estimate import MAX_ROWS, ModelShape, default_tokens, named_shape
from rewardsmith.engines.model_settings import ManagedSettings, ModelSettings, ServerSettings
from rewardsmith.errors import UserError, listing
from rewardsmith.recipe import Recipe
from rewardsmith.rewards.failures import choices_in
from rewardsmith.runs.folder import METRICS
from rewardsmith.runs.memory import ModelShapes, StageModels, stage_models
from rewardsmith.runs.step_time import BANDWIDTH_USE, JudgeLoad, LearningModel, Workload, mfu_of_size
from rewardsmith.scale.scale_settings import ScaleSettings
from rewardsmith.trainers.process.implicit_parts import process_parts, sampler_is_reference

if TYPE_CHECKING:
    from rewardsmith.runs.plan import PlanJob

TEMPLATE_TOKENS = 600  # of a judge's prompt, apart from question and answers
LAPS = {"write": "writing", "wait": "judging", "process": "process", "learn": "learning"}
"""Parts of a step, by the names that its clock has for them in metrics.jsonl."""


def policy_stage(recipe: Recipe, name: str | None) -> Chosen:
    """Return the stage of this name, or the first that trains a policy."""
    stages = {stage.settings.name: stage for stage in recipe.stages if stage.name == "policy"}  # type: ignore[attr-defined]
    if not stages:
        raise UserError("the recipe has no policy stage: only these are planned")
    if name is not None and name not in stages:
        raise UserError(f"--stage {name}: the recipe has no such policy stage. Known: {listing(stages)}")
    return stages[name] if name is not None else next(iter(stages.values()))


def measured_figures(run: Path, stage: Any) -> dict[str, float]:
    """Return the median of each metric over the steps of a stage, without the first, in which things are loaded.

    And what follows from them: the `written` and `learned` of a plan, and the length of a prompt.
    """
    lines = [json.loads(line) for line in (run / METRICS).read_text(encoding="utf-8").splitlines()]
    steps = [line["metrics"] for line in lines if line["stage"] == stage.name and line["step"] > 0]
    steps = [step for step in steps if step.get("tokens/learned")] or steps
    steps = steps[1:] or steps
    if not steps:
        raise UserError(f"--measured {str(run)!r}: the stage {stage.name!r} has no step yet")
    names = {name for step in steps for name, value in step.items() if value is not None}
    figures = {name: median(step.get(name) or 0.0 for step in steps) for name in names}
    answers = figures["tokens/sampled"] / figures["response/length"]
    figures["rule_seconds"] = figures.get("time/wait", 0.0) / answers  # where no judge is waited for
    figures["written"] = max(1.0, answers / (stage.prompts_per_step * stage.rollouts_per_prompt))
    if figures["groups/kept"]:
        figures["learned"] = min(1.0, figures["groups/kept"] / stage.prompts_per_step)
    return figures | _prompt_length(run / "rollouts" / f"{stage.name}.jsonl")


def _prompt_length(rollouts: Path, most: int = 100) -> dict[str, float]:
    """Return the mean tokens of a prompt, as many for a character as the answers have; none without rollouts."""
    if not rollouts.exists():
        return {}
    with rollouts.open(encoding="utf-8") as file:
        groups = [json.loads(line)["scored"]["group"] for line in islice(file, most)]
    answers = [answer for group in groups for answer in group["rollouts"]]
    tokens = sum(len(answer["tokens"]["int32"]) * 3 // 16 for answer in answers)  # in base 64, four bytes each
    written = sum(len(answer["text"]) + 1 for answer in answers)
    prompts = [sum(len(message["content"]) for message in group["prompt"]["messages"]) for group in groups]
    return {"prompt_tokens": tokens / written * fmean(prompts)} if written and groups else {}


@dataclass
class Assumptions:
    """The numbers of a plan that the recipe does not say, and where each comes from."""

    rows: list[list[Any]]

    def take(self, name: str, given: float | None, measured: float | None, default: float, source: str) -> float:
        """Return the given value, else the measured one, else the default; and note it."""
        value, why = (default, "assumed") if measured is None else (measured, source)
        if given is not None:
            value, why = given, "given"
        self.rows.append([name, f"{value:,.4g}", why, f"--{name.replace('_', '-')}"])
        return value

    def table(self) -> Table:
        """Return them."""
        columns = dict.fromkeys(("assumption", "value", "from", "flag"), "text")
        return Table("assumptions", columns, self.rows)  # type: ignore[arg-type]


class WorkloadBuilder:
    """Makes the workload of a step from a recipe, flags, and the figures of a measured run."""

    def __init__(
        self, recipe: Recipe, flags: PlanJob, figures: Mapping[str, float] | None = None, source: str = ""
    ) -> None:
        self._recipe, self._flags, self._figures, self._source = recipe, flags, figures or {}, source
        self._chosen = policy_stage(recipe, flags.stage)
        self._stage: Any = self._chosen.settings
        self._models: StageModels = stage_models(recipe, self._chosen)
        self.shapes = ModelShapes(recipe)
        self.assumptions = Assumptions([])

    def workload(self) -> Workload:
        """Return the workload."""
        stage, flags, figures, scale = self._stage, self._flags, self._figures, self._recipe.scale
        gpus = flags.gpus or (scale.nodes * scale.gpus_per_node if scale else 1)
        cluster = gpus > 1 or scale is not None
        scale = scale or ScaleSettings()
        limit, longest = float(stage.sampling.max_tokens), figures.get("response/longest")
        prompt = self._take(
            "prompt_tokens", figures.get("prompt_tokens"), float(min(stage.max_prompt_tokens or 256, 256))
        )
        answer = self._take("answer_tokens", figures.get("response/length"), limit / 2)
        policy = self._shape(stage.model)
        load = Workload(
            policy=policy,
            groups=stage.prompts_per_step,
            group_size=stage.rollouts_per_prompt,
            prompt_tokens=prompt,
            answer_tokens=answer,
            longest_tokens=max(answer, self._take("longest_tokens", longest, limit)),
            learning=tuple(self._learning(cluster=cluster)),
            written=self._take(
                "written", figures.get("written"), stage.select.oversample if stage.select.rounds > 1 else 1.0
            ),
            learned=self._take("learned", figures.get("learned"), 1.0),
            gpus=gpus,
            gpus_per_node=max(1, gpus // flags.nodes) if flags.nodes else min(8, gpus),
            cluster=cluster,
            tensor_parallel=scale.rollout.tensor_parallel if cluster else 1,
            max_rows=scale.rollout.max_sequences if cluster else self._rows(),
            memory_share=scale.rollout.memory_share,
            itemsize=4 if flags.gpu == "cpu" else 2,
            offload=scale.offload and cluster,
            ahead=getattr(stage, "ahead", 0),
            sync_seconds=flags.sync_seconds,
            other_seconds=self._take("other_seconds", _other(figures) if figures else None, 1.0 if cluster else 0.05),
        )
        judges = tuple(self._judges(load))
        size = 0.35 if flags.gpu == "cpu" else mfu_of_size(load.policy.parameters, cluster=cluster)
        self.assumptions.take("learn_mfu", flags.learn_mfu, None, size, "")
        self.assumptions.take(
            "bandwidth_use", flags.bandwidth_use, None, BANDWIDTH_USE["server" if cluster else "embedded"], ""
        )
        for name in ("prefill_mfu", "network_use", *["sync_seconds"] * cluster):
            given = getattr(flags, name) if name in flags.model_fields_set else None
            self.assumptions.take(name, given, None, getattr(flags, name), "")
        return replace(load, judges=judges, rule_seconds=0.0 if judges else figures.get("rule_seconds", 0.0))

    @property
    def _answers(self) -> int:
        return int(self._stage.prompts_per_step * self._stage.rollouts_per_prompt)

    def _take(self, name: str, measured: float | None, default: float) -> float:
        return self.assumptions.take(name, getattr(self._flags, name), measured, default, self._source)

    def _rows(self) -> int:
        kind = "cpu" if self._flags.gpu == "cpu" else "cuda"
        return self.shapes.settings(self._stage.model).rows or MAX_ROWS[kind]

    def _shape(self, name: str) -> ModelShape:
        shape = self.shapes[name]
        if shape is None:
            raise UserError(f"models.{name}: its files are not here, and its name says no size such as 4B")
        size = [f"size of {name}", f"{shape.parameters / 1e9:.2f}B", "its name", ""]
        if shape.guessed and size not in self.assumptions.rows:
            self.assumptions.rows.append(size)
        return shape

    def _learning(self, *, cluster: bool) -> list[LearningModel]:
        """Return the models that read the answers, with the number of passes over them."""
        stage, kind = self._stage, "cpu" if self._flags.gpu == "cpu" else "cuda"
        passes, updates = float(stage.ppo_epochs), stage.ppo_epochs * stage.mini_batches
        exact = kind == "cpu" and not stage.sampling.cuts  # the sampler's numbers are the learner's
        old = float(stage.importance is not None or (updates > 1 and not exact and stage.old_logprobs != "sampler"))
        work: list[tuple[str, str, float, float, int, bool]] = [("policy", stage.model, old, passes, updates, False)]
        if stage.critic is not None:
            work.append(("critic", stage.critic.model, 1.0, passes, updates, False))
        if stage.kl.coefficient:
            work.append(("reference", stage.kl.reference or stage.model, 1.0, 0.0, 0, False))
        for name, part in process_parts(self._chosen).items():
            of: Any = part.settings
            size = of.learn.mini_batch or self._answers
            trains, steps = of.learn.epochs if of.update != "none" else 0, -(-self._answers // size)
            # On a cluster a server samples, whose numbers differ by more than rounding.
            free = sampler_is_reference(of, stage.sampling, ahead=stage.ahead > 0) and not cluster
            reads = float(of.update != "after") + (not free)
            work.append((name, of.model, reads, float(trains), trains * steps, True))
        found = []
        for name, model, forwards, trainings, steps, process in work:
            settings = self.shapes.settings(model)
            shape = self._shape(model)
            tokens = settings.tokens_per_pass or default_tokens(kind, shape.hidden)
            found.append(
                LearningModel(name, shape, forwards, trainings, steps, settings.recomputes_all, tokens, process)
            )
        return found

    def _judges(self, load: Workload) -> list[JudgeLoad]:
        """Return what each judge of the reward is asked."""
        flags, figures, found = self._flags, self._figures, []
        for reward in choices_in(self._stage.reward):
            of: Any = reward.settings
            name = getattr(of, "model", None)
            if name not in self._models.judges:
                continue
            model: Any = self._recipe.models[name].settings
            calls = figures.get(f"models/{name}/calls", 0.0)
            usage = {key: figures.get(f"models/{name}/{key}", 0.0) / calls for key in _USAGE} if calls else {}
            each = getattr(of, "votes", 1) * {"ranking": 1 / load.group_size}.get(reward.name, 1.0)
            shown = load.answer_tokens * (load.group_size if reward.name in ("ranking", "pairwise") else 1)
            request = getattr(of, "request", None)
            asked = self._take("judge_requests", calls / load.answers if calls else None, each)
            prompt = load.prompt_tokens + shown + TEMPLATE_TOKENS * (request is not None)
            length = min(512.0, getattr(request, "max_tokens", 512)) if request is not None else 0.0
            shape, seconds = self._judge_shape(name, model), usage.get("seconds", 0.0)
            if shape is None and not seconds:
                seconds = self._take("judge_seconds", None, 5.0)
            own = isinstance(model, ServerSettings)
            if isinstance(model, ManagedSettings):  # on a cluster Ray reserves GPUs where `devices` names none
                trainer = range(load.gpus_per_node if load.cluster else 1)
                own = load.cluster if model.devices is None else not {*model.devices}.intersection(trainer)
            colocated = flags.judges is None and not own
            urls = len(model.urls) if isinstance(model, ServerSettings) else getattr(model, "replicas", 1)
            found.append(
                JudgeLoad(
                    name,
                    None if seconds and not flags.judge_size else shape,
                    asked * load.answers,
                    self._take("judge_prompt_tokens", usage.get("prompt_tokens") or None, prompt),
                    self._take("judge_tokens", usage.get("tokens") or None, length),
                    seconds,
                    servers=int(self.assumptions.take("judges", flags.judges, None, urls, "")),
                    gpus=getattr(model, "tensor_parallel_size", 1),
                    concurrency=getattr(model, "concurrency", None) or self._rows(),
                    cached=self._take("cache_hits", usage.get("cached"), 0.0),
                    shared=colocated,
                )
            )
            if colocated:
                self.assumptions.rows.append(["place of the judge", "GPUs of the policy", "the recipe", "--judges"])
        return found

    def _judge_shape(self, name: str, model: Any) -> ModelShape | None:
        """Return the shape of a judge: of its files, by a flag, or by the name that its server has for it."""
        if self._flags.judge_size is not None:
            return named_shape(f"{self._flags.judge_size}B")
        if isinstance(model, ModelSettings):
            return self.shapes[name]
        return named_shape(model.model) if getattr(model, "model", None) else None


_USAGE = ("cached", "prompt_tokens", "tokens", "seconds")


def _other(figures: Mapping[str, float]) -> float:
    """Return the measured seconds of the parts that are not modelled; validations are no part of a step."""
    laps = {name.removeprefix("time/"): value for name, value in figures.items() if name.startswith("time/")}
    return sum(value for lap, value in laps.items() if "/" not in lap and lap not in (*LAPS, "validate"))
