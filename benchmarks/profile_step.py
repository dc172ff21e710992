"""Shows where the time of a policy step of the embedded engine goes: one generation and one update, kernel by kernel.

    python benchmarks/profile_step.py [--device cuda] [--shape qwen3-0.6b] [--new-tokens 256]

Each part runs once to warm up, once against the clock, and once under torch's profiler. Times of kernels come from the
profile, seconds from the run without it. On a GPU "device" is the sum of the kernels, and what is missing to the whole
is time in which the GPU waited for the host. On a CPU operators stand for kernels, and there is no waiting to see.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from embedded import DEFAULTS, SHAPES, build
from our_side import Steps, generate, learn, open_engine
from rich.console import Console
from rich.table import Table
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers.utils.logging import disable_progress_bar
from workload import Workload, prompts

from rewardsmith.engines import ModelSettings

# The first pattern that a kernel's name contains decides; names of attention kernels may contain those of products.
GROUPS = {
    "attention": r"attention|attend|flash|fmha|sdpa",
    "sampling + head": r"sampl|logprob|log_prob|softmax|cross_entropy|logsumexp|head|scan|cumsum|sort|topk|gumbel",
    "norm + rotary + gated": r"norm|rms|rotar|rotate|rope|silu|swiglu|gated",
    "optimizer": r"adam|foreach|multi_tensor",
    "matrix products": r"gemm|gemv|nvjet|cublas|cutlass|xmma|matmul|splitk|::(mm|bmm|addmm|baddbmm|linear)$|mkldnn",
    "copies + other": r"",
}


@dataclass(frozen=True)
class Part:
    """What was seen of one part of a step: its seconds, those of each kernel, and how often the host started work."""

    seconds: float
    kernels: dict[str, tuple[float, int]]
    """Name to seconds and calls."""
    launches: int

    @property
    def device(self) -> float:
        """Seconds of all kernels."""
        return sum(seconds for seconds, _ in self.kernels.values())

    @property
    def calls(self) -> int:
        """Kernels that ran."""
        return sum(calls for _, calls in self.kernels.values())

    def groups(self) -> dict[str, float]:
        """Return the seconds of each group of kernels."""
        sums: Counter[str] = Counter(dict.fromkeys(GROUPS, 0.0))
        for name, (seconds, _) in self.kernels.items():
            sums[group_of(name)] += seconds
        return dict(sums)


def group_of(kernel: str) -> str:
    """Return the group that a kernel belongs to by its name."""
    return next(group for group, pattern in GROUPS.items() if re.search(pattern, kernel.lower()))


def observe(work: Callable[[], object], *, cuda: bool) -> Part:
    """Run the work once against the clock and once under the profiler."""
    wait = torch.cuda.synchronize if cuda else lambda: None
    wait()
    begun = time.perf_counter()
    work()
    wait()
    seconds = time.perf_counter() - begun
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU], acc_events=True) as seen:
        work()
        wait()
    kernels: dict[str, tuple[float, int]] = {}
    launches = 0
    for event in seen.key_averages():
        if not cuda:
            kernels[event.key] = (event.self_cpu_time_total / 1e6, event.count)
        elif event.device_type == DeviceType.CUDA:
            kernels[event.key] = (event.self_device_time_total / 1e6, event.count)
        elif re.match(r"cu(da)?(LaunchKernel|GraphLaunch|Memcpy|Memset)", event.key):
            launches += event.count
    return Part(seconds, kernels, launches)


def report(title: str, parts: dict[str, Part], decoding: int, *, top: int, cuda: bool) -> None:
    """Print the groups of each part, its largest kernels, and what a decoding step consists of."""
    console = Console(width=140, highlight=False)
    table = Table(title=title, title_justify="left")
    table.add_column("group of kernels")
    for name in parts:
        table.add_column(f"{name}, ms", justify="right")
        table.add_column("share", justify="right")
    for group in GROUPS:
        shown = [(part.groups()[group], part.device) for part in parts.values()]
        table.add_row(
            group, *(cell for time_, all_ in shown for cell in (f"{1e3 * time_:,.1f}", f"{time_ / all_:.0%}"))
        )
    everything = [(part.device, part.seconds) for part in parts.values()]
    table.add_section()
    table.add_row("device", *(cell for busy, _ in everything for cell in (f"{1e3 * busy:,.1f}", "")))
    busy_share = [(f"{1e3 * whole:,.1f}", f"{busy / whole:.0%} busy" if cuda else "") for busy, whole in everything]
    table.add_row("wall clock", *(cell for pair in busy_share for cell in pair))
    console.print(table)
    writing = parts["generate"]
    console.print(
        f"a decoding step, {decoding} of them, reading of prompts included: {1e3 * writing.seconds / decoding:.3g} ms,"
        f" device {1e3 * writing.device / decoding:.3g} ms, kernels {writing.calls / decoding:.0f}"
        + (
            f", host {1e3 * (writing.seconds - writing.device) / decoding:.3g} ms,"
            f" launches by the host {writing.launches / decoding:.1f}"
            if cuda
            else ""
        )
    )
    for name, part in parts.items():
        largest = sorted(part.kernels.items(), key=lambda item: -item[1][0])[:top]
        console.print(f"largest of {name}:")
        for kernel, (seconds, calls) in largest:
            console.print(f"  {1e3 * seconds:9.2f} ms {calls:7d} x  {group_of(kernel):22s} {kernel[:90]}", markup=False)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=list(DEFAULTS), default="cpu")
    parser.add_argument("--shape", choices=list(SHAPES), help="default: tiny-llama, on cuda qwen3-0.6b")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=8, help="rollouts of one prompt")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, help="default: 64, on cuda 256")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32, on cuda bfloat16")
    parser.add_argument("--top", type=int, default=8, help="kernels that are named")
    parser.add_argument("--folder", type=Path, help="keep the model here, and use it where it is already there")
    given = parser.parse_args()
    for name in ("shape", "new_tokens", "dtype"):
        if getattr(given, name) is None:
            setattr(given, name, DEFAULTS[given.device][name])
    return given


def main() -> None:
    """Build the model, profile both parts of a step, print the tables."""
    given = arguments()
    config = SHAPES[given.shape]()
    sizes = ("device", "dtype", "prompts", "rollouts", "prompt_tokens", "new_tokens")
    workload = Workload(**{name: getattr(given, name) for name in sizes}, vocabulary=config.vocab_size)
    cuda = given.device == "cuda"
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)) / given.shape
        if not list(folder.glob("*.safetensors")):
            build(folder, config, workload.seed)
        engine = open_engine(ModelSettings(init=str(folder), device=given.device, dtype=given.dtype))

        def write() -> None:
            groups[:] = generate(engine, prompts(workload, 0), workload, 0)

        decoding = Steps(given.device)
        groups = generate(engine, prompts(workload, 0), workload, 0, decoding)
        learn(engine, groups)
        parts = {"generate": observe(write, cuda=cuda), "update": observe(lambda: learn(engine, groups), cuda=cuda)}
    where = torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} CPU threads"
    new = f"{workload.prompts} x {workload.rollouts} x {workload.new_tokens} new tokens"
    title = f"{given.shape}, {new}, prompts of {workload.prompt_tokens}, {given.dtype}, {where}"
    report(title, parts, decoding.count, top=given.top, cuda=cuda)


if __name__ == "__main__":
    disable_progress_bar()
    main()
