"""Times policy steps with and without an implicit process reward, side by side: same model, same prompts, same run.

    make bench-prime        # or: python benchmarks/prime.py [--threads 1] [--ends length] [--sides without after none]
    python benchmarks/prime.py --device cuda --ends length --new-tokens 256 1024 --sides after after-policy

The reward model is as large as the policy. Builds a model with random weights in a temporary folder, runs each side in
a process of its own, in turns, `--rounds` times, and prints the medians: the whole step, what it consists of, and what
it costs beyond its passes. The paper (arXiv 2502.01456) reports 680.3 s against 530.7 s for a step; the aim here is at
most 60 % more with `update = "after"`, and 30 % with answers of 1,024 tokens. `prime_workload.py` defines the sides and
the figures; `prime_side.py` is a side.

How much a process reward adds is decided by how long writing takes beside learning. With `update = "after"` it costs a
pass of the reference, a third of what the policy's own update costs, and an update, as much as that. So a step that
spends w on writing and l on learning becomes longer by about 4/3 l / (w + l), or l / (w + l) where the reference is the
policy, whose numbers are there already. Below 30 % it is only where writing takes two to three times as long.

On a machine that others use too, `--clock cpu --threads 1` counts the seconds in which the process computed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from embedded import SHAPES, build, llama
from prime_workload import PARTS, PASSES, SIDES, WITHOUT, Figures, Side
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedConfig
from transformers.utils.logging import disable_progress_bar
from workload import Workload

HERE = Path(__file__).parent
SHAPES_HERE = {
    "llama-4m": lambda: llama(hidden=256, layers=4, heads=8, kv_heads=4, ffn=688, vocabulary=4_000),
    "llama-35m": lambda: llama(hidden=512, layers=12, heads=8, kv_heads=4, ffn=1_376, vocabulary=8_000),
    **SHAPES,
}
DEFAULTS = {
    "cpu": {"shape": "llama-4m", "prompts": 8, "new_tokens": [128], "dtype": "float32"},
    "cuda": {"shape": "qwen3-0.6b", "prompts": 64, "new_tokens": [256], "dtype": "bfloat16"},
}
USUAL = ("without", "after", "after-policy", "after-lora", "before", "none")
LONG = 1_024  # tokens of an answer
PAPER = 680.3 / 530.7 - 1


def build_model(folder: Path, config: PreTrainedConfig) -> None:
    """Write a model with random weights, whose chat template is the message as it is."""
    build(folder, config, seed=0)
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")


def measure(folder: Path, workload: Workload, side: Side, threads: int | None, clock: str) -> Figures:
    """Run a side in its own process and read its figures; its own messages are shown only if it fails."""
    length = f"{workload.ends} {workload.new_tokens}"
    print(f"{length}, {side.name}: {workload.warmup} + {workload.steps} steps …", file=sys.stderr)
    limit = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "prime_side.py"),
            str(folder),
            workload.to_json(),
            side.to_json(),
            "--clock",
            clock,
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **limit, "HF_HUB_OFFLINE": "1"},
    )
    shutil.rmtree(folder / "run", ignore_errors=True)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nthe side {side.name} failed (status {done.returncode}), see above")
    return Figures.from_json(done.stdout.splitlines()[-1])


def compare(folder: Path, workload: Workload, sides: list[Side], given: argparse.Namespace) -> dict[str, Figures]:
    """Let the sides take turns, and return what each measured."""
    found: dict[str, Figures] = {}
    for _ in range(given.rounds):
        for side in sides:
            new = measure(folder, workload, side, given.threads, given.clock)
            found[side.name] = found[side.name].join(new) if side.name in found else new
    return found


def more(figures: Figures, without: Figures) -> float:
    """Return by how much longer a step is, as a share."""
    return figures.seconds / without.seconds - 1


def report(console: Console, workload: Workload, found: Mapping[str, Figures]) -> None:
    """Print the table, and under it whether the aim is met and where the time went."""
    without = found[WITHOUT.name]
    table = Table(title=_title(workload), title_justify="left")
    for heading in ("median seconds of a step", "whole", "more", *PARTS, "tokens", "peak MiB", "more"):
        table.add_column(heading, justify="left" if "median" in heading else "right")
    for name, figures in found.items():
        memory = figures.peak_bytes / 2**20
        longer = "" if figures is without else f"{more(figures, without):+.0%}"
        larger = "" if figures is without else f"{figures.peak_bytes / without.peak_bytes - 1:+.0%}"
        parts = [f"{figures.part(part):.3f}" for part in PARTS]
        table.add_row(
            name, f"{figures.seconds:.3f}", longer, *parts, f"{figures.tokens:,.0f}", f"{memory:,.0f}", larger
        )
    console.print(table)
    for name, figures in found.items():
        if figures is not without:
            console.print(verdict(workload, SIDES[name], figures, without))
    console.print()


def verdict(workload: Workload, side: Side, figures: Figures, without: Figures) -> str:
    """Say what the process reward costs beyond its passes, and for `after` whether the aim is met."""
    longer, passes = figures.seconds - without.seconds, sum(map(figures.part, PASSES))
    text = f"{side.name}: {longer:+.3f} s, of which its passes are {passes:.3f} s"
    if side.update != "after":
        return text
    aim = 0.3 if workload.new_tokens >= LONG else 0.6
    beyond = more(figures, without) - aim
    return f"{text}; aim of +{aim:.0%} " + ("met" if beyond <= 0 else f"missed by {100 * beyond:.0f} points")


def _title(workload: Workload) -> str:
    length = f"{'up to ' if workload.ends == 'eos' else ''}{workload.new_tokens} new tokens"
    return f"{workload.prompts} prompts of {workload.prompt_tokens} tokens x {workload.rollouts} rollouts x {length}"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--device", choices=list(DEFAULTS), default="cpu")
    parser.add_argument("--shape", choices=list(SHAPES_HERE), help="default: llama-4m, on cuda qwen3-0.6b")
    parser.add_argument("--prompts", type=int, help="default: 8, on cuda 64")
    parser.add_argument("--rollouts", type=int, default=8, help="rollouts of one prompt")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, nargs="+", help="most of an answer; default: 128, on cuda 256")
    parser.add_argument("--ends", choices=["eos", "length"], nargs="+", default=["eos", "length"])
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a round, after one to warm up")
    parser.add_argument("--rounds", type=int, default=3, help="how often each side has its turn")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32, on cuda bfloat16")
    parser.add_argument("--threads", type=int, help="CPU threads; default: one for each core")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu goes with --threads 1")
    parser.add_argument("--sides", choices=list(SIDES), nargs="+", default=list(USUAL))
    given = parser.parse_args()
    for name, value in DEFAULTS[given.device].items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here")
    if given.rounds < 1 or (given.threads is not None and given.threads < 1):
        parser.error("--rounds and --threads must be at least 1")
    if given.clock == "cpu" and (given.device, given.threads) != ("cpu", 1):
        parser.error("--clock cpu counts the seconds of one thread: it goes with --device cpu --threads 1")
    return given


def main() -> None:
    """Build the model, run the sides in turns, print the tables."""
    given = arguments()
    config = SHAPES_HERE[given.shape]()
    sizes = ("device", "dtype", "prompts", "rollouts", "prompt_tokens", "steps")
    sides = [SIDES[name] for name in dict.fromkeys([WITHOUT.name, *given.sides])]
    console = Console(width=170, highlight=False)
    where = torch.cuda.get_device_name() if given.device == "cuda" else f"{given.threads or os.cpu_count()} CPU threads"
    try:
        settings = {name: getattr(given, name) for name in sizes} | {"vocabulary": config.vocab_size}
        workloads = [
            Workload(**settings, ends=ends, new_tokens=length)
            for ends in dict.fromkeys(given.ends)
            for length in dict.fromkeys(given.new_tokens)
        ]
    except ValueError as error:
        sys.exit(f"error: {error}")
    many = f"{given.rounds} rounds of {given.steps} steps, {given.clock} clock"
    console.print(f"{given.shape}, {given.dtype}, {where}, torch {torch.__version__}; {many}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_model(folder, config)
        for workload in workloads:
            report(console, workload, compare(folder, workload, sides, given))
    console.print(f"the paper: 680.3 s with a process reward, 530.7 s without, {PAPER:+.0%}")
    what = "most that torch had allocated" if given.device == "cuda" else "largest resident size, libraries included"
    console.print(f"memory: {what}. Not counted: the pass every tenth step that measures the accuracy after an update")


if __name__ == "__main__":
    disable_progress_bar()
    main()
