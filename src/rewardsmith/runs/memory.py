"""The memory that a recipe needs on each device, before anything is loaded: a table, a warning or a refusal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rewardsmith.config import Chosen
from rewardsmith.console import Table
from rewardsmith.engines.memory_estimate import (
    GIB,
    MAX_ROWS,
    RECOMPUTE_SHARE,
    ModelShape,
    activation_bytes,
    default_tokens,
    gradient_bytes,
    kv_cache_bytes,
    kv_token_bytes,
    model_shape,
    optimizer_bytes,
    recomputed_layers,
    weight_bytes,
    writing_bytes,
)
from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.errors import UserError
from rewardsmith.learning import OptimizerSettings
from rewardsmith.recipe import Recipe
from rewardsmith.rewards.failures import choices_in
from rewardsmith.runs.preflight import copies_of
from rewardsmith.scale.scale_settings import TOKENS_PER_PASS, ScaleSettings
from rewardsmith.trainers.process.implicit_parts import process_parts

PROMPT_TOKENS = 512  # where a recipe sets no limit
KV_SHARE = 0.85  # of the free memory, at most
SMALL = 0.1  # of the device, below which one line is enough


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes on a device during a part of a stage."""

    device: str
    part: str  # such as `policy: learning`
    weights: float = 0.0
    optimizer: float = 0.0  # and gradients, while they are there
    cache: float = 0.0
    activations: float = 0.0
    recomputed: int = 0  # layers that a pass recomputes to fit
    rows: int = 0  # answers of full length that are written at a time
    wanted: int = 0  # answers that would be, with more memory

    @property
    def fixed(self) -> float:
        """What no smaller batch makes smaller."""
        return self.weights + self.optimizer

    @property
    def total(self) -> float:
        """All of it."""
        return self.fixed + self.cache + self.activations


@dataclass(frozen=True)
class StageModels:
    """What a stage does with the models of its recipe."""

    name: str
    writer: str = ""
    learners: Mapping[str, OptimizerSettings] = field(default_factory=dict)  # with the settings of their optimizers
    process: frozenset[str] = frozenset()  # those that learn apart from the policy
    frozen: frozenset[str] = frozenset()  # references that are models of the recipe
    copies: tuple[str, ...] = ()  # models of which a copy is kept as a reference
    judges: frozenset[str] = frozenset()
    prompt_tokens: int = PROMPT_TOKENS
    max_tokens: int = 0  # of an answer
    groups: int = 1
    group_size: int = 1

    @property
    def used(self) -> set[str]:
        """All models of the stage."""
        return {self.writer, *self.learners, *self.frozen, *self.judges} - {""}


def stage_models(recipe: Recipe, stage: Chosen) -> StageModels:
    """Return which models of a recipe write, learn, judge and stay as they are in a stage."""
    of: Any = stage.settings
    adapted = {name for name, model in recipe.models.items() if getattr(model.settings, "lora", None) is not None}
    learners, frozen, copies, process = dict[str, OptimizerSettings](), set[str](), list[str](), set[str]()
    sampling, model = getattr(of, "sampling", None), getattr(of, "model", None)  # a stage may do without a model
    if getattr(of, "optimizer", None) is not None:
        learners[of.model] = of.optimizer
    if getattr(of, "critic", None) is not None:
        learners[of.critic.model] = of.critic.optimizer
    if getattr(of, "kl", None) is not None and of.kl.coefficient:
        frozen |= {of.kl.reference} - {None}
        copies += [of.model] if of.kl.reference is None and of.model not in adapted else []
    for part in process_parts(stage).values():
        prm: Any = part.settings
        process |= {prm.model}
        frozen |= {prm.reference_model} - {None}
        if prm.update != "none":
            learners[prm.model] = prm.learn.optimizer
        if prm.reference == "start" and prm.reference_model is None and prm.model not in adapted:
            copies.append(prm.model)
    chosen = choices_in(getattr(of, "reward", None))
    judges = {str(name) for one in chosen if (name := getattr(one.settings, "model", None)) in recipe.models}
    return StageModels(
        of.name,
        writer=(model or "") if sampling is not None else "",
        learners=learners,
        process=frozenset(process),
        frozen=frozenset(frozen | ({model} if model is not None and not learners else set())),
        copies=tuple(copies),
        judges=frozenset(judges - set(learners) - process),
        prompt_tokens=getattr(of, "max_prompt_tokens", None) or PROMPT_TOKENS,
        max_tokens=sampling.max_tokens if sampling is not None else 0,
        groups=_count(getattr(of, "prompts_per_step", None) or getattr(of, "prompts", None)),
        group_size=getattr(of, "rollouts_per_prompt", 1),
    )


