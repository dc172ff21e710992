"""How long a policy step takes on a cluster of a given size, part by part: pure functions of a `Workload`.

Writing is bound by memory bandwidth: each decoding step reads the weights and the cached keys and values. Learning is
bound by arithmetic: 2 P flops for each token forward, 4 P backward (Kaplan et al., arXiv 2001.08361), and by the
network where shards are gathered. Judges work while answers are still written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rewardsmith.engines.memory_estimate import ModelShape, kv_token_bytes


@dataclass(frozen=True)
class Accelerator:
    """One device, by its data sheet; bytes and flops per second."""

    memory: float
    flops: float  # dense bfloat16; of a CPU float32
    bandwidth: float  # of its own memory
    link: float  # to the others of its node, one way
    network: float  # to other nodes
    host: float  # to host memory


GPUS: dict[str, Accelerator] = {
    "h200": Accelerator(141e9, 989e12, 4.8e12, 450e9, 50e9, 55e9),
    "h100": Accelerator(80e9, 989e12, 3.35e12, 450e9, 50e9, 55e9),
    "b200": Accelerator(180e9, 2250e12, 8e12, 900e9, 50e9, 55e9),
    "a100-80": Accelerator(80e9, 312e12, 2.0e12, 300e9, 25e9, 25e9),
    "a100-40": Accelerator(40e9, 312e12, 1.55e12, 300e9, 25e9, 25e9),
    "l40s": Accelerator(48e9, 362e12, 0.86e12, 25e9, 12e9, 25e9),
    "rtx4090": Accelerator(24e9, 165e12, 1.0e12, 25e9, 1e9, 25e9),
    "cpu": Accelerator(32e9, 1e11, 2e10, 1e10, 1e9, 1e10),  # two cores; other CPUs need a measured run
}

BANDWIDTH_USE = {"embedded": 0.8, "server": 0.6}
"""Share of the memory bandwidth that decoding reaches, in this process and in a server."""


@dataclass(frozen=True)
class Speeds:
    """How much of the data sheet is reached, and what every kernel launch costs."""

    gpu: Accelerator
    learn_mfu: float | None = None  # share of the peak flops in passes that learn; None: `mfu_of_size`
    prefill_mfu: float = 0.5  # in passes that only read
    bandwidth_use: float | None = None  # share of the bandwidth in decoding; None: `BANDWIDTH_USE`
    network_use: float = 0.6  # share of links and network in collectives
    layer_overhead: float = 30e-6  # seconds of a layer in a decoding step, however small the batch
    pass_overhead: float = 400e-6  # seconds of a layer in a pass that learns, however few the tokens
    row_overhead: float = 0.05e-6  # seconds of a row in a layer of a decoding step in one process: small kernels
    server_overhead: float = 40e-6  # seconds of a row in a decoding step of a server, with log-probabilities
    judge_overhead: float = 15e-6  # the same without log-probabilities


@dataclass(frozen=True)
class LearningModel:
    """A model that reads the answers of a step, and perhaps learns from them."""

    name: str
    shape: ModelShape
    forwards: float = 0.0  # passes without a gradient: old log-probabilities, reference, values
    trainings: float = 0.0  # passes with one
    updates: int = 0  # optimizer steps
    recompute: bool = False
    tokens_per_pass: int = 14_336
    process: bool = False  # learns in a part of its own, before the policy


@dataclass(frozen=True)
class JudgeLoad:
    """What a judge is asked in a step."""

    name: str
    shape: ModelShape | None  # None: `seconds` of a request are given
    requests: float
    prompt_tokens: float
    reply_tokens: float  # 0: it gives a number
    seconds: float = 0.0
    servers: int = 1
    gpus: int = 1  # of one server
    concurrency: int = 64  # requests in flight at each server
    cached: float = 0.0  # share of the requests
    shared: bool = False  # on the GPUs of the policy, so that it waits until answers are written


@dataclass(frozen=True)
class Workload:
    """A step of a recipe, and the cluster that it runs on."""

    policy: ModelShape
    groups: int
    group_size: int
    prompt_tokens: float
    answer_tokens: float  # mean
    longest_tokens: float
    learning: tuple[LearningModel, ...]
    judges: tuple[JudgeLoad, ...] = ()
    written: float = 1.0  # groups written for each that is learned from
    learned: float = 1.0  # share of the groups with something to learn
    gpus: int = 1
    gpus_per_node: int = 8
    cluster: bool = False  # sharded models and servers that write; else all in one process
    tensor_parallel: int = 1
    max_rows: int = 512  # answers that one server writes at a time
    memory_share: float = 0.5
    itemsize: int = 2
    offload: bool = False
    ahead: int = 0
    rule_seconds: float = 0.0  # of the rewards that no model gives, for each answer
    sync_seconds: float = 0.0
    other_seconds: float = 0.0

    @property
    def answers(self) -> float:
        """Answers written in a step."""
        return self.groups * self.group_size * self.written


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by part."""

    writing: float
    judging: float  # after the last answer is written; the rest is hidden behind writing
    process: float
    learning: float
    sync: float
    other: float

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return self.writing + self.judging + self.process + self.learning + self.sync + self.other


