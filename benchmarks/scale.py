"""Times policy steps of `rewardsmith run --on verl` and of verl's own trainer: same machine, same run of this script.

    make bench-scale        # or: python benchmarks/scale.py [--rounds 2] [--steps 12], where rewardsmith[verl] is

Both train the same tiny model with GRPO on verl's FSDP2 workers over Ray, on a CPU: same prompts, answers per prompt,
lengths, mini-batches and score of an answer. verl's side is `verl.trainer.main_ppo` (V1, synchronous) with its agent
loop, its TransferQueue and its naive reward manager; ours is the trainer, the reward tree and the worker pool of rules.
The sides take turns. A step is the time between two lines of a side's metrics file, so that all that a side does is in
it; the parts are what each side reports itself. The aim is at most a tenth more than verl.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from rewardsmith.engines.model_settings import ModelSettings
from rewardsmith.scale.launch import choose_platform
from rewardsmith.scale.scale_settings import ScaleSettings

HERE = Path(__file__).parent
AIM = 1.10
WARMUP = 3  # steps that are not counted
RECIPE = """
[scale]
device = "cpu"
gpus_per_node = {ranks}
[models.policy]
init = "{model}"
[data.train]
type = "parquet"
path = "{data}"
[[stages]]
type = "policy"
model = "policy"
data = "train"
steps = {steps}
prompts_per_step = {prompts}
rollouts_per_prompt = {rollouts}
mini_batches = {mini_batches}
sampling = {{ max_tokens = {tokens} }}
reward = {{ type = "rule", rule = "scale_rule:digits_of" }}
old_logprobs = "learner" # verl measures them too
optimizer = {{ lr = {lr} }}
save = {{ every = 1000 }}
"""
PARTS = {"ours": "time/", "verl": "timing_s/"}


def prepare(folder: Path, work: dict[str, Any]) -> None:
    """Write the model and the prompts."""
    choose_platform(ScaleSettings(device="cpu"))
    from rewardsmith.scale.verl_engine import start_folder  # noqa: PLC0415 it imports verl

    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{i} + {7 * i % 31} = ?"}],
            "reward_model": {"style": "rule", "ground_truth": str(i + 7 * i % 31)},
        }
        for i in range(work["prompts"] * 4)
    ]
    pq.write_table(pa.Table.from_pylist(rows), work["data"])
    start_folder(ModelSettings(init="tiny-llama"), Path(work["model"]), seed=0, name="policy")
    (folder / "recipe.toml").write_text(RECIPE.format(**work))


def measure(side: str, folder: Path, work: dict[str, Any]) -> list[dict[str, float]]:
    """Run a side, and return the seconds of each step after the warm-up, with its parts."""
    place = folder / f"{side}-{time.monotonic_ns()}"
    place.mkdir()
    metrics = place / ("run/metrics.jsonl" if side == "ours" else "metrics.jsonl")
    own = work | {"folder": str(place), "metrics": str(metrics)}
    (place / "work.json").write_text(json.dumps(own))
    command = [sys.executable, "-W", "ignore", str(HERE / "verl_side.py"), str(place / "work.json")]
    if side == "ours":
        run = ["run", str(folder / "recipe.toml"), "--folder", str(place / "run"), "--on", "verl"]
        command = [sys.executable, "-W", "ignore", "-m", "rewardsmith", *run]
    paths = os.pathsep.join([str(HERE), str(HERE.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    platform = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "rewardsmith.scale.cpu"}
    log = place / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=os.environ | platform | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        )
        arrivals: list[float] = []
        while process.poll() is None:
            lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
            arrivals += [time.perf_counter()] * (lines - len(arrivals))
            time.sleep(0.005)
    if process.returncode:
        sys.exit(f"{log.read_text()[-6000:]}\nthe side {side} failed (status {process.returncode}), see above")
    steps = []
    for i, line in enumerate(map(json.loads, metrics.read_text().splitlines())):
        if WARMUP < i < len(arrivals) - 1:  # the last step of ours saves
            found = line["metrics"] if side == "ours" else line["data"]
            parts = {
                name.removeprefix(PARTS[side]): float(value)
                for name, value in found.items()
                if name.startswith(PARTS[side]) and "reward/" not in name
            }
            steps.append({"whole": arrivals[i] - arrivals[i - 1], **parts})
    return steps


def report(console: Console, work: dict[str, Any], rounds: dict[str, list[list[dict[str, float]]]]) -> float:
    """Print the medians, and return how much longer a step of ours takes."""
    middle = {}
    for side, runs in rounds.items():
        steps = [step for run in runs for step in run]
        names = [name for name in steps[0] if all(name in step for step in steps)]
        middle[side] = {name: statistics.median(step[name] for step in steps) for name in names}
        table = Table(title=f"{side}: {len(steps)} steps", title_justify="left")
        for heading in ("part", "median s", "of the step"):
            table.add_column(heading, justify="left" if heading == "part" else "right")
        for name, seconds in sorted(middle[side].items(), key=lambda item: -item[1]):
            table.add_row(name, f"{seconds:.4f}", f"{seconds / middle[side]['whole']:.0%}")
        console.print(table)
        spread = ", ".join(f"{statistics.median(step['whole'] for step in run):.3f}" for run in runs)
        console.print(f"medians of its runs: {spread} s")
    ratio = middle["ours"]["whole"] / middle["verl"]["whole"]
    size = "{prompts} prompts x {rollouts} answers of up to {tokens} tokens, {mini_batches} mini-batches, {ranks} ranks"
    console.print(f"{size.format(**work)}: ours / verl = {ratio:.2f}; the aim is at most {AIM:.2f}")
    return ratio


def main() -> None:
    """Measure both sides by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"ranks": 1, "prompts": 32, "rollouts": 8, "tokens": 64, "mini_batches": 2, "steps": 16, "rounds": 2}
    for name, value in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    given = vars(parser.parse_args())
    console = Console()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work = {**given, "lr": 1e-6, "model": str(folder / "model"), "data": str(folder / "rows.parquet")}
        prepare(folder, work)
        rounds: dict[str, list[list[dict[str, float]]]] = defaultdict(list)
        for _ in range(given["rounds"]):
            for side in PARTS:
                print(f"{side}: {given['steps']} steps …", file=sys.stderr)
                rounds[side].append(measure(side, folder, work))
        report(console, work, rounds)


if __name__ == "__main__":
    main()