def _count(number: Any) -> int:
    return number if isinstance(number, int) else 128


class ModelShapes:
    """The shapes of the models in this process; a model that is not known has none."""

    def __init__(self, recipe: Recipe) -> None:
        self._models = recipe.models
        self._found: dict[str, ModelShape | None] = {}

    def settings(self, name: str) -> ModelSettings:
        """Return the table of a model, with the device and dtype of what it is a copy of where it has none."""
        tables: list[Any] = [self._models[one].settings for one in copies_of(self._models, name)]
        first = {key: next((v for one in tables if (v := getattr(one, key)) != "auto"), "auto") for key in _INHERITED}
        settings: ModelSettings = tables[0].model_copy(update=first)
        return settings

    def __getitem__(self, name: str) -> ModelShape | None:
        if not isinstance(self._models[name].settings, ModelSettings):
            return None
        if name not in self._found:
            origin: Any = self._models[copies_of(self._models, name)[-1]].settings
            self._found[name] = model_shape(self.settings(name), origin.init)
        return self._found[name]


_INHERITED = ("device", "dtype")


def recipe_memory(
    recipe: Recipe, shapes: ModelShapes, gpus: Mapping[str, float] = {}, *, cluster: bool = False
) -> list[DeviceMemory]:
    """Return the parts of each device that need most: one for writing and one for learning, over all stages.

    `gpus` are the bytes that each GPU has, `cuda:0` and so on; empty: a CPU does all. With `cluster` the recipe runs on
    its `[scale]`, and the one device is any of its GPUs, of which `gpus` has one.
    """
    found: dict[tuple[str, str], DeviceMemory] = {}
    opened: set[str] = set()  # models stay loaded until the end of a run
    for chosen in recipe.stages:
        stage = stage_models(recipe, chosen)
        opened |= stage.used
        known = {name: shape for name in opened if (shape := shapes[name]) is not None}
        if cluster:
            parts = _cluster_parts(stage, known, shapes, recipe.scale or ScaleSettings(), gpus)
        else:
            parts = _parts(stage, known, shapes, gpus)
        for part in parts:
            key = part.device, part.part
            if key not in found or part.total > found[key].total:
                found[key] = replace(part, part=f"{stage.name}: {part.part}")
    return sorted(found.values(), key=lambda part: (part.device, -part.total))