def step_time(load: Workload, speeds: Speeds) -> StepTime:
    """Return the seconds of each part of a step."""
    writing = writing_seconds(load, speeds)
    process = sum(learning_seconds(load, one, speeds) for one in load.learning if one.process)
    learning = sum(learning_seconds(load, one, speeds) for one in load.learning if not one.process)
    judging = waiting_seconds(load, speeds, writing)
    if load.ahead:  # the next answers are judged while this step is learned from
        judging = max(0.0, judging - learning - process)
    return StepTime(writing, judging, process, learning, sync_seconds(load, speeds), load.other_seconds)


def mfu_of_size(parameters: float, *, cluster: bool = False) -> float:
    """Return the share of the peak flops that learning reaches, 0.55 P / (P + 0.17) with P in billions.

    Fitted to 24, 43 and 51 % for 0.135B, 0.6B and 1.7B on an H200: small models wait for the host. Below 20M parameters
    nothing was measured, and it stays at 5 %. On a cluster 0.42 (P + 0.1) / (P + 0.7), which was our engine's before it
    had kernels of its own; verl's workers have not.
    """
    billions = parameters / 1e9
    if cluster:
        return 0.42 * (billions + 0.1) / (billions + 0.7)
    return max(0.05, 0.55 * billions / (billions + 0.17))


def decode_seconds(
    shape: ModelShape,
    speeds: Speeds,
    *,
    rows: float,
    context: float,
    gpus: int,
    itemsize: int,
    each: float,
    is_server: bool = True,
) -> float:
    """Return the seconds of one decoding step: (P b + rows · context · KV) / bandwidth, or 2 P rows / flops.

    `each` is what every row costs besides.
    """
    read = shape.parameters * itemsize + rows * context * kv_token_bytes(shape, itemsize)
    use = speeds.bandwidth_use or BANDWIDTH_USE["server" if is_server else "embedded"]
    moving = read / (gpus * speeds.gpu.bandwidth * use)
    computing = 2 * shape.matrices * rows / (gpus * speeds.gpu.flops * speeds.prefill_mfu)
    return max(moving, computing) + shape.layers * speeds.layer_overhead * (2 if gpus > 1 else 1) + rows * each


def concurrent_rows(load: Workload, speeds: Speeds) -> float:
    """Return the answers that one server writes at a time: the limit, or what its KV cache holds.

    The cache of a server has pages, and grows with the answers. The embedded one has room for the longest at once.
    """
    rows = load.answers / (load.gpus / load.tensor_parallel)
    length = load.prompt_tokens + (0.75 * load.answer_tokens if load.cluster else load.longest_tokens)
    each = length * kv_token_bytes(load.policy, load.itemsize)
    share = load.memory_share if load.cluster else 0.7
    room = load.tensor_parallel * speeds.gpu.memory * share - load.policy.parameters * load.itemsize
    return max(1.0, min(rows, load.max_rows, room / each))


def writing_seconds(load: Workload, speeds: Speeds) -> float:
    """Return the seconds until the last answer is written.

    With R answers for a server and C at a time, there are R · mean / C + (longest - mean) decoding steps: when the last
    answers have started, the longest of them is waited for.
    """
    rows = load.answers / (load.gpus / load.tensor_parallel)
    tokens = rows * load.answer_tokens
    steps = tokens / concurrent_rows(load, speeds) + max(0.0, load.longest_tokens - load.answer_tokens)
    context = load.prompt_tokens + load.answer_tokens / 2
    each = speeds.server_overhead if load.cluster else load.policy.layers * speeds.row_overhead
    one = decode_seconds(
        *(load.policy, speeds),
        rows=tokens / steps,
        context=context,
        gpus=load.tensor_parallel,
        itemsize=load.itemsize,
        each=each,
        is_server=load.cluster,
    )
    prompts = load.groups * load.written * load.prompt_tokens / load.gpus
    prefill = 2 * load.policy.matrices * prompts / (speeds.gpu.flops * speeds.prefill_mfu)
    return steps * one + prefill


def learning_seconds(load: Workload, model: LearningModel, speeds: Speeds) -> float:
    """Return the seconds that a model takes to read the answers and to learn from them.

    A pass over n tokens has 2 P n + 2 n · length · H d L flops forward, three times that with the gradient, four times
    with recompute. On a cluster a pass gathers the weights, and scatters gradients: no pass is shorter than that.
    """
    shape, length = model.shape, load.prompt_tokens + load.answer_tokens
    shared = length if load.cluster else load.prompt_tokens / load.group_size + load.answer_tokens
    tokens = load.groups * load.group_size * load.learned * shared / load.gpus
    flops = tokens * (2 * shape.matrices + 2 * length * shape.heads * shape.head_width * shape.layers)
    near = load.gpus <= load.gpus_per_node
    links = speeds.gpu.link if near else min(speeds.gpu.link, speeds.gpu.network * load.gpus_per_node)
    moved = 2 * shape.parameters / (links * speeds.network_use) if load.cluster and load.gpus > 1 else 0.0
    overhead = shape.layers * speeds.pass_overhead

    def seconds(factor: float, gathers: float, splits: int, mfu: float) -> float:
        passes = max(splits, math.ceil(tokens / model.tokens_per_pass))
        return max(flops * factor / (speeds.gpu.flops * mfu), passes * gathers * moved) + passes * overhead

    per_pass = max(1, round(model.updates / max(1.0, model.trainings)))
    reading = model.forwards * seconds(1, 1, 1, speeds.prefill_mfu)
    mfu = speeds.learn_mfu or mfu_of_size(shape.parameters, cluster=load.cluster)
    training = model.trainings * seconds(4 if model.recompute else 3, 4, per_pass, mfu)
    states = model.updates * 30 * shape.trained / load.gpus / speeds.gpu.bandwidth
    return reading + training + states