def _parts(
    stage: StageModels, known: Mapping[str, ModelShape], shapes: ModelShapes, gpus: Mapping[str, float]
) -> Iterator[DeviceMemory]:
    """Yield what each part of a stage needs on each device of this machine."""
    places = {name: _device(shapes.settings(name).device, gpus) for name in known}
    for device in sorted(set(places.values())):
        kind = device.partition(":")[0]
        here = {name: known[name] for name in known if places[name] == device}
        sizes = {name: _itemsize(shapes.settings(name), kind) for name in here}
        resting = {name for name in here if shapes.settings(name).offload}
        learning = {name for name in stage.learners if name in here}
        apart = stage.process | (stage.frozen - {stage.writer} if stage.process else frozenset())
        for part, active in (
            ("writing", {stage.writer} | (stage.judges - resting)),
            ("judging", set(stage.judges & resting)),
            ("learning", ({stage.writer, *learning} | stage.frozen) - apart),
            ("process rewards", set(apart)),
        ):
            writers = [name for name in active & set(here) if name == stage.writer or name in stage.judges]
            writing = part in ("writing", "judging")
            if not active & set(here) or (writing and not writers):
                continue
            awake = (set(here) - resting) | (active & set(here))
            weights = sum(weight_bytes(here[name], sizes[name]) for name in awake)
            weights += sum(weight_bytes(here[name], sizes[name]) for name in stage.copies if name in here)
            optimizer = sum(_states(here[name], sizes[name], stage.learners[name]) for name in learning & awake)
            needs = DeviceMemory(device, part, weights, optimizer)
            if writing:
                for name in writers:
                    settings, free = shapes.settings(name), gpus.get(device, 0.0) - needs.fixed
                    mine = _writing(needs, here[name], sizes[name], stage, settings, free)
                    needs = replace(mine, cache=needs.cache + mine.cache)
                yield needs
                continue
            passes = [
                _learning(
                    replace(needs, optimizer=optimizer + gradient_bytes(here[name])),
                    here[name], sizes[name], stage, shapes.settings(name), gpus.get(device, 0.0),
                )
                for name in learning & active
            ]  # fmt: skip
            yield from sorted(passes, key=lambda one: one.total)[-1:]


def _states(shape: ModelShape, itemsize: int, optimizer: OptimizerSettings) -> float:
    """Return the bytes of optimizer states on the device; 0 where they are in host memory."""
    return 0.0 if optimizer.offload else optimizer_bytes(shape, itemsize, states=optimizer.states)