def judge_seconds(judge: JudgeLoad, speeds: Speeds) -> tuple[float, float]:
    """Return the seconds in which a judge replies to all requests of a step, and to a single one."""
    asked = judge.requests * (1 - judge.cached) / judge.servers
    rows = max(1.0, min(judge.concurrency, asked))
    if judge.shape is None:
        return asked / rows * judge.seconds, judge.seconds
    reading = 2 * judge.shape.matrices * judge.prompt_tokens / (judge.gpus * speeds.gpu.flops * speeds.prefill_mfu)
    context = judge.prompt_tokens + judge.reply_tokens / 2
    options = {"gpus": judge.gpus, "itemsize": 2, "each": speeds.judge_overhead}
    step = decode_seconds(judge.shape, speeds, rows=rows, context=context, **options)  # type: ignore[arg-type]
    writing = judge.reply_tokens * step
    return asked * reading + asked / rows * writing, reading + writing


def waiting_seconds(load: Workload, speeds: Speeds, writing: float) -> float:
    """Return the seconds for which a step waits for its rewards after the last answer is written.

    Groups end evenly over the last part of writing: half of it where all answers are written at a time, nearly all
    where they are written in many waves.
    """
    waves = load.answers / (load.gpus / load.tensor_parallel) / concurrent_rows(load, speeds)
    hidden = writing * (1 - 0.5 / max(1.0, waves))
    waits = [load.answers * load.rule_seconds]
    for judge in load.judges:
        if judge.requests * (1 - judge.cached) <= 0:
            continue
        whole, one = judge_seconds(judge, speeds)
        waits.append(whole if judge.shared else max(one, whole - hidden))
    return max(waits)


def sync_seconds(load: Workload, speeds: Speeds) -> float:
    """Return the seconds until the servers have the new weights; with offload, also those of moving the states."""
    if not load.cluster:
        return 0.0
    near = load.gpus <= load.gpus_per_node
    links = speeds.gpu.link if near else min(speeds.gpu.link, speeds.gpu.network * load.gpus_per_node)
    sending = load.policy.parameters * load.itemsize / (links * speeds.network_use)
    states = sum(2 * 12 * one.shape.parameters / load.gpus for one in load.learning if one.trainings)
    return load.sync_seconds + sending + (states / speeds.gpu.host if load.offload else 0.0)


# ---- what would help -------------------------------------------------------------------------------------------------


def remedies(load: Workload) -> dict[str, Workload]:
    """Return the workload after each change that may make a step shorter."""
    judged = any(judge.requests for judge in load.judges)
    found = {
        "twice the GPUs": replace(load, gpus=2 * load.gpus, cluster=True),
        "answers half as long": replace(
            load, answer_tokens=load.answer_tokens / 2, longest_tokens=load.longest_tokens / 2
        ),
    }
    if load.longest_tokens > 1.5 * load.answer_tokens:
        found["longest answer at 1.5 times the mean (max_tokens)"] = replace(
            load, longest_tokens=1.5 * load.answer_tokens
        )
    if load.written > 1:
        found["every group used (select.staleness, easier or harder prompts)"] = replace(load, written=1.0)

    def judges(**change: object) -> Workload:
        return replace(load, judges=tuple(replace(judge, **change) for judge in load.judges))  # type: ignore[arg-type]

    if judged:
        double = tuple(replace(judge, servers=2 * judge.servers, shared=False) for judge in load.judges)
        half = tuple(replace(judge, requests=judge.requests / 2) for judge in load.judges)
        short = tuple(replace(judge, reply_tokens=judge.reply_tokens / 2) for judge in load.judges)
        found |= {
            "twice the judge servers, on GPUs of their own": replace(load, judges=double),
            "a verdict cache with half of the verdicts in it": judges(cached=0.5 + load.judges[0].cached / 2),
            "a cascade: a cheap reward decides half of the answers (when)": replace(load, judges=half),
            "verdicts half as long (request.max_tokens)": replace(load, judges=short),
        }
        if not load.ahead:
            found["answers written a step ahead (ahead = 1)"] = replace(load, ahead=1)
    if any(one.recompute for one in load.learning):
        found["no recompute, if it fits"] = replace(
            load, learning=tuple(replace(one, recompute=False) for one in load.learning)
        )
    return found