def _writing(
    needs: DeviceMemory, shape: ModelShape, itemsize: int, stage: StageModels, settings: ModelSettings, free: float
) -> DeviceMemory:
    """Add KV cache and what else writing needs: on a GPU as many rows as fit, at least one, and the others wait."""
    kind = needs.device.partition(":")[0]
    prompt = min(stage.prompt_tokens, max(1, shape.max_length - stage.max_tokens))
    length = prompt + stage.max_tokens
    rows = wanted = min(settings.rows or MAX_ROWS[kind], stage.groups * stage.group_size)
    if kind == "cuda" and free > 0:
        rows = max(1, min(rows, int(KV_SHARE * free / (kv_token_bytes(shape, itemsize) * length))))
    prompts = -(-rows // stage.group_size)
    answers: dict[str, Any] = {"rows": rows, "prompts": prompts, "kind": kind}
    cache = kv_cache_bytes(shape, itemsize, prompt=prompt, answer=stage.max_tokens, **answers)
    more = writing_bytes(shape, itemsize, prompt_tokens=prompt, answer_tokens=stage.max_tokens, **answers)
    return replace(needs, cache=cache, activations=max(needs.activations, more), rows=rows, wanted=wanted)


def _learning(
    needs: DeviceMemory, shape: ModelShape, itemsize: int, stage: StageModels, settings: ModelSettings, has: float
) -> DeviceMemory:
    """Add the activations of one full pass; the prompt of a group is in it once, and attention repeats it."""
    kind = needs.device.partition(":")[0]
    a_pass: dict[str, Any] = {"tokens": settings.tokens_per_pass or default_tokens(kind, shape.hidden), "kind": kind}
    if stage.writer:
        longest, shared = (
            stage.prompt_tokens + stage.max_tokens,
            stage.prompt_tokens / stage.group_size + stage.max_tokens,
        )
        tokens = min(a_pass["tokens"], int(stage.groups * stage.group_size * shared))
        a_pass |= {"tokens": tokens, "responses": int(tokens * stage.max_tokens / shared), "spread": longest / shared}
        if longest > tokens:  # a row that is longer than a pass is alone in it
            a_pass |= {"tokens": longest, "responses": stage.max_tokens, "spread": 1.0}
    recomputed = shape.layers if settings.recomputes_all else 0
    if settings.recompute == "auto" and kind == "cuda" and has:
        recomputed = recomputed_layers(shape, itemsize, RECOMPUTE_SHARE * (has - needs.fixed), **a_pass)
    a_pass |= {"recomputed": recomputed, "offload": settings.recompute == "offload"}
    return replace(needs, activations=activation_bytes(shape, itemsize, **a_pass), recomputed=recomputed)


def _cluster_parts(
    stage: StageModels,
    known: Mapping[str, ModelShape],
    shapes: ModelShapes,
    scale: ScaleSettings,
    gpus: Mapping[str, float],
) -> Iterator[DeviceMemory]:
    """Yield what each part of a stage needs on every GPU of a cluster.

    A shard is float32: 4 P / W bytes of weights on each of W GPUs, 4 of gradients and 8 of moments; one layer and the
    embeddings at a time are whole, in two bytes. Servers take their share of the memory while they write.
    """
    world = scale.nodes * scale.gpus_per_node
    device, has = next(iter(gpus.items()), ("gpu", 0.0))
    shards = sum(4 * shape.parameters / world for shape in known.values())
    shards += sum(4 * known[name].parameters / world for name in stage.copies if name in known)
    learners = [name for name in stage.learners if name in known]
    moments = sum(8 * known[name].trained / world for name in learners)
    if stage.writer in known:
        held = 0.0 if scale.offload else shards
        weights = 2 * known[stage.writer].parameters / scale.rollout.tensor_parallel
        cache = max(0.0, scale.rollout.memory_share * has - weights)
        yield DeviceMemory(device, "writing", held + weights, 0.0 if scale.offload else moments, cache)
    for name in learners:
        shape, settings = known[name], shapes.settings(name)
        whole = 2 * (2 * shape.parameters / shape.layers + shape.vocabulary * shape.hidden)
        tokens = (settings.tokens_per_pass or TOKENS_PER_PASS) // scale.sequence_parallel
        recomputed = shape.layers if settings.recomputes_all else 0
        kept = activation_bytes(shape, 2, tokens=tokens, recomputed=recomputed)
        if scale.sequence_parallel > 1 and not shape.scalar:
            # verl's own head keeps the logits of all tokens, as they come and in float32, and their gradient.
            kept += tokens * shape.vocabulary * 10
        mine = 4 * shape.parameters / world if scale.offload else shards
        states = 8 * shape.trained / world if scale.offload else moments
        yield DeviceMemory(device, "learning", mine + whole, states + 4 * shape.trained / world, 0.0, kept)


def _device(name: str, gpus: Mapping[str, float]) -> str:
    """Return the device that a setting means on a machine with these GPUs."""
    if name in ("auto", "cuda"):
        return next(iter(gpus), "cpu" if name == "auto" else "cuda:0")
    return name


def _itemsize(settings: ModelSettings, kind: str) -> int:
    dtype = settings.dtype if settings.dtype != "auto" else {"cpu": "float32"}.get(kind, "bfloat16")
    return 4 if dtype == "float32" else 2


# ---- this machine ----------------------------------------------------------------------------------------------------


def local_gpus() -> dict[str, float]:
    """Return the bytes of each GPU of this machine."""
    import torch  # noqa: PLC0415 it takes seconds

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {f"cuda:{i}": float(torch.cuda.get_device_properties(i).total_memory) for i in range(count)}


def host_memory(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> float:
    """Return the bytes of this machine, or of the container that this process is in."""
    total = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        return min(total, float(limit.read_text()))
    except (OSError, ValueError):  # no container, or "max"
        return total


def memory_report(parts: list[DeviceMemory], has: Mapping[str, float]) -> Table | str:
    """Return a table of what each device needs, or one line where that is little."""
    peak = {part.device: max(one.total for one in parts if one.device == part.device) for part in parts}
    if all(need < max(GIB, SMALL * has.get(device, 0)) for device, need in peak.items()):
        each = (
            f"{_gib(n)}{f' of {_gib(has[device])}' if has.get(device) else ''} on {device}"
            for device, n in peak.items()
        )
        return f"memory: about {', '.join(each)}"
    numbers = ("weights", "optimizer", "cache", "activations", "total")
    rows = [
        [one.device, _with_note(one), *(_gib(getattr(one, name)) for name in numbers), _gib(has.get(one.device, 0))]
        for one in parts
    ]
    names = ("device", "part", "weights", "optimizer", "KV cache", "activations", "total", "device has")
    note = "Estimated from the shapes of the models; gradients are with the optimizer."
    return Table("memory", dict.fromkeys(names, "text"), rows, note)


def _with_note(one: DeviceMemory) -> str:
    if one.rows < one.wanted:
        return f"{one.part}, {one.rows} of {one.wanted} answers at a time"
    return f"{one.part}, {one.recomputed} layers recomputed" if one.recomputed else one.part


def _gib(number: float) -> str:
    gib = number / GIB
    return "" if not number else f"{gib:.0f} GiB" if gib >= 100 else f"{gib:.1f} GiB" if gib >= 0.1 else "<0.1 GiB"


def memory_problems(parts: list[DeviceMemory], has: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Return what cannot fit, and what may not."""
    refused, warned = [], []
    for part in parts:
        room = has.get(part.device, 0.0)
        where = f"on {part.device}, which has {_gib(room)} ({part.part})"
        if room and part.fixed > room:
            refused.append(f"weights and optimizer need {_gib(part.fixed)} {where}")
        elif room and part.total > room and part.device != "cpu":
            remedy = 'lower tokens_per_pass or rows of the model, or set its recompute = true or "offload"'
            warned.append(f"about {_gib(part.total)} are needed {where}: {remedy}")
        elif part.rows < part.wanted:
            many = f"{part.rows} of {part.wanted} answers of full length are written at a time"
            warned.append(f"{many} {where}: more of them while they are short, and the others wait")
    return refused, warned


def check_memory(recipe: Recipe, log: Callable[[str], object], *, on: str = "embedded", ignore: bool = False) -> None:
    """Log the estimate of a recipe; refuse what cannot fit, unless `ignore`, and warn of what may not."""
    parts, has = estimate(recipe, on=on)
    if not parts:
        return
    report = memory_report(parts, has)
    log(report if isinstance(report, str) else _as_text(report))
    refused, warned = memory_problems(parts, has)
    for text in warned:
        log(f"warning: {text}")
    for text in refused if ignore else ():
        log(f"warning: {text}")
    if refused and not ignore:
        remedy = (
            'train an adapter (lora; lora.base = "int8" halves the weights below it), set optimizer.states = "8bit" or'
            ' optimizer.offload = true, offload = true for models that take turns, device = "cuda:N" for one of them,'
            " or run on several GPUs (--on verl)"
        )
        raise UserError(
            f"the recipe does not fit: {'; '.join(refused)}. Remedies: {remedy}. --ignore-memory starts it anyway"
        )


def estimate(recipe: Recipe, *, on: str = "embedded") -> tuple[list[DeviceMemory], dict[str, float]]:
    """Return the memory that a recipe needs, and what the devices of this machine have."""
    gpus = local_gpus()
    if on == "verl":
        each = next(iter(gpus.values()), 0.0)
        name = "each GPU" if recipe.scale is None or recipe.scale.device == "cuda" else "each process"
        one = {name: each}
        return recipe_memory(recipe, ModelShapes(recipe), one, cluster=True), one
    return recipe_memory(recipe, ModelShapes(recipe), gpus), {"cpu": host_memory(), **gpus}


def _as_text(table: Table) -> str:
    """Return a table as lines for a log."""
    cells = [list(table.columns), *([str(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
    return "\n  ".join(["memory (estimated)", *lines])
